"""One party by itself: all that it needs is its own block, the agreed settings and the roll.

A party in this process and one behind a network are made by the same lines.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import ConfigError, DataError
from colonnade.core.party import Part, Party, Replica, Vault
from colonnade.core.party_sets import members
from colonnade.core.presence import observed_sets
from colonnade.core.protection import Guard
from colonnade.core.seeds import derive_seed, drawing_from
from colonnade.data.blocks import Block
from colonnade.data.prepare import Preparation
from colonnade.models import CategoricalEmbedding, SetEncoders, embedded_width, is_deterministic
from colonnade.run.arrangement import Roll, Rows
from colonnade.run.spec import RunSpec

__all__ = [
    "fit_preparation",
    "make_encoder",
    "make_parts",
    "make_party",
    "make_plan",
    "make_plans",
    "refuse_unguarded",
    "set_purpose",
]


def make_plan(
    spec: RunSpec, num_samples: int, *, shuffle: bool = False, presence: Tensor | None = None
) -> BatchPlan:
    """Batches over a part; only training is shuffled."""
    size = spec.data.batch_size if shuffle else max(1024, spec.data.batch_size)
    groups = None if presence is None else observed_sets(presence)
    seed = derive_seed(spec.seed, "batches")
    return BatchPlan(num_samples, size, seed=seed, shuffle=shuffle, groups=groups)


def make_plans(spec: RunSpec, roll: Roll) -> dict[str, BatchPlan]:
    """The batches of every part."""
    return {
        part: make_plan(spec, len(table), shuffle=part == "train", presence=torch.from_numpy(table))
        for part, table in roll.presence.items()
    }


def fit_preparation(
    spec: RunSpec, name: str, block: Block, row_of_sample: Rows, roll: Roll
) -> Preparation:
    """Fit scales and levels on the party's own training rows, in the order of sample numbers."""
    rows = roll.rows(name, "train", row_of_sample)
    rows = rows[rows >= 0]
    if not len(rows):
        raise DataError(f"party '{name}' has none of the training samples; leave it out")
    return Preparation.fit(block, rows, spec.prepare_of(name))


def make_parts(
    features: Tensor, row_of_sample: Rows, name: str, roll: Roll, plans: Mapping[str, BatchPlan]
) -> dict[str, Part]:
    """The parts of prepared features, each with its own rows only."""
    parts = {}
    for part, plan in plans.items():
        rows = roll.rows(name, part, row_of_sample)
        here = rows >= 0
        own = features[torch.from_numpy(rows[here])]
        places = None
        if not here.all():
            places = torch.from_numpy(np.where(here, np.cumsum(here) - 1, -1))
        parts[part] = Part(features=own, plan=plan, rows=places)
    return parts


def make_encoder(
    spec: RunSpec, name: str, preparation: Preparation, *, names: tuple[str, ...]
) -> nn.Module:
    """A party's network, with fresh weights from the seed; ``names`` are all who take part.

    Where a method has networks for sets of parties: one for each set that the party is in. That
    for everybody begins like the only one of other methods.
    """
    sets = [item for item in spec.method.predictor_sets(names) if name in members(item, names)]
    if not sets:
        return _encoder(spec, name, preparation, "init", "party", name)
    return SetEncoders(
        {
            number: _encoder(spec, name, preparation, *set_purpose(number, sets, "party", name))
            for number in sets
        }
    )


def set_purpose(number: int, sets: Sequence[int], *whose: str) -> tuple[str | int, ...]:
    """What a network for a set of parties draws its first weights for."""
    return ("init", *whose) if number == max(sets) else ("init", *whose, "set", number)


def _encoder(spec: RunSpec, name: str, preparation: Preparation, *purpose: str | int) -> nn.Module:
    dtype = getattr(torch, spec.dtype)
    encoder_spec = spec.encoder_of(name)
    with drawing_from(derive_seed(spec.seed, *purpose)):
        try:
            if not preparation.cardinalities:
                return encoder_spec.build(preparation.shape).to(dtype)
            numeric, cardinalities = preparation.num_numeric, preparation.cardinalities
            inner = encoder_spec.build((embedded_width(numeric, cardinalities),))
            return CategoricalEmbedding(inner, numeric, cardinalities).to(dtype)
        except ConfigError as error:
            raise ConfigError(f"party.{name}.encoder: {error}") from error


def refuse_unguarded(spec: RunSpec, name: str, label_holder: str, guard: Guard | None) -> None:
    """Raise ConfigError if a party would send as it is what its settings say to protect."""
    wanted = spec.protect_of(name, label_holder) or spec.method.wants_packed
    if guard is None and name != label_holder and wanted:
        raise ConfigError(
            f"party.{name}.protect: nothing here keeps what the settings promise; make the party "
            "with a guard"
        )


def make_party(
    spec: RunSpec,
    name: str,
    encoder: nn.Module,
    parts: Mapping[str, Part],
    *,
    num_outputs: int,
    replica: Replica | None = None,
    vault: Vault | None = None,
    guard: Guard | None = None,
) -> Party:
    """The party's half of the run's method."""
    refuse_unguarded(spec, name, spec.label_holder.name or "", guard)
    if "train" in parts:
        _refuse_lone_samples(name, encoder, parts["train"])
    dtype = getattr(torch, spec.dtype)
    modules = {}
    if spec.method.has_heads:
        with drawing_from(derive_seed(spec.seed, "init", "head", name)):
            embedding = spec.encoder_of(name).embedding
            modules["head"] = spec.head_of(name).build(embedding, num_outputs).to(dtype)
    return spec.method.party(
        name=name,
        encoder=encoder,
        optimizer=spec.optimizer_of(name),
        parts=parts,
        seed=spec.seed,
        deterministic=all(map(is_deterministic, (encoder, *modules.values()))),
        modules=modules,
        replica=replica,
        vault=vault,
        guard=guard,
    )


def _refuse_lone_samples(name: str, encoder: nn.Module, part: Part) -> None:
    """Raise ConfigError if a batch has one sample and the encoder, batch norm in it, needs two."""
    if not any(isinstance(item, nn.modules.batchnorm._BatchNorm) for item in encoder.modules()):
        return
    lone = part.plan.lone_positions
    rows = lone if part.rows is None else part.rows[lone]
    rows = rows[rows >= 0]
    if not len(rows):
        return
    try:
        with torch.no_grad(), drawing_from(0):
            copy.deepcopy(encoder).train()(part.features[rows[:1]])
    except ValueError as error:
        raise ConfigError(
            f"party.{name}.encoder: its batch norm can't train on one sample, and {len(rows)} of "
            f"the training batches have one only; use a network without batch norm (of the "
            'ResNets: norm = "group"), a batch_size above 1, or leave out samples whose set of '
            "parties is theirs alone"
        ) from error
