"""Messages of an alignment: arrays in tensors, each with a seal over content and position."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.align.group import Bytes

__all__ = [
    "TAG_BYTES",
    "as_array",
    "as_rows",
    "as_tensor",
    "make_seal",
    "position_in_rounds",
    "sortable",
]

# Enough of a fully blinded id to compare it: no two agree in so many bytes.
TAG_BYTES = 16


def make_seal(
    run: str, round_number: int, owner: str, hop: int, start: int, *content: Any
) -> bytes:
    """A digest of a message and of its position, so that no other can replace it."""
    shapes = [[item.dtype.str, item.shape] for item in content]
    head = [run, round_number, owner, hop, start, shapes]
    digest = hashlib.sha256(json.dumps(head).encode())
    for item in content:
        digest.update(np.ascontiguousarray(item).tobytes())
    return digest.digest()


def position_in_rounds(round_number: int, start: int) -> int:
    """A round and a position in its list as one number."""
    return (round_number << 32) + start


def as_tensor(content: Any) -> Tensor:
    array = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content
    return torch.from_numpy(np.array(array))


def as_array(tensor: Tensor) -> Any:
    return tensor.numpy()


def sortable(rows: Bytes) -> Any:
    """Rows of bytes as single values that can be sorted and compared."""
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").reshape(-1)


def as_rows(tags: list[bytes]) -> Bytes:
    return np.frombuffer(b"".join(tags), np.uint8).reshape(-1, TAG_BYTES)
