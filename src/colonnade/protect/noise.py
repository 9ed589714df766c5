"""Noise from a party's own secret: a keystream turned into whole numbers of a rounded Gaussian.

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

import numpy as np

from colonnade.protect.extra import needed
from colonnade.protect.rounded_gaussian import Array, rounded_gaussian

__all__ = ["SecretNoise"]

_NUM_SECRET_BYTES = 32


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

    def whole_numbers(self, shape: tuple[int, ...], label: bytes) -> Array:
        """Independent draws of the rounded Gaussian, ``STEPS`` to a deviation (int16)."""
        self.last = hashlib.blake2b(label, digest_size=16, key=self._labels).digest()
        self._stream.reset_nonce(self.last)
        first = np.frombuffer(self._next(2 * math.prod(shape)), dtype="<u2")
        return rounded_gaussian(first, self._next).reshape(shape)

    def _next(self, num_bytes: int) -> bytes:
        """The next bytes of the keystream."""
        found: bytes = self._stream.update(bytes(num_bytes))
        return found
