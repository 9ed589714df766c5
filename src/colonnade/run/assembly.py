"""From blocks and settings to a federation that is ready to train."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import ConfigError
from colonnade.core.federation import Federation
from colonnade.core.label_holder import LabelHolder, LabelPart
from colonnade.core.party import Replica, Vault
from colonnade.core.party_sets import members
from colonnade.core.presence import Presence
from colonnade.core.seeds import derive_seed, drawing_from
from colonnade.core.task import Task, infer_kind
from colonnade.data.association import Association
from colonnade.data.blocks import Block
from colonnade.data.datasets import load_cpu_trace
from colonnade.data.prepare import Preparation
from colonnade.fabrics import FabricSpec, SimulatedSpec
from colonnade.fabrics.simulated import with_traces
from colonnade.models import (
    EncoderSpec,
    MLPSpec,
    NoFusion,
    SetFusions,
    is_deterministic,
)
from colonnade.protect import ProtectionSpec
from colonnade.run.arrangement import Arrangement, Roll, Rows
from colonnade.run.protecting import Guarding, MakeLedger
from colonnade.run.silo import (
    fit_preparation,
    make_encoder,
    make_parts,
    make_party,
    make_plans,
    set_purpose,
)
from colonnade.run.sources import Sources
from colonnade.run.spec import RunSpec

__all__ = ["NEW", "NO_DATA", "Blueprint", "TrainingData", "fit_blueprint", "presence_of"]

MakeVault = Callable[[str], Vault]


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Prepared features, the row of every sample in them, labels by part, and the roll."""

    features: Mapping[str, Tensor]
    rows: Mapping[str, Rows]
    labels: Mapping[str, np.ndarray[Any, Any]]
    roll: Roll
    associations: tuple[Association, ...] = ()


# The part of samples that come to be predicted.
NEW = "new"

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
    preparations: Mapping[str, Preparation]
    # Who left for good after training: they answer no more, and nothing of theirs is read.
    left: tuple[str, ...] = ()
    # Parties behind a network, which prepare their columns themselves.
    elsewhere: tuple[str, ...] = ()

    @property
    def owners(self) -> tuple[str, ...]:
        """Who has a block that this method uses, by name."""
        return tuple(sorted({*self.preparations, *self.elsewhere}))

    @property
    def participants(self) -> tuple[str, ...]:
        """Who computes: the owners, or the label holder with everybody's columns."""
        return (self.label_holder,) if self.spec.method.pools_blocks else self.owners

    @property
    def everyone(self) -> tuple[str, ...]:
        """Who took part in training, those who left included."""
        return tuple(sorted((*self.participants, *self.left)))

    def features(self, blocks: Mapping[str, Block]) -> dict[str, Tensor]:
        """Prepared features of these blocks, each party's rows in its own order."""
        dtype = getattr(torch, self.spec.dtype)
        return {
            name: torch.as_tensor(self.preparations[name].apply(block), dtype=dtype)
            for name, block in blocks.items()
        }

    def pooled(
        self, features: Mapping[str, Tensor], rows: Mapping[str, Rows]
    ) -> tuple[dict[str, Tensor], dict[str, Rows]]:
        """Features and rows of the participants: everybody's columns in one place, if so."""
        if not self.spec.method.pools_blocks:
            return dict(features), dict(rows)
        own = [features[name][torch.from_numpy(rows[name])].flatten(1) for name in self.owners]
        holder = self.label_holder
        return {holder: torch.cat(own, 1)}, {holder: np.arange(len(own[0]))}

    def training_data(self, arrangement: Arrangement) -> TrainingData:
        """Prepared features and labels of every part."""
        features, rows = self.pooled(self.features(arrangement.blocks), arrangement.rows)
        roll = arrangement.roll
        if self.spec.method.pools_blocks:
            alone = {part: table[:, :1] for part, table in roll.presence.items()}
            roll = replace(roll, names=(self.label_holder,), presence=alone)
        values = arrangement.values
        labels = {part: values[numbers] for part, numbers in roll.samples.items()}
        return TrainingData(
            features=features,
            rows=rows,
            labels=labels,
            roll=roll,
            associations=arrangement.associations,
        )

    def new_data(self, blocks: Mapping[str, Block], rows: Mapping[str, Rows]) -> TrainingData:
        """Prepared features of unlabelled samples, as the one part ``NEW``."""
        features, own_rows = self.pooled(self.features(blocks), rows)
        num_samples = len(next(iter(own_rows.values())))
        nowhere = np.full(num_samples, -1)
        # A party without a block is there and has none of the samples.
        names = self.participants
        presence = np.stack([own_rows.get(name, nowhere) >= 0 for name in names], axis=1)
        roll = Roll(names=names, samples={NEW: np.arange(num_samples)}, presence={NEW: presence})
        return TrainingData(features=features, rows=own_rows, labels={}, roll=roll)

    def build(
        self,
        data: TrainingData = NO_DATA,
        *,
        make_vault: MakeVault | None = None,
        make_ledger: MakeLedger | None = None,
    ) -> Federation:
        """Make parties, label holder and fabric, with fresh weights from the seed."""
        spec = self.spec
        guarding = self.guarding(make_ledger)
        plans = make_plans(spec, data.roll)
        holder = self.build_holder(data, plans)
        encoders = {}
        for name in self.participants:
            encoders[name] = self._encoder(name)
        guards = guarding.guards(encoders)
        parties = {}
        for name, encoder in encoders.items():
            parts = {}
            if plans:
                features, rows = data.features[name], data.rows[name]
                parts = make_parts(features, rows, name, data.roll, plans)
            parties[name] = make_party(
                spec,
                name,
                encoder,
                parts,
                num_outputs=self.task.num_outputs,
                replica=self._replica(holder) if spec.method.shares_labels else None,
                vault=make_vault(name) if make_vault else None,
                guard=guards[name],
            )
        local = frozenset({self.label_holder} & set(parties))
        fabric = _with_traces(spec.fabric).build(parties, local=local, seed=spec.seed)
        holder.clock = fabric.clock
        return Federation(spec.method, holder, fabric, spec.patience, guarding.sums, guarding.read)

    @property
    def protections(self) -> Mapping[str, tuple[ProtectionSpec, ...]]:
        """What each party does to its embeddings before they leave, in order."""
        return self.guarding(None).chains

    def guarding(self, make_ledger: MakeLedger | None) -> Guarding:
        """Protections that fit each other, and every party's policy."""
        guarding = Guarding(
            spec=self.spec,
            participants=self.participants,
            label_holder=self.label_holder,
            make_ledger=make_ledger,
        )
        columns = {name: (*item.numeric, *item.levels) for name, item in self.preparations.items()}
        guarding.check_policies(columns, self.num_rows, sum(self.num_samples.values()))
        return guarding

    def _replica(self, holder: LabelHolder) -> Replica:
        # Only the training part: the others' labels are for measuring, at the label holder.
        train = {name: part for name, part in holder.parts.items() if name == "train"}
        parts = {name: (part.targets, part.plan) for name, part in train.items()}
        return Replica(fusion=copy.deepcopy(holder.fusion), task=self.task, parts=parts)

    def build_holder(self, data: TrainingData, plans: Mapping[str, BatchPlan]) -> LabelHolder:
        """Make the label holder, with a fresh fusion model from the seed."""
        spec = self.spec
        dtype = getattr(torch, spec.dtype)
        fusion = self._fusion().to(dtype)
        return LabelHolder(
            name=self.label_holder,
            task=self.task,
            fusion=fusion,
            optimizer=spec.label_holder.optimizer,
            parts={
                part: LabelPart(
                    values=values, targets=self.task.encode(values, dtype), plan=plans[part]
                )
                for part, values in data.labels.items()
            },
            presence=presence_of(data.roll, plans),
            seed=spec.seed,
            deterministic=is_deterministic(fusion),
            left=self.left,
        )

    def _fusion(self) -> nn.Module:
        # As when it was trained, whoever left since.
        spec, names = self.spec, self.everyone
        sizes = {name: self._encoder_spec(name).embedding for name in names}
        if spec.method.adds_embeddings:
            _refuse_different_sizes(spec.method.info.name, sizes)
        if not spec.method.has_fusion:
            return NoFusion()
        if spec.method.adds_embeddings and spec.label_holder.fusion.combine != "mean":
            raise ConfigError(
                f"label_holder.fusion.combine: method '{spec.method.info.name}' averages "
                'embeddings before its network; set combine = "mean"'
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

    def _encoder(self, name: str) -> nn.Module:
        if not self.spec.method.pools_blocks:
            preparation = self.preparations[name]
            return make_encoder(self.spec, name, preparation, names=self.everyone)
        if any(item.cardinalities for item in self.preparations.values()):
            raise ConfigError(
                "method.name: 'centralized' can't pool embedded categories; set "
                'prepare.categorical = "one_hot"'
            )
        width = sum(int(np.prod(item.shape)) for item in self.preparations.values())
        with drawing_from(derive_seed(self.spec.seed, "init", "party", name)):
            return self._encoder_spec(name).build((width,)).to(getattr(torch, self.spec.dtype))

    def _encoder_spec(self, name: str) -> EncoderSpec:
        if self.spec.method.pools_blocks:
            return _pooled_encoder([self.spec.encoder_of(owner) for owner in self.owners])
        return self.spec.encoder_of(name)


def presence_of(roll: Roll, plans: Mapping[str, BatchPlan]) -> dict[str, Presence]:
    """Who has which sample, of every part that is not complete."""
    return {
        part: Presence(
            names=roll.names, table=torch.from_numpy(roll.presence[part]), plan=plans[part]
        )
        for part in plans
        if not roll.is_complete(part)
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


def _pooled_encoder(specs: list[EncoderSpec]) -> EncoderSpec:
    """One network with as many neurons per layer as all of them together (thesis 5.4.3)."""
    layers = [item for item in specs if isinstance(item, MLPSpec)]
    if len(layers) < len(specs) or len({len(item.hidden) for item in layers}) > 1:
        raise ConfigError(
            "method.name: 'centralized' adds up MLP encoders layer by layer; give every party an "
            "mlp encoder of the same depth"
        )
    return replace(
        layers[0],
        hidden=tuple(map(sum, zip(*(item.hidden for item in layers), strict=True))),
        embedding=sum(item.embedding for item in layers),
    )


def fit_blueprint(spec: RunSpec, sources: Sources, arrangement: Arrangement) -> Blueprint:
    """Fit what each side fits on the training part: scales and levels, classes or units."""
    for key in ("patience", "target"):
        if getattr(spec.stop, key) is not None and "validation" not in arrangement.samples:
            raise ConfigError(
                f"stop.{key}: needs a validation part; set data.split.validation above 0"
            )
    train = arrangement.samples["train"]
    kind = spec.label_holder.task or sources.kind or infer_kind(arrangement.values)
    holder = replace(spec.label_holder, name=sources.label_holder, task=kind)
    return Blueprint(
        spec=replace(spec, label_holder=holder),
        label_holder=sources.label_holder,
        label_name=sources.labels.name,
        num_samples=arrangement.roll.num_samples,
        num_complete=arrangement.roll.num_complete,
        num_rows=arrangement.num_rows,
        task=Task.fit(
            kind,
            arrangement.values[train],
            loss=spec.label_holder.loss,
            balanced=spec.label_holder.class_weights == "balanced",
        ),
        preparations={
            name: fit_preparation(spec, name, block, arrangement.rows[name], arrangement.roll)
            for name, block in arrangement.blocks.items()
        },
    )
