"""A run between organisations as the label holder has it: samples, data, settings for parties."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import ConfigError
from colonnade.core.numerics import NUMERICS
from colonnade.data.table_files import CsvSpec
from colonnade.federate.alignment import HolderTable, Samples, known_samples
from colonnade.federate.alignments import named_alignment
from colonnade.run.assembly import Blueprint, TrainingData
from colonnade.run.fitting import blueprint_of
from colonnade.run.party_building import make_plans
from colonnade.run.refit import refuse_refit
from colonnade.run.samples import Roll, draw_roll, narrowed, usable_samples
from colonnade.run.spec import DataSpec, LabelHolderSpec, PartySpec, RunSpec, plain_spec
from colonnade.run.storage import read_json
from colonnade.run.warm_start import Joining, joining_of

__all__ = ["Parent", "RemoteRun", "parent_of", "settings_for"]


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The earlier run whose weights a run starts from: its name at the parties, and the tag."""

    joining: Joining
    name: str
    tag: str


def parent_of(spec: RunSpec, blueprint: Blueprint) -> Parent | None:
    """The run between organisations that ``start.run`` names; None if it names none."""
    joining = joining_of(spec, blueprint, None)
    if joining is None or joining.run is None:
        return None
    run = joining.run
    if not joining.before.elsewhere or not (run / "run_name").exists():
        raise ConfigError(
            f"start.run: the parties of {run} are in one process; between organisations a "
            "run starts from one that was trained there"
        )
    if spec.start.freeze:
        raise ConfigError(
            "start.freeze: between organisations a party decides itself whether it learns; leave "
            "it out (freeze_fusion works)"
        )
    return Parent(
        joining=joining,
        name=(run / "run_name").read_text(encoding="ascii").strip(),
        tag=str(read_json(run / "checkpoint.json")["model"]),
    )


def _doubts(parent: Parent | None, spec: RunSpec, alignment: str) -> tuple[str, ...]:
    """Parts that are not the earlier run's: numbers of samples, and so the draw, are others."""
    if parent is None or parent.joining.run is None:
        return ()
    run, before = parent.joining.run, parent.joining.before.spec
    drawn_before = (named_alignment(run), before.seed, before.data.split)
    if drawn_before == (alignment, spec.seed, spec.data.split):
        return ()
    return (
        f"start.run: ids were aligned anew, or seed or split are others, since '{run.name}'; it "
        "may have learned from samples that are held out here: quality here may be too high",
    )


@dataclass(frozen=True, kw_only=True)
class RemoteRun:
    """Everything that the label holder has of a run: its own data, the roll, the blueprint."""

    name: str
    holder: HolderTable
    samples: Samples
    # In positions among the samples of this run, as in one process.
    roll: Roll
    data: TrainingData
    plans: Mapping[str, BatchPlan]
    blueprint: Blueprint
    parent: Parent | None = None

    @classmethod
    def prepare(
        cls,
        spec: RunSpec,
        holder: HolderTable,
        away: tuple[str, ...],
        alignment: Path,
        name: str,
    ) -> RemoteRun:
        """Split the samples and fit what the label holder fits."""
        refuse_refit(spec, "between organisations every party would release its samples twice")
        spec = replace(spec, stop=replace(spec.stop, refit=False))
        taking_part = away if holder.block is None else (*away, holder.name)
        owners = spec.method.participants(tuple(sorted(taking_part)), holder.name)
        samples = known_samples(holder, owners, alignment)
        kept = usable_samples(spec, owners, samples.table)
        samples = replace(
            samples,
            numbers=samples.numbers[kept],
            rows=samples.rows[kept],
            table=samples.table[kept],
        )
        weights, times = (None if item is None else item[samples.rows] for item in holder.beside)
        values = holder.labels[samples.rows]
        roll = draw_roll(spec, owners, samples.table, values, times=times)
        # The label holder's own block, where it has one, is the only one that is here.
        own = {}
        if holder.block is not None and holder.name in owners:
            own = {holder.name: narrowed(holder.block, samples.rows)}
        blocks = {owner: block for owner, (block, _) in own.items()}
        rows = {owner: found for owner, (_, found) in own.items()}
        blueprint = blueprint_of(
            spec,
            label_holder=holder.name,
            label_name=holder.label_name,
            values=values,
            weights=weights,
            kind=None,
            roll=roll,
            num_rows={"labels": holder.ids.num_rows, **dict.fromkeys(own, holder.ids.num_rows)},
            blocks=blocks,
            rows=rows,
            elsewhere=tuple(owner for owner in owners if owner != holder.name),
        )
        parent = parent_of(spec, blueprint)
        if parent is not None:
            blueprint = parent.joining.inherit(blueprint)
        data = TrainingData(
            features=blueprint.features(blocks),
            rows=rows,
            labels={part: values[numbers] for part, numbers in roll.samples.items()},
            weights=roll.weights(weights),
            roll=roll,
            alignment=samples.digest,
            doubts=_doubts(parent, spec, samples.digest),
        )
        return cls(
            name=name,
            holder=holder,
            samples=samples,
            roll=roll,
            data=data,
            plans=make_plans(spec, roll, holder.name),
            blueprint=blueprint,
            parent=parent,
        )

    def settings_for(self, party: str) -> str:
        """What a party must know to make its half."""
        return settings_for(self.blueprint.spec, party, self.roll.names, self.parent)

    def roll_call(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The roll in the alignment's numbers, which every party knows."""
        samples = {
            part: torch.from_numpy(self.samples.numbers[numbers])
            for part, numbers in self.roll.samples.items()
        }
        presence = {part: torch.from_numpy(table) for part, table in self.roll.presence.items()}
        return samples, presence


def settings_for(
    spec: RunSpec, party: str, names: tuple[str, ...], parent: Parent | None = None
) -> str:
    """What a party must know to make its half: no file, no label, nobody else's settings."""
    own = replace(spec.party.get(party, PartySpec()), file=None, id=None, csv=None, policy=None)
    data = DataSpec(
        split=replace(spec.data.split, time=None),  # a column of the label holder's
        batch_size=spec.data.batch_size,
        presence=spec.data.presence,
        incomplete=spec.data.incomplete,
    )
    agreed = RunSpec(
        method=spec.method,
        data=data,
        label_holder=LabelHolderSpec(
            name=spec.label_holder.name,
            fusion=spec.label_holder.fusion,
            protect=spec.label_holder.protect,
        ),
        party={party: own},
        defaults=replace(spec.defaults, csv=CsvSpec()),
        stop=replace(spec.stop, refit=False),
        dtype=spec.dtype,
        threads=spec.threads,
        seed=spec.seed,
    )
    further: dict[str, Any] = {"names": list(names), "numerics": NUMERICS}
    if parent is not None and party in parent.joining.stay:
        further["parent"] = {"run": parent.name, "tag": parent.tag}
    plain = plain_spec(agreed)
    for own_affair in ("device", "precision"):
        plain.pop(own_affair)  # each machine's own, in its party.toml
    return json.dumps({**plain, **further})
