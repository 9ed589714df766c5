"""Noise from a party's own secret: a keystream turned into uniform and Gaussian numbers.

The run's seed is known to everybody, so nothing here depends on it. Every draw has a label of its
own. The label of a release holds the values that the noise will hide as well: if a party is put
back to an earlier state and made to encode something else under the same number, the noise is
another one, and the difference of two releases shows nothing. The same values under the same
number have the same noise, so a resumed run repeats what it sent before, bit for bit.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from colonnade.protect.extra import needed

__all__ = ["Array", "SecretNoise"]

_NUM_SECRET_BYTES = 32

# Draws come in few sizes: a batch, the last batch, and the same again for predictions.
_MOST_SIZES = 8

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class _Scratch(NamedTuple):
    """Memory for draws of one size, used over and over."""

    zeros: memoryview
    keystream: bytearray
    # The same bytes as whole numbers, in two halves.
    whole: Array
    spread: Array
    radius: Array
    angle: Array


class SecretNoise:
    """Random numbers that only the holder of a secret can make; AES-256 in counter mode."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != _NUM_SECRET_BYTES:
            raise ValueError(f"a secret has {_NUM_SECRET_BYTES} bytes, got {len(secret)}")
        ciphers = needed("cryptography.hazmat.primitives.ciphers", "noise")
        key = hmac.digest(secret, b"colonnade noise: stream", "sha256")
        self._labels = hmac.digest(secret, b"colonnade noise: labels", "sha256")
        mode = ciphers.modes.CTR(bytes(16))
        self._stream = ciphers.Cipher(ciphers.algorithms.AES(key), mode).encryptor()
        aead = needed("cryptography.hazmat.primitives.ciphers.aead", "noise")
        self._fingerprints = aead.AESGCM(
            hmac.digest(secret, b"colonnade noise: fingerprints", "sha256")
        )
        self._scratch: dict[tuple[int, Any], _Scratch] = {}
        # Names the last draw: no other label gives it, and it tells nothing of the label.
        self.last = b""

    def fingerprint(self, content: Array) -> bytes:
        """A short value that two contents share with negligible probability; only for labels.

        GMAC under one nonce is a keyed universal hash, and fast. It never leaves this object but
        through the keyed hash of a label.
        """
        # An empty batch has nothing to hide, and no bytes that could be shown as such.
        shown = content.data.cast("B") if content.size else b""
        tag: bytes = self._fingerprints.encrypt(bytes(12), b"", shown)
        return tag

    def gaussian(self, shape: tuple[int, ...], deviation: float, dtype: Any, label: bytes) -> Array:
        """Independent normal numbers of a standard deviation, by Box and Muller."""
        num_numbers = math.prod(shape)
        scratch, unit = self._whole_numbers(num_numbers, dtype, label)
        _, _, _, spread, radius, angle = scratch
        # Spread over (0, 1]; the half keeps them away from 0, whose logarithm is infinite.
        spread += dtype(0.5)
        radius *= dtype(unit)
        np.log(radius, out=radius)
        radius *= dtype(-2.0 * deviation * deviation)
        np.sqrt(radius, out=radius)
        angle *= dtype(2.0 * math.pi * unit)
        drawn = np.empty(spread.shape, dtype=dtype)
        np.cos(angle, out=drawn[0])
        np.sin(angle, out=drawn[1])
        drawn *= radius
        return _first(num_numbers, drawn).reshape(shape)

    def uniform(self, shape: tuple[int, ...], half_width: float, dtype: Any, label: bytes) -> Array:
        """Independent numbers spread evenly over ± ``half_width``."""
        num_numbers = math.prod(shape)
        scratch, unit = self._whole_numbers(num_numbers, dtype, label)
        drawn = scratch.spread * dtype(2.0 * half_width * unit)
        drawn -= dtype(half_width)
        return _first(num_numbers, drawn).reshape(shape)

    def _whole_numbers(self, count: int, dtype: Any, label: bytes) -> tuple[_Scratch, float]:
        """Whole numbers over their full range as ``spread``, and what makes that range one."""
        scratch = self._scratch.get((count, dtype))
        if scratch is None:
            if len(self._scratch) == _MOST_SIZES:
                self._scratch.clear()
            scratch = self._scratch[count, dtype] = _make_scratch(count, dtype)
        self.last = hashlib.blake2b(label, digest_size=16, key=self._labels).digest()
        self._stream.reset_nonce(self.last)
        self._stream.update_into(scratch.zeros, scratch.keystream)
        scratch.spread[...] = scratch.whole
        return scratch, 2.0 ** (-8 * scratch.whole.itemsize)


def _make_scratch(count: int, dtype: Any) -> _Scratch:
    kind = np.dtype(np.uint64 if dtype is np.float64 else np.uint32)
    num_pairs = -(-count // 2)
    num_bytes = 2 * num_pairs * kind.itemsize
    # The cipher wants room for a block more than it writes.
    keystream = bytearray(num_bytes + 16)
    whole = np.frombuffer(keystream, dtype=kind, count=2 * num_pairs).reshape(2, num_pairs)
    spread = np.empty((2, num_pairs), dtype=dtype)
    return _Scratch(memoryview(bytes(num_bytes)), keystream, whole, spread, spread[0], spread[1])


def _first(count: int, pairs: Array) -> Array:
    """So many numbers of two halves; an odd count leaves one over."""
    return pairs if count == pairs.size else pairs.reshape(-1)[:count]
