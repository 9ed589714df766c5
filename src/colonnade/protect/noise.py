"""Noise from a party's own secret: a keystream turned into uniform and Gaussian numbers.

The run's seed is known to everybody, so nothing here depends on it. Every draw has a label of its
own. The label of a release holds the values that the noise will hide as well: if a party is put
back to an earlier state and made to encode something else under the same number, the noise is
another one, and the difference of two releases shows nothing. The same values under the same
number have the same noise, so a resumed run repeats what it sent before, bit for bit.
"""

from __future__ import annotations

import hmac
import math
from typing import Any, TypeAlias

import numpy as np

from colonnade.protect.extra import needed

__all__ = ["Array", "SecretNoise"]

_NUM_SECRET_BYTES = 32

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


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
        self._zeros = b""
        self._buffer = bytearray()

    def fingerprint(self, content: bytes) -> bytes:
        """A short value that two contents share with negligible probability; only for labels.

        GMAC under one nonce is a keyed universal hash, and fast. It never leaves this object but
        through the HMAC of a label.
        """
        tag: bytes = self._fingerprints.encrypt(bytes(12), b"", content)
        return tag

    def gaussian(self, shape: tuple[int, ...], deviation: float, dtype: Any, label: bytes) -> Array:
        """Independent normal numbers of a standard deviation, by Box and Muller."""
        num_numbers = math.prod(shape)
        num_pairs = -(-num_numbers // 2)
        raw, unit = self._whole_numbers(2 * num_pairs, dtype, label)
        # Spread over (0, 1]; the half keeps them away from 0, whose logarithm is infinite.
        radius = raw[:num_pairs].astype(dtype)
        radius += dtype(0.5)
        radius *= dtype(unit)
        np.log(radius, out=radius)
        radius *= dtype(-2.0 * deviation * deviation)
        np.sqrt(radius, out=radius)
        angle = raw[num_pairs:].astype(dtype)
        angle *= dtype(2.0 * math.pi * unit)
        drawn = np.empty(2 * num_pairs, dtype=dtype)
        np.cos(angle, out=drawn[:num_pairs])
        np.sin(angle, out=drawn[num_pairs:])
        drawn[:num_pairs] *= radius
        drawn[num_pairs:] *= radius
        return drawn[:num_numbers].reshape(shape)

    def uniform(self, shape: tuple[int, ...], half_width: float, dtype: Any, label: bytes) -> Array:
        """Independent numbers spread evenly over ± ``half_width``."""
        raw, unit = self._whole_numbers(math.prod(shape), dtype, label)
        drawn = raw.astype(dtype)
        drawn *= dtype(2.0 * half_width * unit)
        drawn -= dtype(half_width)
        return drawn.reshape(shape)

    def _whole_numbers(self, count: int, dtype: Any, label: bytes) -> tuple[Array, float]:
        """Whole numbers over their full range, and what makes that range one."""
        kind = np.uint64 if dtype is np.float64 else np.uint32
        size = np.dtype(kind).itemsize
        self._stream.reset_nonce(hmac.digest(self._labels, label, "sha256")[:16])
        num_bytes = count * size
        if len(self._zeros) < num_bytes:
            self._zeros = bytes(num_bytes)
            self._buffer = bytearray(num_bytes + 16)
        self._stream.update_into(memoryview(self._zeros)[:num_bytes], self._buffer)
        return np.frombuffer(self._buffer, dtype=kind, count=count), 2.0 ** (-8 * size)
