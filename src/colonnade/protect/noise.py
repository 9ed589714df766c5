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

import torch
from torch import Tensor

from colonnade.protect.extra import needed

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
        self._zeros = b""
        self._buffer = bytearray()

    def gaussian(self, like: Tensor, deviation: float, label: bytes) -> Tensor:
        """Independent normal numbers of a standard deviation, by Box and Muller."""
        num_pairs = -(-like.numel() // 2)
        raw, unit = self._whole_numbers(2 * num_pairs, like.dtype, label)
        # The sign bit would make them negative; without it they are spread over (0, 1].
        largest = torch.iinfo(raw.dtype).max
        shares = (raw[:num_pairs] & largest).to(like.dtype).add_(0.5).mul_(unit)
        radius = shares.log_().mul_(-2.0 * deviation * deviation).sqrt_()
        angle = raw[num_pairs:].to(like.dtype).mul_(math.pi * unit)
        drawn = torch.cat((torch.cos(angle).mul_(radius), angle.sin_().mul_(radius)))
        return drawn[: like.numel()].view(like.shape)

    def uniform(self, like: Tensor, half_width: float, label: bytes) -> Tensor:
        """Independent numbers spread evenly over ± ``half_width``."""
        raw, unit = self._whole_numbers(like.numel(), like.dtype, label)
        return raw.to(like.dtype).mul_(half_width * unit).view(like.shape)

    def _whole_numbers(self, count: int, dtype: torch.dtype, label: bytes) -> tuple[Tensor, float]:
        """Signed whole numbers over their full range, and what makes that range ± 1."""
        kind, size, unit = (
            (torch.int64, 8, 2.0**-63) if dtype == torch.float64 else (torch.int32, 4, 2.0**-31)
        )
        self._stream.reset_nonce(hmac.digest(self._labels, label, "sha256")[:16])
        num_bytes = count * size
        if len(self._zeros) < num_bytes:
            self._zeros = bytes(num_bytes)
            self._buffer = bytearray(num_bytes + 16)
        self._stream.update_into(memoryview(self._zeros)[:num_bytes], self._buffer)
        return torch.frombuffer(self._buffer, dtype=kind, count=count), unit
