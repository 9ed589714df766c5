"""From blocks and settings to a federation that is ready to train."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.batches import BatchPlan
from colonnade.core.devices import place
from colonnade.core.errors import ConfigError
from colonnade.core.fabric import Fabric
from colonnade.core.federation import Federation, OtherParts
from colonnade.core.label_holder import LabelHolder, LabelPart
from colonnade.core.party import Party
from colonnade.core.presence import Presence
from colonnade.core.replica import Replica
from colonnade.core.respondent import Agreed
from colonnade.core.seeds import derive_seed, drawing_from
from colonnade.core.task import Task
from colonnade.data.association import Association
from colonnade.data.blocks import Block
from colonnade.data.datasets import load_cpu_trace
from colonnade.data.pooling import PooledBlock, PooledPreparation
from colonnade.fabrics import FabricSpec, SimulatedSpec
from colonnade.fabrics.simulated import with_traces
from colonnade.models import MLPSpec, NoFusion, SetFusions, is_deterministic
from colonnade.parts.party_sets import members
from colonnade.run.door_building import Doors
from colonnade.run.party_building import (
    Fitted,
    OwnData,
    build_party,
    make_parts,
    make_plans,
    num_exchanges,
    rows_at_once,
    set_purpose,
)
from colonnade.run.run_account import people_of_blocks
from colonnade.run.samples import Arrangement, Roll, Rows
from colonnade.run.spec import PartySpec, RunSpec

__all__ = ["NEW", "NO_DATA", "Blueprint", "TrainingData"]

# The part of samples that come to be predicted.
NEW = "new"


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Prepared features, the row of every sample in them, labels by part, and the roll."""

    features: Mapping[str, Tensor]
    rows: Mapping[str, Rows]
    labels: Mapping[str, np.ndarray[Any, Any]]
    roll: Roll
    # What samples count in the loss, by part, if not all alike; 1 on the average in training.
    weights: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    associations: tuple[Association, ...] = ()
    # The digest of the alignment between organisations that found the samples.
    alignment: str | None = None
    # The person of every row, of parties that keep account of people.
    people: Mapping[str, Tensor] = field(default_factory=dict)
    # Doubts about the data, found before training.
    doubts: tuple[str, ...] = ()

    def own(self, name: str) -> OwnData | None:
        """One party's share; none if its features are elsewhere."""
        if name not in self.features:
            return None
        return OwnData(
            features=self.features[name],
            row_of_sample=self.rows[name],
            people=self.people.get(name),
        )


# For a federation that only predicts.
NO_DATA = TrainingData(
    features={}, rows={}, labels={}, roll=Roll(names=(), samples={}, presence={})
)


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """Everything but data and weights that is needed to build the federation again."""

    spec: RunSpec
    label_holder: str
    label_name: str
    num_samples: Mapping[str, int]
    num_complete: Mapping[str, int]
    num_rows: Mapping[str, int]
    task: Task
    preparations: Mapping[str, Fitted]
    # Who left for good after training: they answer no more, and nothing of theirs is read.
    left: tuple[str, ...] = ()
    # Parties behind a network, which prepare their columns themselves.
    elsewhere: tuple[str, ...] = ()

    @cached_property
    def owners(self) -> tuple[str, ...]:
        """The parties whose blocks this method uses, by name."""
        pooled = self.pooled
        return self.participants if pooled is None else tuple(pooled.parts)

    @cached_property
    def pooled(self) -> PooledPreparation | None:
        """The preparation of everybody's columns in one place, if they are."""
        own = self.preparations.get(self.label_holder)
        return own if isinstance(own, PooledPreparation) else None

    @cached_property
    def participants(self) -> tuple[str, ...]:
        """The parties that compute, by name."""
        return tuple(sorted({*self.preparations, *self.elsewhere}))

    @property
    def everyone(self) -> tuple[str, ...]:
        """The parties that took part in training, those who left included."""
        return tuple(sorted((*self.participants, *self.left)))

    @property
    def _built_spec(self) -> RunSpec:
        """The settings, with one network in place of many where columns are pooled."""
        pooled = self.pooled
        if pooled is None:
            return self.spec
        return _with_pooled_encoder(self.spec, self.label_holder, tuple(pooled.parts))

    def features(self, blocks: Mapping[str, Block | PooledBlock]) -> dict[str, Tensor]:
        """Prepared features of these blocks, each party's rows in its own order."""
        return {
            name: torch.as_tensor(self.preparations[name].apply(block, self.spec.dtype))  # type: ignore[arg-type]
            for name, block in blocks.items()
        }

    def training_data(self, arrangement: Arrangement) -> TrainingData:
        """Prepared features and labels of every part."""
        roll, values = arrangement.roll, arrangement.values
        return TrainingData(
            features=self.features(arrangement.blocks),
            rows=arrangement.rows,
            labels={part: values[numbers] for part, numbers in roll.samples.items()},
            weights=roll.weights(arrangement.weights),
            roll=roll,
            associations=arrangement.associations,
            people=people_of_blocks(self.counting, arrangement.blocks),
        )

    @cached_property
    def counting(self) -> frozenset[str]:
        """The parties that keep account of people in this process."""
        if all(own.policy is None for own in self.spec.party.values()):
            return frozenset()
        return self._checked_doors().counting

    def new_data(self, blocks: Mapping[str, Block], rows: Mapping[str, Rows]) -> TrainingData:
        """Prepared features of unlabelled samples, as the one part ``NEW``."""
        used: Mapping[str, Block | PooledBlock] = blocks
        if self.pooled is not None:
            used = {self.label_holder: PooledBlock.of(blocks, rows)}
            rows = {self.label_holder: np.arange(len(next(iter(rows.values()))))}
        people = people_of_blocks(self.counting, used)
        return self.prepared_data(self.features(used), rows, people)

    def prepared_data(
        self,
        features: Mapping[str, Tensor],
        rows: Mapping[str, Rows],
        people: Mapping[str, Tensor],
    ) -> TrainingData:
        """Unlabelled samples by their rows of prepared features, as the one part ``NEW``."""
        num_samples = len(next(iter(rows.values())))
        nowhere = np.full(num_samples, -1)
        # A party without a block is there and has none of the samples. Columns are read one by one.
        names = self.participants
        presence = np.stack([rows.get(name, nowhere) >= 0 for name in names]).T
        roll = Roll(names=names, samples={NEW: np.arange(num_samples)}, presence={NEW: presence})
        return TrainingData(features=features, rows=rows, labels={}, roll=roll, people=people)

    def doors(self) -> Doors:
        """Every participant's door: protections that fit each other, and every party's policy."""
        doors = self._checked_doors()
        fitted = {name: item for name, item in self.preparations.items() if name in self.owners}
        if self.pooled is not None:
            fitted = dict(self.pooled.parts)
        columns = {name: item.columns for name, item in fitted.items()}  # type: ignore[union-attr]
        doors.check_policies(columns, self.num_rows, sum(self.num_samples.values()))
        return doors

    def _checked_doors(self) -> Doors:
        return Doors(spec=self.spec, participants=self.participants, label_holder=self.label_holder)

    def build(self, data: TrainingData = NO_DATA) -> Federation:
        """Make parties, label holder and fabric, with fresh weights from the seed."""
        spec, doors, plans = (
            self.spec,
            self.doors(),
            make_plans(self.spec, data.roll, self.label_holder),
        )
        holder = self.build_holder(data, plans)
        parties = self.build_parties(data, plans, doors, holder)
        local = frozenset({self.label_holder} & set(parties))
        fabric = _with_traces(spec.fabric).build(parties, local=local, seed=spec.seed)
        return self.assemble(fabric, holder, doors)

    def assemble(self, fabric: Fabric, holder: LabelHolder, doors: Doors) -> Federation:
        """Bring label holder and fabric together."""
        holder.clock = fabric.work_clock
        return Federation(
            self.spec.method,
            holder,
            fabric,
            self.spec.patience,
            doors.sums,
            doors.holder_door(),
            doors.accounting,
            self._agreed(),
        )

    def _agreed(self) -> Agreed:
        """Types and widths of what parties send; nobody needs to be asked for them."""
        spec = self._built_spec
        return Agreed(
            dtype=getattr(torch, spec.dtype),
            num_outputs=self.task.num_outputs,
            widths={name: spec.encoder_of(name).embedding for name in self.participants},
        )

    def build_parties(
        self,
        data: TrainingData,
        plans: Mapping[str, BatchPlan],
        doors: Doors,
        holder: LabelHolder,
    ) -> dict[str, Party]:
        """Make the parties whose columns are prepared here, with fresh weights."""
        shares = self.spec.method.needs.labels == "shared"
        return {
            name: build_party(
                self._built_spec,
                name,
                preparation=self.preparations[name],
                data=data.own(name),
                roll=data.roll,
                plans=plans,
                everyone=self.everyone,
                num_outputs=self.task.num_outputs,
                doors=doors,
                own=doors.in_one_process[name],
                replica=self._replica(holder) if shares else None,
            )
            for name in sorted(self.preparations)
        }

    def other_parts(self, data: TrainingData) -> tuple[OtherParts, Mapping[str, BatchPlan]]:
        """Samples for one prediction as everybody sees them, and their batches."""
        rows = rows_at_once(data.features)
        plans = make_plans(self.spec, data.roll, self.label_holder, rows)
        dtype = getattr(torch, self.spec.dtype)
        return OtherParts(
            features={
                name: make_parts(
                    features, data.rows[name], name, data.roll, plans, data.people.get(name)
                )
                for name, features in data.features.items()
            },
            labels=self._labels(data, plans, dtype),
            presence=_presence_of(data, plans),
        ), plans

    def _labels(
        self, data: TrainingData, plans: Mapping[str, BatchPlan], dtype: torch.dtype
    ) -> dict[str, LabelPart]:
        return {
            part: LabelPart(
                values=values,
                targets=self.task.encode(values, dtype, data.weights.get(part)),
                plan=plans[part],
            )
            for part, values in data.labels.items()
        }

    def _replica(self, holder: LabelHolder) -> Replica:
        # Only the training part: the others' labels are for measuring, at the label holder.
        train = {name: part for name, part in holder.parts.items() if name == "train"}
        parts = {name: (part.targets, part.plan) for name, part in train.items()}
        return Replica(fusion=copy.deepcopy(holder.fusion), task=self.task, parts=parts)

    def build_holder(self, data: TrainingData, plans: Mapping[str, BatchPlan]) -> LabelHolder:
        """Make the label holder, with a fresh fusion model from the seed."""
        spec = self.spec
        dtype = getattr(torch, spec.dtype)
        fusion = place(self._fusion().to(dtype), spec.placement)
        optimizer, length = spec.label_holder.optimizer, num_exchanges(spec, data.roll, plans)
        return LabelHolder(
            name=self.label_holder,
            task=self.task,
            fusion=fusion,
            optimizer=optimizer.over(length) if length else optimizer,
            parts=self._labels(data, plans, dtype),
            presence=_presence_of(data, plans),
            seed=spec.seed,
            deterministic=is_deterministic(fusion),
            left=self.left,
        )

    def _fusion(self) -> nn.Module:
        # As when it was trained, whoever left since.
        spec, names = self._built_spec, self.everyone
        method, needs = spec.method.info.name, spec.method.needs
        sizes = {name: spec.encoder_of(name).embedding for name in names}
        if needs.one_width:
            _refuse_different_sizes(method, sizes)
        if not needs.fusion:
            return NoFusion()
        if needs.one_width and spec.label_holder.fusion.combine != "mean":
            raise ConfigError(
                f"label_holder.fusion.combine: method '{method}' averages embeddings before its "
                'network; set combine = "mean"'
            )

        def fresh(own: Mapping[str, int], *purpose: str | int) -> nn.Module:
            with drawing_from(derive_seed(spec.seed, *purpose)):
                return spec.label_holder.fusion.build(own, self.task.num_outputs)

        sets = spec.method.predictor_sets(names)
        if not sets:
            return fresh(sizes, "init", "fusion")
        by_number = {}
        for number in sets:
            own = {name: sizes[name] for name in members(number, names)}
            by_number[number] = fresh(own, *set_purpose(number, sets, "fusion"))
        return SetFusions(names, by_number)


def _presence_of(data: TrainingData, plans: Mapping[str, BatchPlan]) -> dict[str, Presence]:
    """Who has which sample, of every part that is not complete or has no labels to count."""
    roll = data.roll
    return {
        part: Presence(
            names=roll.names, table=torch.from_numpy(roll.presence[part]), plan=plans[part]
        )
        for part in plans
        if part not in data.labels or not roll.is_complete(part)
    }


def _refuse_different_sizes(method: str, sizes: Mapping[str, int]) -> None:
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        raise ConfigError(
            f"method '{method}' adds up embeddings of one size, got {listed}; set the same "
            "embedding in every party's encoder"
        )


def _with_traces(fabric: FabricSpec) -> FabricSpec:
    """The fabric's settings with recorded CPU traces read in."""
    if not isinstance(fabric, SimulatedSpec):
        return fabric
    return replace(
        fabric,
        default=with_traces(fabric.default, _read_trace),
        party={name: with_traces(item, _read_trace) for name, item in fabric.party.items()},
    )


def _read_trace(name: str, machine: int) -> tuple[float, ...]:
    shares = load_cpu_trace(name)
    if not 0 <= machine < len(shares):
        raise ConfigError(f"fabric: trace '{name}' has machines 0 to {len(shares) - 1}")
    # A machine wholly in use would take for ever.
    return tuple(float(share) for share in np.clip(shares[machine], 0.0, 0.99))


def _with_pooled_encoder(spec: RunSpec, holder: str, owners: tuple[str, ...]) -> RunSpec:
    """One network with as many neurons per layer as all of them together (thesis 5.4.3)."""
    specs = [spec.encoder_of(owner) for owner in owners]
    layers = [item for item in specs if isinstance(item, MLPSpec)]
    if len(layers) < len(specs) or len({len(item.hidden) for item in layers}) > 1:
        raise ConfigError(
            "method.name: 'centralized' adds up MLP encoders layer by layer; give every party an "
            "mlp encoder of the same depth"
        )
    encoder = replace(
        layers[0],
        hidden=tuple(map(sum, zip(*(item.hidden for item in layers), strict=True))),
        embedding=sum(item.embedding for item in layers),
    )
    own = replace(spec.party.get(holder, PartySpec()), encoder=encoder)
    return replace(spec, party={**spec.party, holder: own})
