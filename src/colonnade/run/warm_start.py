"""A run that starts from an earlier one's weights, so that a party can join what is trained.

Parties of the earlier run keep their preparation and their weights and go on, or are frozen; a
party that it did not have begins anew. What the others could do without it is measured before and
after, on the same samples, against a stated bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError
from colonnade.core.federation import Federation
from colonnade.core.party import Party
from colonnade.methods import METHODS
from colonnade.quality.evaluation import evaluate
from colonnade.run.assembly import Blueprint, TrainingData
from colonnade.run.blueprint_files import read_blueprint
from colonnade.run.directory import local_parties
from colonnade.run.samples import Arrangement
from colonnade.run.spec import RunSpec
from colonnade.run.storage import finite, party_directory, read_json, read_state, write_json

__all__ = ["Earlier", "Joining", "freeze", "joining_of", "seen_by"]

_BEFORE = Path("label_holder") / "start.json"
_WITHOUT = "without those who joined"
_BatchNorm = torch.nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """A trained federation in memory: its blueprint, and everybody's weights by name."""

    blueprint: Blueprint
    fusion: Mapping[str, Any]
    parties: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Joining:
    """Whose weights go on and who is new."""

    # Where the earlier run is; none if it is in memory.
    run: Path | None
    before: Blueprint
    earlier: Earlier | None = None
    stay: tuple[str, ...]
    joined: tuple[str, ...]
    # Whether the earlier run may have trained on what this one holds out.
    parts_differ: bool

    def inherit(self, blueprint: Blueprint) -> Blueprint:
        """The blueprint with the earlier run's statistics and classes, which its weights expect."""
        if blueprint.task.kind != self.before.task.kind:
            raise ConfigError(
                f"{self.said}: it was trained for a {self.before.task.kind} target, this is "
                f"{blueprint.task.kind}"
            )
        known = self.before.preparations
        # A party elsewhere has kept its own.
        kept = {name: known[name] for name in self.stay if name in known}
        preparations = {**blueprint.preparations, **kept}
        return replace(blueprint, task=self.before.task, preparations=preparations)

    @property
    def said(self) -> str:
        """What named the earlier run."""
        return "start.run" if self.earlier is None else "warm_start"

    def give_weights(self, federation: Federation, here: Mapping[str, Party] | None = None) -> None:
        """Put the earlier run's weights where they belong; optimizers begin anew.

        ``here`` are the parties in this process; all of them if not given.
        """
        parties = local_parties(federation) if here is None else here
        names = [name for name in self.stay if name in parties]
        before = self.earlier or _kept(self.run, self.before, names)
        _load(federation.holder.fusion, before.fusion, "the fusion", self.said)
        for name in names:
            _load(parties[name].model, before.parties[name], f"party '{name}'", self.said)

    def begin(
        self,
        federation: Federation,
        blueprint: Blueprint,
        data: TrainingData,
        spec: RunSpec,
        directory: Path | None = None,
    ) -> dict[str, Any]:
        """Give the weights, and note how good the old sets are before anything is trained."""
        self.give_weights(federation)
        before = self.quality(federation, blueprint, data)
        if directory is not None:
            write_json(directory / _BEFORE, finite(before))
        return before

    def recall(self, directory: Path) -> dict[str, Any]:
        """What ``begin`` noted, for a run that goes on."""
        before: dict[str, Any] = read_json(directory / _BEFORE)
        return before

    def quality(
        self, federation: Federation, blueprint: Blueprint, data: TrainingData
    ) -> dict[str, Any]:
        """The quality of the old sets: of held-out samples, as if nobody had joined."""
        part = "test" if "test" in data.labels else "validation"
        name = federation.holder.task.quality_name
        if part not in data.labels or not self.joined:
            return {}
        seen, _ = blueprint.other_parts(seen_by(data, part, self.stay))
        return {"part": part, "quality": evaluate(federation.over(seen), _WITHOUT)[name]}

    def summary(
        self, spec: RunSpec, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What the run's summary says of it."""
        said: dict[str, Any] = {
            "run": None if self.run is None else str(self.run),
            "stayed": list(self.stay),
            "joined": list(self.joined),
            "frozen": [*spec.start.freeze, *(["fusion"] if spec.start.freeze_fusion else [])],
            "bound": spec.start.bound,
        }
        if not before or not after:
            return said
        fall = before["quality"] - after["quality"]
        return {
            **said,
            "part": before["part"],
            "quality_before": before["quality"],
            "quality_after": after["quality"],
            "fall": fall,
            "within_bound": fall <= spec.start.bound,
        }

    def warnings(self, said: Mapping[str, Any]) -> tuple[str, ...]:
        """A bound that was not kept, and parts that are not the earlier run's."""
        found = []
        if said.get("within_bound") is False:
            found.append(
                f"without {', '.join(self.joined)} the quality on the {said['part']} part fell by "
                f"{said['fall']:.4f} to {said['quality_after']:.4f}, more than start.bound = "
                f"{said['bound']:g}; freeze the others (start.freeze), or lower their learning "
                "rates"
            )
        if self.parts_differ:
            found.append(
                "seed, split or samples are not those of the run that this one started from: it "
                "may have trained on samples that are held out here, so the quality before may be "
                "too high"
            )
        return tuple(found)


def _kept(run: Path | None, blueprint: Blueprint, names: Iterable[str]) -> Earlier:
    """The weights that a run directory holds of these parties."""
    assert run is not None
    tag = read_json(run / "checkpoint.json")["model"]
    holder = read_state(run / "label_holder" / f"{tag}.safetensors")
    return Earlier(
        blueprint=blueprint,
        fusion=holder["federation"]["holder"]["fusion"],
        parties={
            name: read_state(party_directory(run, name) / f"{tag}.safetensors")["model"]
            for name in names
        },
    )


def joining_of(
    spec: RunSpec,
    blueprint: Blueprint,
    arrangement: Arrangement | None,
    earlier: Earlier | None = None,
) -> Joining | None:
    """How a run starts from an earlier one, if it does; what does not fit is refused.

    Between organisations nobody has the whole ``arrangement``: then it is None. ``earlier`` is a
    trained federation in memory.
    """
    run = spec.start.run
    if run is None and earlier is None:
        return None
    if run is not None and earlier is not None:
        raise ConfigError("warm_start: start.run names an earlier run already; leave one out")
    said = "start.run" if earlier is None else "warm_start"
    before = earlier.blueprint if run is None else read_blueprint(run)  # type: ignore[union-attr]
    if before.spec.method.info.name != spec.method.info.name:
        raise ConfigError(
            f"{said}: trained with '{before.spec.method.info.name}', this run is "
            f"'{spec.method.info.name}'; use the same method"
        )
    stay = tuple(name for name in blueprint.participants if name in before.participants)
    joined = tuple(name for name in blueprint.participants if name not in stay)
    if not stay:
        raise ConfigError(f"{said}: none of its parties is in this run; leave it out")
    if joined and not spec.method.info.tolerates_missing:
        tolerant = [name for name, item in METHODS.items() if item.info.tolerates_missing]
        raise ConfigError(
            f"{said}: '{', '.join(joined)}' can't join under method '{spec.method.info.name}', "
            f"whose network has a fixed set of parties; methods that can: {', '.join(tolerant)}"
        )
    for name in spec.start.freeze:
        if name not in stay:
            raise ConfigError(f"start.freeze: '{name}' is no party that stays{nearest(name, stay)}")
    return Joining(
        run=run,
        before=before,
        earlier=earlier,
        stay=stay,
        joined=joined,
        parts_differ=arrangement is not None and _parts_differ(spec, before, arrangement, stay),
    )


def freeze(federation: Federation, spec: RunSpec) -> None:
    """Let frozen networks stay as they are: a learning rate of zero, statistics that don't move."""
    parties = local_parties(federation) if spec.start.freeze else {}
    frozen: list[tuple[nn.Module, torch.optim.Optimizer]] = [
        (parties[name].model, parties[name].optimizer) for name in spec.start.freeze
    ]
    if spec.start.freeze_fusion:
        frozen.append((federation.holder.fusion, federation.holder.optimizer))
    for model, optimizer in frozen:
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.momentum = 0.0


def seen_by(data: TrainingData, part: str, names: Collection[str]) -> TrainingData:
    """A part as if only these parties were there; samples that none of them has are left out."""
    roll = data.roll
    there = np.array([name in names for name in roll.names])
    table = roll.presence[part] & there
    kept = table.any(axis=1)
    return replace(
        data,
        labels={_WITHOUT: data.labels[part][kept]},
        roll=replace(
            roll, samples={_WITHOUT: roll.samples[part][kept]}, presence={_WITHOUT: table[kept]}
        ),
    )


def _load(model: nn.Module, state: Mapping[str, Any], whose: str, said: str) -> None:
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise ConfigError(
            f"{said}: the weights of {whose} don't fit its network here ({first}); use the "
            'same encoder and head, and a fusion with combine = "mean" if parties join'
        ) from error


def _parts_differ(
    spec: RunSpec, before: Blueprint, arrangement: Arrangement, stay: tuple[str, ...]
) -> bool:
    """Whether a sample may be in another part than it was: other seed, split or samples."""
    if spec.seed != before.spec.seed or spec.data.split != before.spec.data.split:
        return True
    if before.num_rows["labels"] != arrangement.num_rows["labels"]:
        return True
    # Samples are numbered, and so split, over those that somebody has; nobody new may add any.
    alone = sum((arrangement.rows[name] >= 0 for name in stay[1:]), arrangement.rows[stay[0]] >= 0)
    return bool((~alone.astype(bool)).any())
