"""Methods by name. To add one: its file here, one line below, its docs page, its experiment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from colonnade.core.errors import ConfigError
from colonnade.core.method import Method
from colonnade.methods.aggvfl import AggVFL
from colonnade.methods.alone import Alone
from colonnade.methods.asynchronous import Asynchronous
from colonnade.methods.centralized import Centralized
from colonnade.methods.combinatorial import Combinatorial
from colonnade.methods.cvfl import CVFL
from colonnade.methods.easter import Easter
from colonnade.methods.ensemble import Ensemble
from colonnade.methods.fedbcd import FedBCD
from colonnade.methods.flex import PBCD, AdaptiveFlex, Flex, SyncVFL
from colonnade.methods.laser import Laser
from colonnade.methods.local import Local
from colonnade.methods.plug import Plug
from colonnade.methods.splitnn import SplitNN
from colonnade.methods.standard import Standard
from colonnade.methods.vafl import VAFL
from colonnade.methods.vfedtrans import VFedTrans

__all__ = ["METHODS", "register"]

M = TypeVar("M", bound=type[Method])

_METHODS: dict[str, type[Method]] = {
    method.info.name: method
    for method in (
        SplitNN,
        FedBCD,
        CVFL,
        Asynchronous,
        VAFL,
        PBCD,
        SyncVFL,
        Flex,
        AdaptiveFlex,
        Laser,
        Local,
        Standard,
        Ensemble,
        Combinatorial,
        Plug,
        VFedTrans,
        Easter,
        AggVFL,
        Alone,
        Centralized,
    )
}

METHODS: Mapping[str, type[Method]] = MappingProxyType(_METHODS)


def register(method: M) -> M:
    """Make a method of one's own known by its name, in this process: a decorator of its class.

    The same class again, as when a notebook's cell runs a second time, takes its own place.

    Args:
        method: A frozen dataclass with ``info``, ``party``, ``exchange`` and ``predict``.

    Returns:
        The same class.

    Raises:
        ConfigError: If something is missing, or another method has that name.
    """
    shown = f"method '{method.__qualname__}'"
    # Its own: a parent's decorator does not see the settings of its children.
    is_dataclass = "__dataclass_params__" in vars(method)
    absent = sorted(method.__abstractmethods__)
    if absent:
        raise ConfigError(f"{shown}: it has no {', '.join(absent)} of its own")
    if not is_dataclass:
        raise ConfigError(
            f"{shown}: not a dataclass of its own; put @register above "
            "@dataclass(frozen=True, kw_only=True)"
        )
    for needed in ("info", "party"):
        if not hasattr(method, needed):
            raise ConfigError(f"{shown}: it has no '{needed}'")
    name = method.info.name
    known = _METHODS.get(name)
    if known is not None and _place_of(known) != _place_of(method):
        raise ConfigError(
            f"{shown}: there is another '{name}' already, in {known.__module__}; choose another "
            "info.name"
        )
    _METHODS[name] = method
    return method


def _place_of(method: type[Method]) -> tuple[str, str]:
    return method.__module__, method.__qualname__
