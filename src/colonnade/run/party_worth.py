"""What each party of a trained run is worth: quality from every set of blocks, without retraining.

A method that tolerates missing blocks answers from any set of them. So the value of a set is
measured on the model as it is: every held-out sample is predicted from the set's blocks alone. A
sample of which the set has no block gets the best constant answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from colonnade.core.errors import ConfigError, DataError, StorageError
from colonnade.core.federation import Federation
from colonnade.core.numerics import NUMERICS
from colonnade.core.seeds import derive_seed
from colonnade.core.task import Task
from colonnade.methods import METHODS
from colonnade.parts.party_sets import members
from colonnade.quality.worth import (
    MOST_EXACT,
    Ratings,
    Worth,
    mean_ratings,
    r2_ratings,
    sampled_orders,
    sets_of_orders,
    worth_of,
)
from colonnade.run.assembly import Blueprint, TrainingData
from colonnade.run.warm_start import seen_by

__all__ = ["WORTH", "measure_worth", "read_costs"]

WORTH = "worth.json"
# Orders of the parties that are sampled where there are too many sets.
NUM_ORDERS = 64

Array = np.ndarray[Any, Any]


class _Decided(NamedTuple):
    """Answers for all samples, and which of them a block spoke for."""

    answers: Array
    kept: Array


def measure_worth(
    blueprint: Blueprint,
    data: TrainingData,
    federation: Federation,
    *,
    part: str = "test",
    costs: pd.DataFrame | None = None,
    num_orders: int = NUM_ORDERS,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Shapley values of the parties on a held-out part.

    Args:
        blueprint: The run's.
        data: Its samples.
        federation: With trained weights.
        part: The samples to look at.
        costs: What a decision costs, as ``read_costs`` gives it: a second value beside the run's
            metric.
        num_orders: How many orders to sample with more than 12 parties.
        progress: Gets the sets looked at so far, and all.

    Returns:
        Plain values for JSON.

    Raises:
        ConfigError: The method needs every block, or a party adds noise to what it sends.
        DataError: There is no such part, or costs don't fit the classes.
    """
    _refuse(blueprint, federation)
    if part not in data.labels:
        raise DataError(f"no part '{part}' in this run; there are {sorted(data.labels)}")
    names, task, values = blueprint.participants, blueprint.task, data.labels[part]
    if costs is not None:
        check_costs(costs, task)
    seed = derive_seed(blueprint.spec.seed, "worth")
    orders = None
    sets: Iterable[int] = range(1 << len(names))
    if len(names) > MOST_EXACT:
        orders = sampled_orders(len(names), num_orders, seed)
        sets = sorted(set(sets_of_orders(orders).ravel().tolist()))
    wanted = list(sets)
    decided: dict[int, _Decided] = {}
    for done, number in enumerate(wanted, start=1):
        decided[number] = _decisions(blueprint, data, federation, part, members(number, names))
        if progress is not None:
            progress(done, len(wanted))
    found = worth_of(names, _ratings(task, decided, values), orders=orders, seed=seed)
    by_costs = None
    if costs is not None:
        constant = _cheapest(costs, data.labels["train"])
        gains = _gains(costs, decided, values, constant)
        by_costs = _plain(worth_of(names, gains, orders=orders, seed=seed))
    return {
        "part": part,
        "num_samples": len(values),
        "num_sets": len(wanted),
        "metric": task.quality_name,
        "method": blueprint.spec.method.info.name,
        "numerics": NUMERICS,
        **_plain(found),
        "by_costs": by_costs,
    }


def read_costs(path: Path) -> pd.DataFrame:
    """Read what decisions cost.

    Args:
        path: A CSV file: a row per true class, whose name is in the first column, and a column per
            predicted class. Gains are negative costs.

    Returns:
        The table, with classes as texts.

    Raises:
        StorageError: The file can't be read.
        DataError: It is not such a table.
    """
    if not path.is_file():
        raise StorageError(f"{path}: no such file; give a CSV file of costs")
    try:
        table = pd.read_csv(path, index_col=0, dtype={0: str})
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a table of costs: {error}") from error
    table.index = table.index.map(str)
    table.columns = table.columns.map(str)
    numbers: pd.DataFrame = table.apply(pd.to_numeric, errors="coerce")
    if table.empty or not np.isfinite(numbers.to_numpy(np.float64)).all():
        raise DataError(f"{path}: every cost must be a finite number")
    return numbers


def check_costs(costs: pd.DataFrame, task: Task) -> None:
    """Raise DataError unless there is one cost for every pair of classes."""
    if task.kind == "regression":
        raise DataError("costs: a table by classes; this run predicts a number")
    classes = [str(item) for item in task.classes]
    for axis, found in (("row", costs.index), ("column", costs.columns)):
        if sorted(found) != sorted(classes):
            raise DataError(
                f"costs: expected one {axis} for each of the classes {classes}, got {list(found)}"
            )


def _refuse(blueprint: Blueprint, federation: Federation) -> None:
    info = blueprint.spec.method.info
    if not info.tolerates_missing:
        tolerant = [name for name, item in METHODS.items() if item.info.tolerates_missing]
        raise ConfigError(
            f"method '{info.name}' needs every block, so no set of parties can be valued without "
            f"training again; train with one that does not: {', '.join(tolerant)}"
        )
    if federation.accounting:
        raise ConfigError(
            f"{', '.join(federation.accounting)} add noise and account for every release; each set "
            "of parties is a question of its own, which would spend their budget"
        )


def _decisions(
    blueprint: Blueprint,
    data: TrainingData,
    federation: Federation,
    part: str,
    names: tuple[str, ...],
) -> _Decided:
    """Answers from the blocks of these parties; the best constant where they have none."""
    task = blueprint.task
    answers = _constant(task, data.labels["train"], len(data.labels[part]))
    there = np.array([name in names for name in data.roll.names])
    kept = (data.roll.presence[part] & there).any(axis=1)
    if kept.any():
        seen = seen_by(data, part, names)
        (name,) = seen.roll.samples
        parts, plans = blueprint.other_parts(seen)
        outputs = federation.over(parts).predictions(name, plans[name]).outputs
        answers[kept] = task.decide(outputs)
    return _Decided(answers, kept)


def _constant(task: Task, train: Array, count: int) -> Array:
    """What to say without any block: the most frequent class, or the mean."""
    if task.kind == "regression":
        return np.full(count, task.center)
    classes, counts = np.unique(train, return_counts=True)
    return np.full(count, classes[counts.argmax()], dtype=np.asarray(task.classes).dtype)


def _ratings(task: Task, decided: Mapping[int, _Decided], values: Array) -> Ratings:
    if task.kind == "regression":
        truth = np.asarray(values, dtype=np.float64)
        errors = {key: (item.answers - truth) ** 2 for key, item in decided.items()}
        return r2_ratings(errors, truth)
    return mean_ratings({key: (item.answers == values) * 1.0 for key, item in decided.items()})


def _cheapest(costs: pd.DataFrame, train: Array) -> str:
    """The constant answer that costs least on the training labels."""
    shares = pd.Series(np.asarray(train).astype(str)).value_counts(normalize=True)
    expected = costs.mul(shares.reindex(costs.index).fillna(0.0), axis=0).sum()
    return str(expected.idxmin())


def _gains(
    costs: pd.DataFrame, decided: Mapping[int, _Decided], values: Array, constant: str
) -> Ratings:
    """What decisions gain: their costs, negative."""
    rows = costs.index.get_indexer(pd.Index(np.asarray(values).astype(str)))
    table = costs.to_numpy(np.float64)
    found = {}
    for number, item in decided.items():
        said = np.where(item.kept, np.asarray(item.answers).astype(str), constant)
        found[number] = -table[rows, costs.columns.get_indexer(pd.Index(said))]
    return mean_ratings(found)


def _plain(found: Worth) -> dict[str, Any]:
    return {
        "total": found.total,
        "nothing": found.nothing,
        "num_orders": found.num_orders,
        "parties": [asdict(item) for item in found.parties],
    }
