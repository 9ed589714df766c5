"""One party by itself: all that it needs is its own block, the agreed settings and the roll.

A party in this process and one behind a network are made by the same lines.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.batches import BatchPlan
from colonnade.core.devices import place
from colonnade.core.errors import ConfigError, DataError
from colonnade.core.party import Part, Party
from colonnade.core.replica import Replica
from colonnade.core.seeds import derive_seed, drawing_from
from colonnade.data.blocks import Block
from colonnade.data.pooling import PooledBlock, PooledPreparation
from colonnade.data.prepare import Preparation
from colonnade.models import CategoricalEmbedding, SetEncoders, embedded_width, is_deterministic
from colonnade.parts.party_sets import members
from colonnade.run.door_building import Doors, OwnTerms
from colonnade.run.samples import Roll, Rows
from colonnade.run.spec import RunSpec

__all__ = [
    "Fitted",
    "OwnData",
    "build_party",
    "fit_preparation",
    "make_encoder",
    "make_parts",
    "make_plans",
    "num_exchanges",
    "num_parameters",
    "part_of_rows",
    "rows_at_once",
    "set_purpose",
]


Fitted: TypeAlias = Preparation | PooledPreparation


# Rows of a batch that nobody trains on. Everybody has to make the same batches.
_ROWS = 1024
# Of a prediction in one process: so many, if that is no more numbers than this.
_MOST_ROWS, _MOST_NUMBERS = 4096, 1 << 18


def rows_at_once(features: Mapping[str, Tensor]) -> int:
    """How many rows a batch of a prediction in one process has at most.

    Large batches take less time. Of wide rows, as of pictures, there are no more than elsewhere:
    what convolutions make of them is many times as wide again.
    """
    widest = max((item[0].numel() for item in features.values() if len(item)), default=1)
    return min(_MOST_ROWS, max(_ROWS, _MOST_NUMBERS // max(1, widest)))


def make_plans(
    spec: RunSpec, roll: Roll, label_holder: str, most_rows: int = _ROWS
) -> dict[str, BatchPlan]:
    """The batches of every part; only training is shuffled. Everybody makes the same ones.

    Args:
        spec: The run's settings.
        roll: The parts and who has which sample.
        label_holder: The label holder's name.
        most_rows: Of a batch that nobody trains on.
    """
    plans = {}
    seed = derive_seed(spec.seed, "batches")
    for part, table in roll.presence.items():
        is_training = part == "train"
        size = spec.data.batch_size if is_training else max(most_rows, spec.data.batch_size)
        apart = None
        if not roll.is_complete(part):
            here = torch.from_numpy(table)
            apart = spec.method.kept_apart(part, here, roll.names, label_holder)
        plans[part] = BatchPlan(len(table), size, seed=seed, shuffle=is_training, groups=apart)
    return plans


def num_exchanges(spec: RunSpec, roll: Roll, plans: Mapping[str, BatchPlan]) -> int | None:
    """How many exchanges training has at most; none where there is nothing to train on."""
    if "train" not in plans:
        return None
    per_epoch = spec.method.exchanges_per_epoch(plans["train"].num_batches, len(roll.names))
    return spec.stop.num_exchanges(per_epoch)


def fit_preparation(
    spec: RunSpec, name: str, block: Block | PooledBlock, row_of_sample: Rows, roll: Roll
) -> Fitted:
    """Fit scales and levels on the party's own training rows, in the order of sample numbers."""
    rows = roll.rows(name, "train", row_of_sample)
    rows = rows[rows >= 0]
    if not len(rows):
        raise DataError(f"party '{name}' has none of the training samples; leave it out")
    if isinstance(block, PooledBlock):
        specs = {owner: spec.prepare_of(owner) for owner in block.blocks}
        return PooledPreparation.fit(block, rows, specs)
    return Preparation.fit(block, rows, spec.prepare_of(name))


def make_parts(
    features: Tensor,
    row_of_sample: Rows,
    name: str,
    roll: Roll,
    plans: Mapping[str, BatchPlan],
    people: Tensor | None = None,
) -> dict[str, Part]:
    """The parts of prepared features, each with its own rows only; ``people`` by row."""
    parts = {}
    for part, plan in plans.items():
        rows = roll.rows(name, part, row_of_sample)
        here = rows >= 0
        is_complete = bool(here.all())
        used = rows if is_complete else rows[here]
        own = features
        # All rows in their order, as in most predictions, need no copy.
        if len(used) != len(features) or not np.array_equal(used, np.arange(len(used))):
            own = features[torch.from_numpy(used)]
        places = None
        if not is_complete:
            places = torch.from_numpy(np.where(here, np.cumsum(here) - 1, -1))
        persons = None
        if people is not None:
            persons = torch.from_numpy(np.where(here, people.numpy()[rows], -1))
        parts[part] = Part(features=own, plan=plan, rows=places, people=persons)
    return parts


def part_of_rows(
    features: Tensor, plan: BatchPlan, here: Tensor | None, people: Tensor | None = None
) -> Part:
    """A part of which the party has these samples; ``make_parts`` gives the same from a roll.

    Args:
        features: Of the samples that are here, in order; the part keeps them without a copy.
        plan: The batches of all samples.
        here: Whether each of all samples is here; none if all are.
        people: Of the samples that are here, if anybody keeps account of them.
    """
    if here is None:
        return Part(features=features, plan=plan, people=people)
    rows = torch.full(here.shape, -1)
    rows[here] = torch.arange(len(features))
    everyone = None
    if people is not None:
        everyone = torch.full(here.shape, -1)
        everyone[here] = people
    return Part(features=features, plan=plan, rows=rows, people=everyone)


def make_encoder(
    spec: RunSpec, name: str, preparation: Fitted, *, names: tuple[str, ...]
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


def num_parameters(spec: RunSpec, name: str, preparation: Fitted, names: tuple[str, ...]) -> int:
    """How many weights a party's network has, before any memory is taken for them."""
    with torch.device("meta"):
        encoder = make_encoder(spec, name, preparation, names=names)
    return sum(item.numel() for item in encoder.parameters())


def set_purpose(number: int, sets: Sequence[int], *whose: str) -> tuple[str | int, ...]:
    """What a network for a set of parties draws its first weights for."""
    return ("init", *whose) if number == max(sets) else ("init", *whose, "set", number)


def _encoder(
    spec: RunSpec,
    name: str,
    preparation: Fitted,
    *purpose: str | int,
) -> nn.Module:
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


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """What a party has of its own for a run: its prepared rows, and the row of every sample."""

    features: Tensor
    row_of_sample: Rows
    # The person of every row, where the party keeps account of people.
    people: Tensor | None = None


def build_party(
    spec: RunSpec,
    name: str,
    *,
    preparation: Fitted,
    data: OwnData | None,
    roll: Roll,
    plans: Mapping[str, BatchPlan],
    everyone: tuple[str, ...],
    num_outputs: int,
    doors: Doors,
    own: OwnTerms,
    replica: Replica | None = None,
) -> Party:
    """Make a party's half of the run's method: the one way, in process and at an agent.

    Args:
        spec: The agreed settings.
        name: Whose half.
        preparation: How its columns become features.
        data: Its features and rows; none for a party that only predicts later.
        roll: The samples of every part, and who has which.
        plans: The batches of every part of the roll.
        everyone: All who were trained together, those who left included.
        num_outputs: The width of the task's outputs.
        doors: The run's protections, checked.
        own: The party's own budget, identity and seed.
        replica: Labels and fusion model, where labels are shared.

    Returns:
        The party, with fresh weights from its own seed or the run's. Its vault and its ledger are
        given to it afterwards (``settle_in``).

    Raises:
        ConfigError: If the network does not fit the columns, the batches or the protections.
    """
    # The batches are the agreed seed's, whatever the first weights come from.
    seed = spec.seed if own.seed is None else own.seed
    encoder = make_encoder(replace(spec, seed=seed), name, preparation, names=everyone)
    parts = {}
    if data is not None:
        parts = make_parts(data.features, data.row_of_sample, name, roll, plans, data.people)
    if "train" in parts:
        _refuse_lone_samples(name, encoder, parts["train"])
    dtype = getattr(torch, spec.dtype)
    modules = {}
    if spec.method.needs.heads:
        with drawing_from(derive_seed(seed, "init", "head", name)):
            embedding = spec.encoder_of(name).embedding
            modules["head"] = spec.head_of(name).build(embedding, num_outputs).to(dtype)
    for network in (encoder, *modules.values()):
        place(network, spec.placement)
    optimizer, length = spec.optimizer_of(name), num_exchanges(spec, roll, plans)
    return spec.method.party(
        name=name,
        encoder=encoder,
        optimizer=optimizer.over(length) if length else optimizer,
        parts=parts,
        seed=seed,
        deterministic=all(map(is_deterministic, (encoder, *modules.values()))),
        modules=modules,
        replica=replica,
        door=doors.party_door(name, encoder, own),
        label_holder=doors.label_holder,
    )


def _refuse_lone_samples(name: str, encoder: nn.Module, part: Part) -> None:
    """Raise ConfigError if a batch has one sample and the encoder, batch norm in it, needs two.

    A party that has one row of a larger batch now and then goes by running statistics there.
    """
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
            'ResNets: norm = "group"), or a batch_size above 1'
        ) from error
