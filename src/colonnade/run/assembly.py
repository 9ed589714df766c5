"""From blocks and settings to a federation that is ready to train."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from colonnade.align.plain import Alignment, align_plainly
from colonnade.core.batches import BatchPlan
from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError
from colonnade.core.federation import Federation
from colonnade.core.label_holder import LabelHolder, LabelPart
from colonnade.core.party import Part, Replica, Vault
from colonnade.core.seeds import derive_seed, drawing_from
from colonnade.core.task import Task, infer_kind
from colonnade.data.blocks import Block
from colonnade.data.datasets import load_cpu_trace
from colonnade.data.prepare import Preparation
from colonnade.data.splits import split_samples
from colonnade.fabrics import FabricSpec, SimulatedSpec
from colonnade.fabrics.simulated import with_traces
from colonnade.models import (
    CategoricalEmbedding,
    EncoderSpec,
    MLPSpec,
    embedded_width,
    is_deterministic,
)
from colonnade.protect import ProtectionSpec
from colonnade.run.protecting import Guarding, MakeLedger
from colonnade.run.sources import Sources
from colonnade.run.spec import RunSpec

__all__ = ["NO_DATA", "Arrangement", "Blueprint", "TrainingData", "arrange", "fit_blueprint"]

MakeVault = Callable[[str], Vault]


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Prepared features and labels by part."""

    features: Mapping[str, Mapping[str, Tensor]]
    labels: Mapping[str, np.ndarray[Any, Any]]


# For a federation that only predicts.
NO_DATA = TrainingData(features={}, labels={})


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """Everything but data and weights that is needed to build the federation again."""

    spec: RunSpec
    label_holder: str
    label_name: str
    num_samples: Mapping[str, int]
    num_rows: Mapping[str, int]
    task: Task
    preparations: Mapping[str, Preparation]

    @property
    def owners(self) -> tuple[str, ...]:
        """Who has a block that this method uses, by name."""
        return tuple(sorted(self.preparations))

    @property
    def participants(self) -> tuple[str, ...]:
        """Who computes: the owners, or the label holder with everybody's columns."""
        return (self.label_holder,) if self.spec.method.pools_blocks else self.owners

    def features(self, blocks: Mapping[str, Block]) -> dict[str, Tensor]:
        """Prepared features of blocks whose rows are already in common order."""
        dtype = getattr(torch, self.spec.dtype)
        prepared = {
            name: torch.as_tensor(self.preparations[name].apply(blocks[name]), dtype=dtype)
            for name in self.owners
        }
        if not self.spec.method.pools_blocks:
            return prepared
        return {self.label_holder: torch.cat([item.flatten(1) for item in prepared.values()], 1)}

    def training_data(self, arrangement: Arrangement) -> TrainingData:
        """Prepared features and labels of every part."""
        features = self.features(arrangement.blocks)
        parts = arrangement.samples.items()
        return TrainingData(
            features={
                part: {name: item[torch.from_numpy(numbers)] for name, item in features.items()}
                for part, numbers in parts
            },
            labels={part: arrangement.values[numbers] for part, numbers in parts},
        )

    def build(
        self,
        data: TrainingData = NO_DATA,
        *,
        make_vault: MakeVault | None = None,
        make_ledger: MakeLedger | None = None,
    ) -> Federation:
        """Make parties, label holder and fabric, with fresh weights from the seed."""
        spec = self.spec
        guarding = self._guarding(make_ledger)
        plans = self._plans(data)
        holder = self._label_holder(data, plans)
        encoders = {}
        for name in self.participants:
            with drawing_from(derive_seed(spec.seed, "init", "party", name)):
                encoders[name] = self._encoder(name)
        guards = guarding.guards(encoders)
        parties = {}
        for name, encoder in encoders.items():
            parts = {
                part: Part(features=data.features[part][name], plan=plans[part])
                for part in data.features
            }
            parties[name] = spec.method.party(
                name=name,
                encoder=encoder,
                optimizer=spec.optimizer_of(name),
                parts=parts,
                seed=spec.seed,
                deterministic=is_deterministic(encoder),
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
        return self._guarding(None).chains

    def _guarding(self, make_ledger: MakeLedger | None) -> Guarding:
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

    def _label_holder(self, data: TrainingData, plans: Mapping[str, BatchPlan]) -> LabelHolder:
        spec = self.spec
        dtype = getattr(torch, spec.dtype)
        sizes = {name: self._encoder_spec(name).embedding for name in self.participants}
        with drawing_from(derive_seed(spec.seed, "init", "fusion")):
            fusion = spec.label_holder.fusion.build(sizes, self.task.num_outputs).to(dtype)
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
            seed=spec.seed,
            deterministic=is_deterministic(fusion),
        )

    def plan(self, num_samples: int, *, shuffle: bool = False) -> BatchPlan:
        """Batches over a part; only training is shuffled."""
        size = self.spec.data.batch_size if shuffle else max(1024, self.spec.data.batch_size)
        seed = derive_seed(self.spec.seed, "batches")
        return BatchPlan(num_samples, size, seed=seed, shuffle=shuffle)

    def _plans(self, data: TrainingData) -> dict[str, BatchPlan]:
        return {
            part: self.plan(len(values), shuffle=part == "train")
            for part, values in data.labels.items()
        }

    def _encoder(self, name: str) -> nn.Module:
        dtype = getattr(torch, self.spec.dtype)
        encoder_spec = self._encoder_spec(name)
        if self.spec.method.pools_blocks:
            if any(item.cardinalities for item in self.preparations.values()):
                raise ConfigError(
                    "method.name: 'centralized' can't pool embedded categories; set "
                    'prepare.categorical = "one_hot"'
                )
            width = sum(int(np.prod(item.shape)) for item in self.preparations.values())
            return encoder_spec.build((width,)).to(dtype)
        preparation = self.preparations[name]
        try:
            if not preparation.cardinalities:
                return encoder_spec.build(preparation.shape).to(dtype)
            numeric, cardinalities = preparation.num_numeric, preparation.cardinalities
            inner = encoder_spec.build((embedded_width(numeric, cardinalities),))
            return CategoricalEmbedding(inner, numeric, cardinalities).to(dtype)
        except ConfigError as error:
            raise ConfigError(f"party.{name}.encoder: {error}") from error

    def _encoder_spec(self, name: str) -> EncoderSpec:
        if self.spec.method.pools_blocks:
            return _pooled_encoder([self.spec.encoder_of(owner) for owner in self.owners])
        return self.spec.encoder_of(name)


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


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Blocks with their rows in common order, labels beside them, and who trains on what."""

    blocks: Mapping[str, Block]
    values: np.ndarray[Any, Any]
    # How many rows each block and the labels had before; what is not known to all is left out.
    num_rows: Mapping[str, int]
    samples: Mapping[str, np.ndarray[Any, np.dtype[np.int64]]]


def arrange(spec: RunSpec, sources: Sources) -> Arrangement:
    """Align the blocks that the method uses by id, and split the samples."""
    _check_names(spec, sources)
    names = tuple(sorted(sources.blocks))
    pools = spec.method.pools_blocks
    owners = names if pools else spec.method.participants(names, sources.label_holder)
    blocks = {name: sources.blocks[name] for name in owners}
    alignment = align_plainly({name: item.ids for name, item in blocks.items()}, sources.labels.ids)
    test = _official_test(sources, alignment)
    return Arrangement(
        blocks={name: block.take(alignment.rows[name]) for name, block in blocks.items()},
        values=sources.labels.values[alignment.label_rows],
        num_rows={
            **{name: len(block.ids) for name, block in blocks.items()},
            "labels": len(sources.labels.ids),
        },
        samples=split_samples(alignment.num_samples, spec.data.split, seed=spec.seed, test=test),
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
        num_samples={part: len(numbers) for part, numbers in arrangement.samples.items()},
        num_rows=arrangement.num_rows,
        task=Task.fit(kind, arrangement.values[train], loss=spec.label_holder.loss),
        preparations={
            name: Preparation.fit(block, train, spec.prepare_of(name))
            for name, block in arrangement.blocks.items()
        },
    )


def _check_names(spec: RunSpec, sources: Sources) -> None:
    names = list(sources.blocks)
    for path, given in (
        ("party", spec.party),
        ("fabric.party", spec.fabric.party if isinstance(spec.fabric, SimulatedSpec) else {}),
    ):
        for name in given:
            if name not in names:
                raise ConfigError(f"{path}.{name}: there is no such party{nearest(name, names)}")


def _official_test(sources: Sources, alignment: Alignment) -> np.ndarray[Any, Any] | None:
    if sources.test_ids is None:
        return None
    ids = pd.Index(sources.labels.ids[alignment.label_rows])
    return np.flatnonzero(ids.isin(sources.test_ids))
