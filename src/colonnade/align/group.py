"""The group that ids are blinded in: ristretto255, through rbcl (libsodium).

Nothing here is our own cryptography: hashing to the group and multiplying by a scalar are
libsodium's, keys and permutations are derived with HMAC and libsodium's stream of random bytes.

Points are rows of 32 bytes in arrays of ``uint8``. Work is spread over all cores by threads:
libsodium runs outside Python's interpreter lock, so no id and no key is copied to another process.
"""

from __future__ import annotations

import functools
import hmac
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from colonnade.core.errors import ProtocolError
from colonnade.core.extras import missing_package

__all__ = [
    "CHUNK",
    "MOST_IDS",
    "POINT_BYTES",
    "SECRET_BYTES",
    "Bytes",
    "Indices",
    "Numbers",
    "derive",
    "derive_order",
    "derive_scalar",
    "hash_and_multiply",
    "multiply",
    "num_cores",
    "require_group",
]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Indices = np.ndarray[Any, np.dtype[np.int64]]
# Places in lists and sample numbers: half the memory of indices, as there are millions.
Numbers = np.ndarray[Any, np.dtype[np.int32]]
T = TypeVar("T")

POINT_BYTES = 32
SECRET_BYTES = 32

# Points per message.
CHUNK = 8192

# Of all lists together: places and sample numbers must fit into 31 bits.
MOST_IDS = 2**31 - 1

# Points per piece of work: enough that handing it over costs little, few enough that no core waits
# for another at the end of a chunk.
_PIECE = 256


def require_group() -> Any:
    """The rbcl package, or an error that says how to get it."""
    try:
        import rbcl  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise missing_package("private alignment", "rbcl", "align") from error
    return rbcl


def num_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def derive(secret: bytes, purpose: str) -> bytes:
    """64 pseudorandom bytes for a purpose, from a secret."""
    return hmac.digest(secret, purpose.encode(), "sha512")


def derive_scalar(secret: bytes, purpose: str) -> bytes:
    """A scalar of the group for a purpose."""
    scalar: bytes = require_group().crypto_core_ristretto255_scalar_reduce(derive(secret, purpose))
    return scalar


def derive_order(secret: bytes, purpose: str, length: int) -> Numbers:
    """A pseudorandom permutation for a purpose, from a secret."""
    if length == 0:
        return np.zeros(0, dtype=np.int32)
    seed = derive(secret, purpose)[:SECRET_BYTES]
    stream = require_group().randombytes_buf_deterministic(8 * length, seed)
    return np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable").astype(np.int32)


def multiply(points: Bytes, scalar: bytes) -> Bytes:
    """Every point times the scalar, in the same order, on all cores."""
    times = require_group().crypto_scalarmult_ristretto255
    raw = points.tobytes()

    def piece(begin: int, end: int) -> bytes:
        return b"".join(
            [
                times(scalar, raw[at : at + POINT_BYTES])
                for at in range(begin * POINT_BYTES, end * POINT_BYTES, POINT_BYTES)
            ]
        )

    try:
        return _as_points(_spread(piece, len(points)))
    except (RuntimeError, TypeError) as error:
        raise ProtocolError(
            f"among {len(points)} blinded points at least one is not a point of the group; the "
            "message was damaged on its way or made by another program"
        ) from error


def hash_and_multiply(texts: Sequence[bytes], key: bytes, scalar: bytes) -> Bytes:
    """Hash texts to the group under a key and multiply by the scalar, on all cores."""
    group = require_group()
    to_point, times = (
        group.crypto_core_ristretto255_from_hash,
        group.crypto_scalarmult_ristretto255,
    )

    def piece(begin: int, end: int) -> bytes:
        return b"".join(
            [times(scalar, to_point(hmac.digest(key, text, "sha512"))) for text in texts[begin:end]]
        )

    return _as_points(_spread(piece, len(texts)))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_cores(), thread_name_prefix="colonnade-align")


def _spread(piece: Callable[[int, int], T], length: int) -> list[T]:
    begins = range(0, length, _PIECE)
    if len(begins) < 2:
        return [piece(begin, length) for begin in begins]
    return list(_pool().map(lambda begin: piece(begin, min(begin + _PIECE, length)), begins))


def _as_points(pieces: Sequence[bytes]) -> Bytes:
    return np.frombuffer(b"".join(pieces), dtype=np.uint8).reshape(-1, POINT_BYTES)
