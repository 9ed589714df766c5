"""What stands at a door: protections by kind, accounting, ledger and policy.

To add a protection: its file, one line below, its docs page; or ``register`` one of your own.
Blinding, perturbation and accounting need ``colonnade[protect]``; ledger, policy and compression
need nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from colonnade.core.errors import ConfigError
from colonnade.core.protection import Leaving, Protection
from colonnade.core.releases import Kind
from colonnade.protect.blind import Blind, Fixed
from colonnade.protect.budget import Budget
from colonnade.protect.compress import Quantize, RandomK, TopK
from colonnade.protect.perturb import Perturb
from colonnade.protect.private_steps import PrivateSteps
from colonnade.protect.protection_spec import Place, ProtectionSpec, Setting

__all__ = [
    "PROTECTIONS",
    "Blind",
    "Budget",
    "Fixed",
    "Kind",
    "Leaving",
    "Perturb",
    "Place",
    "PrivateSteps",
    "Protection",
    "ProtectionSpec",
    "Quantize",
    "RandomK",
    "Setting",
    "TopK",
    "register",
]

P = TypeVar("P", bound=type[ProtectionSpec])

_PROTECTIONS: dict[str, type[ProtectionSpec]] = {
    spec.kind: spec for spec in (Perturb, PrivateSteps, Blind, Fixed, TopK, RandomK, Quantize)
}

PROTECTIONS: Mapping[str, type[ProtectionSpec]] = MappingProxyType(_PROTECTIONS)


def register(spec: P) -> P:
    """Make a protection of one's own known by its kind, in this process: a decorator.

    Args:
        spec: A frozen dataclass of its settings.

    Returns:
        The same class.

    Raises:
        ConfigError: If another protection has that kind.
    """
    known = _PROTECTIONS.get(spec.kind)
    if known is not None and (known.__module__, known.__qualname__) != (
        spec.__module__,
        spec.__qualname__,
    ):
        raise ConfigError(f"protection '{spec.kind}': there is another one; choose another kind")
    _PROTECTIONS[spec.kind] = spec
    return spec
