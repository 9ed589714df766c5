"""Networks, a loss and metrics that a caller of ``fit`` gives as functions, put into settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError
from colonnade.core.own_code import OwnCode
from colonnade.models import Factory, FactoryFusionSpec, FactoryHeadSpec, FactorySpec
from colonnade.run.spec import PartySpec, RunSpec

__all__ = ["Factories", "Loss", "Metric", "with_code"]

# One function for all parties, or one by party.
Factories: TypeAlias = Factory | Mapping[str, Factory]
# (outputs, targets) -> one loss per sample.
Loss: TypeAlias = Callable[[Any, Any], Any]
# (true labels, predicted labels) -> a number; more is better.
Metric: TypeAlias = Callable[[Any, Any], float]

_IMPORTED = 'name a class by its import path: encoder = {kind = "custom", module = "package:Class"}'
_BY_SETTINGS = "describe the network by its settings"


def with_code(
    spec: RunSpec,
    parties: Iterable[str],
    *,
    encoder: Factories | None = None,
    head: Factories | None = None,
    fusion: Factory | None = None,
    loss: Loss | str | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> RunSpec:
    """Settings with functions in them.

    Args:
        spec: The settings without; widths and how embeddings combine are theirs.
        parties: The names of the parties with blocks.
        encoder: Makes a party's encoder.
        head: Makes a party's head.
        fusion: Makes the network over the combined embeddings.
        loss: The loss of every sample, or the name of a loss.
        metrics: Metrics by name.

    Returns:
        The settings.

    Raises:
        ConfigError: One of them can't be called, is for a party that is not there, or for a network
            that the method does not have.
    """
    names = tuple(parties)
    for name, own in _by_party(encoder, "encoder", names, _IMPORTED).items():
        made = FactorySpec(factory=own, embedding=spec.encoder_of(name).embedding)
        spec = _of_party(spec, name, encoder=made)
    method = spec.method
    if head is not None and not method.needs.heads:
        raise ConfigError(
            f"head: parties have none under method '{method.info.name}'; leave it out"
        )
    for name, own in _by_party(head, "head", names, _BY_SETTINGS).items():
        spec = _of_party(spec, name, head=FactoryHeadSpec(factory=own))
    holder = spec.label_holder
    if fusion is not None:
        if not method.needs.fusion:
            raise ConfigError(f"fusion: method '{method.info.name}' has none; leave it out")
        own = OwnCode(function=fusion, setting="fusion", instead=_BY_SETTINGS)
        holder = replace(
            holder, fusion=FactoryFusionSpec(factory=own, combine=holder.fusion.combine)
        )
    if loss is not None:
        instead = "take one of the losses that label_holder.loss names"
        given = loss if isinstance(loss, str) else _own(loss, "loss", instead)
        holder = replace(holder, loss=given)
    found = {
        name: _own(item, f"metrics[{name!r}]", "measure it on the result's predictions")
        for name, item in (metrics or {}).items()
    }
    return replace(spec, label_holder=replace(holder, metrics=found))


def _own(function: Any, setting: str, instead: str) -> OwnCode:
    return OwnCode(function=function, setting=setting, instead=instead)


def _by_party(
    given: Factories | None, setting: str, names: tuple[str, ...], instead: str
) -> dict[str, OwnCode]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return {name: _own(given, setting, instead) for name in names}
    for name in given:
        if name not in names:
            raise ConfigError(f"{setting}: no party '{name}'{nearest(str(name), names)}")
    return {name: _own(item, f"{setting}[{name!r}]", instead) for name, item in given.items()}


def _of_party(spec: RunSpec, name: str, **own: Any) -> RunSpec:
    party = replace(spec.party.get(name, PartySpec()), **own)
    return replace(spec, party={**spec.party, name: party})
