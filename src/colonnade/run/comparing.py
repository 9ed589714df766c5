"""A run's result card: a guess, the label holder alone, and all together, on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from colonnade.core.federation import Federation, LoopState
from colonnade.fabrics import InProcessSpec
from colonnade.methods.alone import Alone
from colonnade.quality.evaluation import evaluate
from colonnade.quality.headline import headline_of
from colonnade.quality.result_card import CardRow, ResultCard, card_row, guess_row
from colonnade.run.assembly import Blueprint, TrainingData
from colonnade.run.directory import local_parties
from colonnade.run.records import MemoryRecords, settle_in
from colonnade.run.samples import Roll
from colonnade.run.spec import PartySpec

__all__ = ["card_maker", "epochs_of"]


def card_maker(
    blueprint: Blueprint,
    data: TrainingData,
    federation: Federation,
    quality: Mapping[str, Mapping[str, float]],
    first: tuple[Blueprint, TrainingData] | None = None,
) -> Callable[[bool], ResultCard | None]:
    """A function that makes the card; with ``alone``, it trains the label holder by itself.

    Where a ``first`` training found the length of this one, the label holder alone has a first one
    too.
    """

    def make(alone: bool) -> ResultCard | None:
        parts = [part for part in ("test", "validation") if part in data.labels]
        if not parts:
            return None
        part = parts[0]
        values, task = data.labels[part], blueprint.task
        metric = headline_of(task, values, blueprint.spec.stop.metric)
        holder = blueprint.label_holder
        rows = [guess_row(metric, task, data.labels["train"], values)]
        note = _why_not_alone(blueprint, data)
        if alone and not note:
            outputs = _outputs(_trained_alone(blueprint, data, first), part)
            rows.append(card_row(f"{holder} alone", metric, task, outputs, values))
        name = blueprint.spec.method.info.name
        who = f"together ({name})" if len(blueprint.owners) > 1 else name
        if _is_protected(blueprint):
            # Predicting once more would release once more: the number is known from training.
            value = quality.get(part, {}).get(metric, float("nan"))
            rows.append(CardRow(who=who, value=value, low=float("nan"), high=float("nan")))
        else:
            rows.append(card_row(who, metric, task, _outputs(federation, part), values))
        return ResultCard(
            metric=metric, part=part, num_samples=len(values), rows=tuple(rows), note=note
        )

    return make


def _is_protected(blueprint: Blueprint) -> bool:
    spec = blueprint.spec
    guarded = any(item.policy is not None for item in spec.party.values())
    names = blueprint.participants
    return guarded or any(spec.protect_of(name, blueprint.label_holder) for name in names)


def _outputs(federation: Federation, part: str) -> Tensor:
    return federation.predictions(part, federation.holder.parts[part].plan).outputs


def _why_not_alone(blueprint: Blueprint, data: TrainingData) -> str:
    holder = blueprint.label_holder
    if blueprint.pooled is not None or blueprint.owners == (holder,):
        return "no row for the label holder alone: this is no federation"
    if holder not in data.features:
        return f"no row for '{holder}' alone: it has no columns of its own"
    place = data.roll.names.index(holder)
    if not all(table[:, place].all() for table in data.roll.presence.values()):
        return f"no row for '{holder}' alone: it does not have every sample"
    return ""


@torch.inference_mode(False)
@torch.enable_grad()
def _trained_alone(
    blueprint: Blueprint, data: TrainingData, first: tuple[Blueprint, TrainingData] | None
) -> Federation:
    """The label holder's own columns, the same samples, settings and seed, and nobody else."""
    if first is None:
        return _train_alone(blueprint, data)[0]
    federation, loop = _train_alone(*first)
    length = epochs_of(loop.best_exchange or loop.exchange, federation.exchanges_per_epoch)
    spec = replace(blueprint.spec, stop=replace(blueprint.spec.stop, epochs=length))
    return _train_alone(replace(blueprint, spec=spec), data)[0]


def epochs_of(num_exchanges: int, per_epoch: int) -> int:
    """So many exchanges as whole epochs, one at least."""
    return max(1, round(num_exchanges / per_epoch))


def _train_alone(blueprint: Blueprint, data: TrainingData) -> tuple[Federation, LoopState]:
    holder, spec = blueprint.label_holder, blueprint.spec
    own = replace(spec.party.get(holder, PartySpec()), protect=None, policy=None)
    spec = replace(
        spec,
        method=Alone(),
        party={holder: own},
        defaults=replace(spec.defaults, protect=()),
        label_holder=replace(spec.label_holder, protect=()),
        fabric=InProcessSpec(),
    )
    place = data.roll.names.index(holder)
    roll = Roll(
        names=(holder,),
        samples=data.roll.samples,
        presence={part: table[:, [place]] for part, table in data.roll.presence.items()},
    )
    alone = replace(
        blueprint, spec=spec, preparations={holder: blueprint.preparations[holder]}, left=()
    )
    shared = TrainingData(
        features={holder: data.features[holder]},
        rows={holder: data.rows[holder]},
        labels=data.labels,
        weights=data.weights,
        roll=roll,
    )
    federation = alone.build(shared)
    records = MemoryRecords()
    settle_in(federation, records, local_parties(federation))
    loop = LoopState()
    for event in federation.train(spec.stop, loop, evaluate):
        if event.is_best and spec.stop.patience is not None:
            records.checkpoint(federation, loop)
    if spec.stop.patience is not None and loop.best_exchange not in (0, loop.exchange):
        records.end_with(federation, loop.best_exchange)
    return federation, loop
