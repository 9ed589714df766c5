"""A budget: how much a party's releases of one sample may amount to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from colonnade.core.errors import ConfigError

__all__ = ["Budget", "check_delta", "shown_budget"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much a party's releases of one sample may amount to.

    Args:
        epsilon: ε of differential privacy, for ``delta``; or give ``mu``.
        delta: The δ that goes with ε.
        mu: μ of Gaussian differential privacy.

    Raises:
        ConfigError: If both or neither of ε and μ are given, or a number is out of range.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    mu: float | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.mu is None):
            raise ConfigError("set either epsilon or mu")
        for name in ("epsilon", "mu"):
            value = getattr(self, name)
            if value is not None and (not value > 0 or not math.isfinite(value)):
                raise ConfigError(f"{name}: must be above 0, got {value}")
        check_delta(self.delta)


def shown_budget(budget: Budget) -> str:
    """A budget in a message."""
    if budget.mu is not None:
        return f"μ = {budget.mu:g}"
    return f"ε = {budget.epsilon:g} at δ = {budget.delta:g}"


def check_delta(delta: float) -> None:
    """Raise ConfigError unless δ is a probability above 0 and below 1."""
    if not 0 < delta < 1:
        raise ConfigError(f"delta: above 0 and below 1, got {delta}")
