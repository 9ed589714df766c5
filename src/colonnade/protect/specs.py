"""Settings of protections: what a party's ``protect`` list may hold."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from colonnade.core.errors import ConfigError

__all__ = [
    "PROTECTIONS",
    "Blind",
    "Budget",
    "Compression",
    "Fixed",
    "Perturb",
    "ProtectionSpec",
    "Quantize",
    "RandomK",
    "Ring",
    "TopK",
]


class ProtectionSpec(ABC):
    """A protection's settings."""

    kind: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class Perturb(ProtectionSpec):
    """Noise inside the encoder (VAFL, section 4): Gaussian at its output, uniform before.

    A sample's output before the last activation is clipped to norm ``clip``; the Gaussian's
    standard deviation is ``noise`` times ``clip``. ``inner`` is the standard deviation of the
    uniform noise in every earlier layer. ε is reported for ``delta``.
    """

    kind: ClassVar[str] = "perturb"

    noise: float
    clip: float = 1.0
    inner: float = 0.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("noise", "clip"):
            _check_above_zero(name, getattr(self, name))
        if not self.inner >= 0 or not math.isfinite(self.inner):
            raise ConfigError(f"inner: 0 or more, got {self.inner}")
        _check_delta(self.delta)


@dataclass(frozen=True, kw_only=True)
class Ring(ProtectionSpec):
    """Whole numbers modulo a power of two: values are clipped to ±``range`` and rounded."""

    range: float = 64.0
    fraction_bits: int = 20
    ring_bits: Literal[32, 64] = 32

    def __post_init__(self) -> None:
        _check_above_zero("range", self.range)
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


@dataclass(frozen=True, kw_only=True)
class Fixed(Ring):
    """Fixed-point numbers and nothing more: what blinding is compared with."""

    kind: ClassVar[str] = "fixed"


@dataclass(frozen=True, kw_only=True)
class Blind(Ring):
    """Masks that cancel in the sum over parties: the label holder sees sums alone.

    ``least`` is how many blinded parties a sum must have.
    """

    kind: ClassVar[str] = "blind"

    least: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least < 2:
            raise ConfigError(
                f"least: at least 2, got {self.least}; one party's sum is its embedding"
            )


class Compression(ProtectionSpec):
    """Fewer bytes: what crosses is packed, and unpacked at the label holder."""

    feedback: bool


@dataclass(frozen=True, kw_only=True)
class TopK(Compression):
    """Only the share ``keep`` of each sample's values with the largest size; the rest is 0.

    With ``feedback`` what was left out is added the next time that the sample is sent.
    """

    kind: ClassVar[str] = "top_k"

    keep: float
    feedback: bool = False

    def __post_init__(self) -> None:
        _check_share("keep", self.keep)


@dataclass(frozen=True, kw_only=True)
class RandomK(Compression):
    """A random share ``keep`` of each batch's columns, scaled so that the mean is right."""

    kind: ClassVar[str] = "random_k"

    keep: float
    feedback: bool = False

    def __post_init__(self) -> None:
        _check_share("keep", self.keep)


@dataclass(frozen=True, kw_only=True)
class Quantize(Compression):
    """``bits`` per value: 2^bits levels between a sample's least and largest value.

    Rounding is up or down at random, so that it is right on average.
    """

    kind: ClassVar[str] = "quantize"

    bits: int
    feedback: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (1, 2, 4, 8):
            raise ConfigError(f"bits: 1, 2, 4 or 8, got {self.bits}")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much a party's releases of one sample may amount to: ``epsilon`` at ``delta``, or ``mu``.

    ``mu`` is that of Gaussian differential privacy.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    mu: float | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.mu is None):
            raise ConfigError("set either epsilon or mu")
        for name in ("epsilon", "mu"):
            value = getattr(self, name)
            if value is not None:
                _check_above_zero(name, value)
        _check_delta(self.delta)


def _check_above_zero(name: str, value: float) -> None:
    if not value > 0 or not math.isfinite(value):
        raise ConfigError(f"{name}: must be above 0, got {value}")


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"{name}: a share above 0 and at most 1, got {value}")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(f"delta: above 0 and below 1, got {delta}")


PROTECTIONS: Mapping[str, type[ProtectionSpec]] = {
    spec.kind: spec for spec in (Perturb, Blind, Fixed, TopK, RandomK, Quantize)
}
