"""Fixed-point numbers in the ring of whole numbers modulo 2^32 or 2^64."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from colonnade.protect.specs import Ring

__all__ = ["RingArray", "from_wire", "into_ring", "out_of_ring", "ring_type", "to_wire"]

RingArray: TypeAlias = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]


def ring_type(ring: Ring) -> type[np.unsignedinteger[Any]]:
    """The unsigned type whose arithmetic is the ring's."""
    return np.uint32 if ring.ring_bits == 32 else np.uint64


def into_ring(values: Tensor, ring: Ring) -> RingArray | None:
    """Values clipped to the range and rounded to the nearest step, flat; none if not finite."""
    plain = values.detach().flatten().numpy()
    # Not a number anywhere makes the sum none either, and so do infinities: one pass for all.
    with np.errstate(invalid="ignore", over="ignore"):
        if not np.isfinite(plain.sum()) and not np.isfinite(plain).all():
            return None
    scaled = np.clip(plain, -ring.range, ring.range)
    scaled *= plain.dtype.type(2.0**ring.fraction_bits)
    np.rint(scaled, out=scaled)
    whole: RingArray = scaled.astype(np.int32 if ring.ring_bits == 32 else np.int64).view(
        ring_type(ring)
    )
    return whole


def out_of_ring(total: RingArray, ring: Ring, dtype: torch.dtype) -> Tensor:
    """A sum that was within bounds, as ordinary numbers; flat."""
    signed = total.view(np.int32 if ring.ring_bits == 32 else np.int64)
    return torch.from_numpy(signed.astype(np.float64) * 2.0**-ring.fraction_bits).to(dtype)


def to_wire(values: RingArray, shape: torch.Size) -> Tensor:
    """As a tensor of signed numbers, which is what torch can carry."""
    signed = values.view(np.int32 if values.dtype.itemsize == 4 else np.int64)
    return torch.from_numpy(signed).view(shape)


def from_wire(value: Tensor, ring: Ring) -> RingArray:
    """Back from the wire; flat."""
    return value.contiguous().flatten().numpy().view(ring_type(ring))
