"""Small federations for tests, built by hand from the real parts.

Features and initial weights of a party depend on the seed and on its *name* only, so that two
federations that differ in fabric, timing or the order of their parties begin alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.batches import BatchPlan
from colonnade.core.fabric import Fabric
from colonnade.core.federation import Event, Federation, LoopState, Stop
from colonnade.core.label_holder import LabelHolder, LabelPart
from colonnade.core.method import Method
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.parties import Patience
from colonnade.core.party import Part, Party
from colonnade.core.presence import Presence
from colonnade.core.replica import Replica
from colonnade.core.seeds import derive_seed, drawing_from
from colonnade.core.task import Task, TaskKind
from colonnade.fabrics.durations import Duration
from colonnade.fabrics.in_process import InProcess
from colonnade.fabrics.simulated import Engine, Profile, Simulated
from colonnade.methods.splitnn import SplitNN
from colonnade.models import (
    Combine,
    HeadSpec,
    MLPFusionSpec,
    MLPSpec,
    NoFusion,
    SetEncoders,
    SetFusions,
    is_deterministic,
)
from colonnade.parts.party_sets import members
from colonnade.quality.evaluation import evaluate

EncoderFactory = Callable[[int], nn.Module]

FABRICS = ("in_process", "simulated")
KIND_OF_LOSS: Mapping[str, TaskKind] = {
    "binary_cross_entropy": "binary",
    "cross_entropy": "multiclass",
    "squared_error": "regression",
    "absolute_error": "regression",
    "huber": "regression",
}
PLAIN_SGD = OptimizerSpec(name="sgd", lr=0.1)


def mlp(embedding: int = 4, hidden: tuple[int, ...] = (6,), **settings: Any) -> EncoderFactory:
    """Makes a multi-layer perceptron for a number of columns."""
    return lambda columns: MLPSpec(embedding=embedding, hidden=hidden, **settings).build((columns,))


def mlp_with_dropout(embedding: int = 4) -> EncoderFactory:
    """Makes one that draws random numbers whenever it encodes."""
    return mlp(embedding, hidden=(8,), dropout=0.5)


def mlp_with_batch_norm(embedding: int = 4) -> EncoderFactory:
    """Makes one whose running statistics move whenever it encodes."""
    plain = mlp(embedding)
    return lambda columns: nn.Sequential(plain(columns), nn.BatchNorm1d(embedding))


def mlp_with_both(embedding: int = 4) -> EncoderFactory:
    """Makes one with dropout and batch norm."""
    plain = mlp_with_dropout(embedding)
    return lambda columns: nn.Sequential(plain(columns), nn.BatchNorm1d(embedding))


ENCODERS: Mapping[str, EncoderFactory] = {
    "plain": mlp(),
    "dropout": mlp_with_dropout(),
    "batch norm": mlp_with_batch_norm(),
    "both": mlp_with_both(),
}


def features_of(name: str, num_samples: int, columns: int, seed: int, dtype: torch.dtype) -> Tensor:
    """A party's whole block."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "features", name))
    return torch.randn(num_samples, columns, generator=generator, dtype=dtype)


def labels_of(kind: TaskKind, num_samples: int, seed: int) -> np.ndarray[Any, Any]:
    """Labels of a kind; every class occurs."""
    generator = np.random.default_rng(derive_seed(seed, "labels"))
    if kind == "regression":
        return generator.normal(3.0, 2.0, num_samples)
    num_classes = 2 if kind == "binary" else 3
    return generator.permutation(np.arange(num_samples) % num_classes)


def seeded_module(make: Callable[[], nn.Module], dtype: torch.dtype, *purpose: Any) -> nn.Module:
    """A network whose initial weights depend on the purpose only."""
    with drawing_from(derive_seed(*purpose)):
        return make().to(dtype)


def make_federation(
    num_parties: int = 2,
    *,
    names: Iterable[str] | None = None,
    holder_name: str = "holder",
    method: Method | None = None,
    fabric: str = "in_process",
    combine: Combine = "concat",
    kind: TaskKind = "binary",
    loss: str | None = None,
    labels: np.ndarray[Any, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    num_samples: int = 24,
    num_validation: int = 0,
    batch_size: int = 8,
    columns: int | Mapping[str, int] = 3,
    encoder: EncoderFactory | Mapping[str, EncoderFactory] = ENCODERS["plain"],
    fusion_hidden: tuple[int, ...] = (5,),
    fusion_dropout: float = 0.0,
    optimizer: OptimizerSpec | Mapping[str, OptimizerSpec] = PLAIN_SGD,
    seed: int = 0,
    profiles: Mapping[str, Profile] | None = None,
    default_profile: Profile | None = None,
    fuse: Duration | None = None,
    engine: Engine | None = None,
    parts_per_tick: int = 1,
    fabric_seed: int = 0,
    patience: Patience | None = None,
    presence: Mapping[str, Tensor] | None = None,
) -> Federation:
    """A federation that is ready to train; a party of the label holder's name is at its side.

    ``presence`` gives a table (sample, party) for parts that are not complete.
    """
    method = method or SplitNN()
    all_names = tuple(names) if names is not None else tuple(f"p{k}" for k in range(num_parties))
    total = num_samples + num_validation
    values = labels_of(kind, total, seed) if labels is None else labels
    task = Task.fit(kind, values[:num_samples], loss=loss)
    tables = presence or {}
    groups = {
        part: method.kept_apart(part, table, all_names, holder_name)
        for part, table in tables.items()
    }
    plans = {
        "train": BatchPlan(
            num_samples, batch_size, seed=seed, shuffle=True, groups=groups.get("train")
        )
    }
    places = {"train": slice(0, num_samples)}
    if num_validation:
        plans["validation"] = BatchPlan(
            num_validation, batch_size, seed=seed, shuffle=False, groups=groups.get("validation")
        )
        places["validation"] = slice(num_samples, total)

    def part_of(name: str, part: str, features: Tensor) -> Part:
        own, plan = features[places[part]], plans[part]
        if part not in tables:
            return Part(features=own, plan=plan)
        here = tables[part][:, all_names.index(name)]
        rows = torch.where(here, here.cumsum(0) - 1, -1)
        return Part(features=own[here], plan=plan, rows=rows)

    def block(name: str) -> Tensor:
        width = columns if isinstance(columns, int) else columns[name]
        return features_of(name, total, width, seed, dtype)

    def encoder_of(name: str, width: int) -> nn.Module:
        make = encoder if callable(encoder) else encoder[name]
        own = [item for item in sets if name in members(item, taking_part)]
        if not own:
            return seeded_module(lambda: make(width), dtype, seed, "weights", name)
        return SetEncoders(
            {
                item: seeded_module(lambda: make(width), dtype, seed, "weights", name, item)
                for item in own
            }
        )

    def optimizer_of(name: str) -> OptimizerSpec:
        return optimizer if isinstance(optimizer, OptimizerSpec) else optimizer[name]

    def head_of(name: str, network: nn.Module, features: Tensor) -> nn.Module:
        head = HeadSpec(hidden=fusion_hidden, dropout=fusion_dropout)
        with torch.no_grad():
            size = copy.deepcopy(network).eval()(features[:1]).shape[1]
        return seeded_module(
            lambda: head.build(size, task.num_outputs), dtype, seed, "weights", "head", name
        )

    taking_part = method.participants(all_names, holder_name)
    sets = method.predictor_sets(taking_part)
    parties = {}
    for name in taking_part:
        features = (
            block(name) if not method.needs.pooled else torch.cat([*map(block, all_names)], 1)
        )
        network = encoder_of(name, features.shape[1])
        heads = {"head": head_of(name, network, features)} if method.needs.heads else {}
        parties[name] = method.party(
            name=name,
            encoder=network,
            optimizer=optimizer_of(name),
            parts={part: part_of(name, part, features) for part in plans},
            seed=seed,
            deterministic=all(map(is_deterministic, (network, *heads.values()))),
            modules=heads,
            vault=MemoryVault(),
        )
    sizes = {name: _embedding_size(party) for name, party in parties.items()}
    spec = MLPFusionSpec(combine=combine, hidden=fusion_hidden, dropout=fusion_dropout)

    def fusion_of(own: tuple[str, ...], *purpose: Any) -> nn.Module:
        chosen = {name: sizes[name] for name in own}
        return seeded_module(
            lambda: spec.build(chosen, task.num_outputs), dtype, seed, "weights", "fusion", *purpose
        )

    fusion: nn.Module = NoFusion().to(dtype)
    if sets:
        fusions = {item: fusion_of(members(item, taking_part), item) for item in sets}
        fusion = SetFusions(taking_part, fusions)
    elif method.needs.fusion:
        fusion = fusion_of(tuple(sizes))
    local = frozenset({holder_name}) & parties.keys()
    carrier: Fabric
    if fabric == "in_process":
        carrier = InProcess(parties, local=local)
        for party in parties.values():
            party.clock = CountingClock()
    else:
        carrier = Simulated(
            parties,
            profiles=profiles,
            default=default_profile,
            fuse=fuse,
            engine=engine,
            parts_per_tick=parts_per_tick,
            local=local,
            seed=fabric_seed,
        )
    holder = LabelHolder(
        name=holder_name,
        task=task,
        fusion=fusion,
        optimizer=optimizer_of(holder_name),
        parts={
            part: LabelPart(
                values=values[places[part]],
                targets=task.encode(values[places[part]], dtype),
                plan=plan,
            )
            for part, plan in plans.items()
        },
        presence={
            part: Presence(names=all_names, table=table, plan=plans[part])
            for part, table in tables.items()
        },
        seed=seed,
        deterministic=is_deterministic(fusion),
        clock=CountingClock() if fabric == "in_process" else carrier.clock,
    )
    if method.needs.labels == "shared":
        for party in parties.values():
            # The fusion's size depends on the parties, so it can't be there before them.
            party._replica = Replica(
                fusion=copy.deepcopy(fusion),
                task=task,
                parts={name: (part.targets, part.plan) for name, part in holder.parts.items()},
            )
    return Federation(method, holder, carrier, patience or Patience())


class CountingClock:
    """Stands in for the machine's clock: how much is done by a timeout is the same every time.

    One tick per local step or update of the fusion, unless told otherwise; none per encoding.
    """

    def __init__(self, **costs: int) -> None:
        self.tick = 0
        self.costs = {"encode": 0, "step": 1, "fuse": 1} | costs

    def now(self) -> int:
        return self.tick

    def begin(self) -> None:
        pass

    def work(self, kind: str) -> None:
        self.tick += self.costs[kind]

    def fits(self, kind: str, deadline: int) -> bool:
        return self.tick < deadline

    def num_fitting(self, kind: str, timeout: int) -> int:
        return timeout // self.costs[kind]


def train(federation: Federation, exchanges: int, state: LoopState | None = None) -> list[Event]:
    """Train up to a number of exchanges and give what happened."""
    return list(federation.train(Stop(exchanges=exchanges), state or LoopState(), evaluate))


def weights(federation: Federation) -> dict[str, Tensor]:
    """Every weight and running statistic of every participant, copied."""
    models = {name: party.model for name, party in federation.fabric.parties.items()}
    if federation.method.needs.fusion:
        models["fusion"] = federation.holder.fusion
    return {
        f"{owner}.{key}": value.detach().clone()
        for owner, model in models.items()
        for key, value in model.state_dict().items()
    }


def assert_bitwise_equal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> None:
    """Same keys, and not one bit of difference."""
    assert left.keys() == right.keys()
    different = [key for key in left if not torch.equal(left[key], right[key])]
    assert not different


def checkpoint(federation: Federation) -> dict[str, Any]:
    """Everything that a resume needs, copied as if it had been on a disk in between."""
    parties = {name: party.state() for name, party in federation.fabric.parties.items()}
    return copy.deepcopy({"federation": federation.snapshot().whole(), "parties": parties})


def resume(federation: Federation, kept: Mapping[str, Any]) -> None:
    """Put a fresh federation where ``checkpoint`` was taken."""
    kept = copy.deepcopy(kept)
    for name, state in kept["parties"].items():
        federation.fabric.parties[name].restore(state)
    federation.restore(kept["federation"])


class MemoryVault:
    """Keeps copies of states by tag."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}

    def keep(self, tag: str, state: Mapping[str, Any]) -> None:
        self.states[tag] = copy.deepcopy(dict(state))

    def retain(self, tags: Collection[str]) -> None:
        self.states = {tag: item for tag, item in self.states.items() if tag in tags}

    def fetch(self, tag: str) -> dict[str, Any]:
        return copy.deepcopy(self.states[tag])


def _embedding_size(party: Party) -> int:
    """The width of a party's embedding, found without leaving a trace in its state."""
    part = party.parts["train"]
    party.model.eval()
    try:
        with torch.no_grad():
            return party.encoder(part.features[:1]).shape[1]
    finally:
        party.model.train()
