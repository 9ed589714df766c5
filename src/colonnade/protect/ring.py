"""Fixed-point numbers in the ring of whole numbers modulo 2^32 or 2^64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import ConfigError
from colonnade.protect.protection_spec import check_above_zero

__all__ = ["Ring", "RingArray", "into_ring", "ring_type", "sum_of", "to_wire", "wire_type"]

RingArray: TypeAlias = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Whole numbers modulo a power of two: values are clipped and rounded.

    Args:
        range: Values are clipped to plus or minus this.
        fraction_bits: Binary digits after the point.
        ring_bits: The power: numbers are modulo 2^ring_bits.

    Raises:
        ConfigError: If one value of that range does not fit.
    """

    range: float = 64.0
    fraction_bits: int = 20
    ring_bits: Literal[32, 64] = 32

    def __post_init__(self) -> None:
        check_above_zero("range", self.range)
        if not 0 <= self.fraction_bits < self.ring_bits:
            raise ConfigError(
                f"fraction_bits: from 0 to {self.ring_bits - 1}, got {self.fraction_bits}"
            )
        if self.most_parties < 1:
            raise ConfigError(
                f"range: {self.range} with {self.fraction_bits} fraction_bits does not fit into "
                f"{self.ring_bits} bits; lower one of them, or set ring_bits = 64"
            )

    @property
    def most_parties(self) -> int:
        """Of how many parties a sum fits: beyond, it could wrap around."""
        largest = math.floor(self.range * 2.0**self.fraction_bits + 0.5)
        bound: int = 2 ** (self.ring_bits - 1) - 1
        return bound // largest


def ring_type(ring: Ring) -> type[np.unsignedinteger[Any]]:
    """The unsigned type whose arithmetic is the ring's."""
    return np.uint32 if ring.ring_bits == 32 else np.uint64


def into_ring(values: Tensor, ring: Ring) -> RingArray | None:
    """Values clipped to the range and rounded to the nearest step; none if not finite."""
    # NumPy takes half the time of torch for these few numbers, and rounds alike: halves to even.
    plain = values.detach().numpy()
    # One that is not a number makes both of them none either.
    low, high = (float(plain.min()), float(plain.max())) if plain.size else (0.0, 0.0)
    if not (-ring.range <= low and high <= ring.range):
        if not (math.isfinite(low) and math.isfinite(high)):
            return None
        plain = plain.clip(-ring.range, ring.range)
    scaled = plain * plain.dtype.type(2.0**ring.fraction_bits)
    np.rint(scaled, out=scaled)
    numbers: RingArray = scaled.astype(_signed_type(ring)).view(ring_type(ring))
    return numbers


def to_wire(values: RingArray) -> Tensor:
    """As a tensor of signed numbers, which is what torch can carry."""
    return torch.from_numpy(values.view(np.int32 if values.dtype.itemsize == 4 else np.int64))


def sum_of(wires: Sequence[Tensor], ring: Ring, dtype: torch.dtype) -> Tensor | None:
    """The sum of what came over the wire, as ordinary numbers; none if it is not of one kind.

    It must be within bounds; on the way there it may go around as often as it likes.
    """
    first, *others = wires
    kind = wire_type(ring)
    if any(item.dtype != kind or item.shape != first.shape for item in wires):
        return None
    # Signed numbers go around as unsigned ones do. What came is never changed.
    total = first.numpy()
    for item in others:
        total = total + item.numpy()
    # A power of two scales without rounding: rounded is once, into the type.
    ordinary: Any = np.float64 if dtype == torch.float64 else np.float32
    numbers = total.astype(ordinary)
    numbers *= ordinary(2.0**-ring.fraction_bits)
    return torch.from_numpy(numbers)


def wire_type(ring: Ring) -> torch.dtype:
    """The type in which a number of the ring crosses a link."""
    return torch.int32 if ring.ring_bits == 32 else torch.int64


def _signed_type(ring: Ring) -> type[np.signedinteger[Any]]:
    return np.int32 if ring.ring_bits == 32 else np.int64
