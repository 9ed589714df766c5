"""What the experiments of LASER-VFL share: blocks, and one training for several drawings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from _common import as_before
from colonnade.core.federation import Federation, LoopState, Predicted
from colonnade.data.blocks import Block
from colonnade.data.datasets import load_dataset
from colonnade.data.drawn_presence import (
    BetaMissing,
    Drawing,
    PresenceSpec,
    UniformMissing,
    draw_presence,
)
from colonnade.quality.by_party import measure_each
from colonnade.quality.evaluation import evaluate
from colonnade.run.fitting import fit_blueprint
from colonnade.run.samples import Arrangement, arrange
from colonnade.run.sources import Sources
from colonnade.run.spec import parse_spec

# In the order of the paper's table.
METHODS = {
    "Local": "local",
    "Standard VFL": "standard",
    "VFedTrans": "vfedtrans",
    "Ensemble": "ensemble",
    "Combinatorial": "combinatorial",
    "PlugVFL": "plug",
    "LASER-VFL": "laser",
}
# Ensemble trains the very models of Local, and every party's own answer is Local's: one training.
TRAINED_AS = {"local": "ensemble"}
# Methods whose parties answer each for itself; of the others all present parties share one answer.
ANSWER_EACH = ("local", "vfedtrans", "laser")
# Where our default is another: the task weights a_i as they stand.
AS_IN_PAPER = {"laser": {"weights": "paper"}}
BETA = "Beta(2, 2)"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A data set in equal blocks of its columns, in order."""

    dataset: str
    # Of appendix D: accuracy averaged over a sample's present parties, or F1 averaged over parties.
    metric: str
    hidden: tuple[int, ...]
    embedding: int
    batch_size: int
    num_parties: int | None = 4
    # The first so many columns, so that blocks are equal; all if not given.
    num_columns: int | None = None
    # So many training samples drawn at random; all if not given.
    num_train: int | None = None
    # Of the samples, where there is no official test part; as many of each class as there are.
    test_share: float = 0.2
    class_weights: str = "none"
    # What to do with columns that have a long upper tail.
    skewed: str = "keep"


TABLES = {
    "HAPT": Table(
        dataset="hapt",
        metric="mean_accuracy",
        hidden=(128, 128),
        embedding=128,
        batch_size=128,
        num_columns=560,
    ),
    "Credit": Table(
        dataset="credit_default",
        metric="mean_f1",
        hidden=(10, 10),
        embedding=10,
        batch_size=128,
        num_columns=20,
        class_weights="balanced",
    ),
}


@cache
def loaded_sources(table: Table) -> Sources:
    """The blocks, and the official test part if there is one."""
    loaded = load_dataset(table.dataset, num_parties=1 if table.num_columns else table.num_parties)
    blocks, holder = dict(loaded.blocks), loaded.label_holder
    if table.num_columns and table.num_parties:
        (whole,) = blocks.values()
        width = table.num_columns // table.num_parties
        blocks = {}
        for number in range(table.num_parties):
            name = f"party_{number + 1}"
            columns = whole.values.iloc[:, number * width : (number + 1) * width]
            blocks[name] = Block(owner=name, ids=whole.ids, values=columns)
        holder = "party_1"
    return Sources(
        blocks=blocks,
        labels=loaded.labels,
        label_holder=holder,
        kind=loaded.task,
        test_ids=loaded.test_ids,
    )


def sources_of(table: Table, seed: int) -> Sources:
    """The same with a test part: the official one, or drawn from the seed class by class."""
    loaded = loaded_sources(table)
    labels, test_ids = loaded.labels, loaded.test_ids
    if test_ids is None:
        draw = np.random.default_rng(seed)
        parts = []
        for label in np.unique(labels.values):
            own = draw.permutation(labels.ids[labels.values == label])
            parts.append(own[: round(len(own) * table.test_share)])
        test_ids = np.concatenate(parts)
    if table.num_train is not None:
        is_test = np.isin(labels.ids, test_ids)
        drawn = np.random.default_rng(0).permutation(np.flatnonzero(~is_test))[: table.num_train]
        kept = np.sort(np.concatenate([drawn, np.flatnonzero(is_test)]))
        labels = replace(labels, ids=labels.ids[kept], values=labels.values[kept])
    return replace(loaded, labels=labels, test_ids=test_ids)


def drawing(missing: float | str) -> Drawing:
    """How blocks go missing: with one probability, or with one that is drawn for each block."""
    return BetaMissing() if isinstance(missing, str) else UniformMissing(missing=missing)


def with_drawings(
    arrangement: Arrangement, part: str, drawings: tuple[float | str, ...], seed: int
) -> Arrangement:
    """The same samples with further parts: one held-out part under each of the drawings."""
    roll = arrangement.roll
    samples, presence = dict(roll.samples), dict(roll.presence)
    numbers = samples.pop(part)
    del presence[part]
    for missing in drawings:
        name = part_at(missing)
        # Unrelated to the training part's, also where probabilities are drawn.
        stays = draw_presence(
            PresenceSpec(inference=drawing(missing)), roll.names, name, len(numbers), seed=~seed
        )
        kept = stays.any(axis=1)
        samples[name], presence[name] = numbers[kept], stays[kept]
    return replace(arrangement, roll=replace(roll, samples=samples, presence=presence))


def part_at(missing: float | str) -> str:
    return f"inference at {missing}"


def quality(federation: Federation, part: str, *, each: bool) -> dict[str, float]:
    """Appendix D: every party's own answers, or the one answer that all present parties share."""
    labels = federation.holder.parts[part]
    if each:
        answers = dict(federation.predictions(part, labels.plan, each=True).each)
    else:
        outputs = federation.predictions(part, labels.plan).outputs
        known = federation.holder.presence.get(part)
        answers = {}
        for place, name in enumerate(federation.fabric.names):
            here = outputs.new_ones(len(outputs)).bool() if known is None else known.table[:, place]
            positions = here.nonzero()[:, 0]
            answers[name] = Predicted(positions, outputs[positions])
    return measure_each(federation.holder.task, answers, labels.values)


@cache
def measured(
    table: Table,
    method: str,
    train_missing: float | str,
    inference: tuple[float | str, ...],
    settings: str,
    seed: int,
    part: str = "test",
) -> Mapping[tuple[str, float | str], dict[str, float]]:
    """One training, and the quality under every inference drawing, by how parties answer.

    ``settings`` is JSON: method, optimizer and epochs. ``part = "validation"`` holds out a fifth of
    the training part instead and looks at that: settings are chosen so, never on the test part.
    """
    own = json.loads(settings)
    missing = drawing(train_missing)
    spec = parse_spec(
        as_before(
            {
                "seed": seed,
                "threads": 1,
                "method": {"name": method, **AS_IN_PAPER.get(method, {}), **own.get("method", {})},
                "data": {
                    "batch_size": own.get("batch_size", table.batch_size),
                    "split": {"validation": 0.2 if part == "validation" else 0.0},
                },
                "defaults": {
                    "prepare": {"skewed": table.skewed},
                    "encoder": {
                        "kind": "mlp",
                        "hidden": list(table.hidden),
                        "embedding": table.embedding,
                        "activate_output": False,
                    },
                    "optimizer": own["optimizer"],
                },
                "label_holder": {
                    "class_weights": table.class_weights,
                    "fusion": {
                        "kind": "linear",
                        "combine": "concat" if method == "plug" else "mean",
                    },
                    "optimizer": own["optimizer"],
                },
                "stop": {"epochs": own["epochs"]},
            }
        )
    )
    spec = replace(spec, data=replace(spec.data, presence=PresenceSpec(train=missing)))
    sources = sources_of(table, seed)
    arrangement = with_drawings(arrange(spec, sources), part, inference, seed)
    if part == "validation":
        roll = arrangement.roll
        unused = {"test"}
        arrangement = replace(
            arrangement,
            roll=replace(
                roll,
                samples={key: item for key, item in roll.samples.items() if key not in unused},
                presence={key: item for key, item in roll.presence.items() if key not in unused},
            ),
        )
    blueprint = fit_blueprint(spec, sources, arrangement)
    federation = blueprint.build(blueprint.training_data(arrangement))
    for _ in federation.train(spec.stop, LoopState(), evaluate):
        pass
    found = {}
    for at in inference:
        for how in ("each", "shared"):
            if how == "shared" or method in ("ensemble", *ANSWER_EACH):
                measures = quality(federation, part_at(at), each=how == "each")
                found[how, at] = {key: 100 * value for key, value in measures.items()}
    federation.fabric.close()
    return found


def measure(
    table: Table,
    method: str,
    train_missing: float | str,
    missing: float | str,
    inference: tuple[float | str, ...],
    settings: Mapping[str, Any],
    seed: int,
) -> dict[str, float | None]:
    """One cell of a table: the metric of the paper, and the others beside it."""
    found = measured(
        table,
        TRAINED_AS.get(method, method),
        train_missing,
        inference,
        json.dumps(settings, sort_keys=True),
        seed,
    )
    how = "each" if method in ANSWER_EACH else "shared"
    measures = found[how, missing]
    return {
        "quality": measures[table.metric],
        **{key: measures[key] for key in ("mean_accuracy", "mean_f1") if key in measures},
    }
