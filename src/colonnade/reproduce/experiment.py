"""An experiment's cells, measured one by one; results are saved at once, so that it can resume."""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, Diverged
from colonnade.core.numerics import NUMERICS
from colonnade.reproduce.staleness import read_outcome
from colonnade.run.storage import write_json
from colonnade.run.summary import revision

__all__ = ["Experiment", "Job", "load_experiment", "run_experiment"]

Measured = Mapping[str, float | None]

# The fields of an experiment that its file of results has.
_KEPT = ("name", "title", "metric", "better", "along", "note")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One cell of a table.

    Args:
        coordinates: Its place in the table, such as the method and the data set.
        measure: ``measure(seed, fast)`` gives the experiment's metric by name, and any further
            numbers; None stands for a target that was not reached.
        paper: The paper's number, if there is one.
    """

    coordinates: Mapping[str, str | int | float]
    measure: Callable[[int, bool], Measured]
    paper: float | None = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A paper's table.

    Args:
        name: Its name on the command line.
        title: The title of table and picture.
        metric: The name of the measured number.
        better: Whether higher or lower numbers are better.
        jobs: The cells.
        note: Differences from the paper: data, protocol, settings.
        seeds: The number of seeds.
        beside: Further numbers of every run that the table shows, as means.
        along: The coordinate whose values are columns, and points of a curve. Without one there is
            a row and a bar for every cell.
    """

    name: str
    title: str
    metric: str
    better: Literal["higher", "lower"]
    jobs: Sequence[Job]
    note: str
    seeds: int = 5
    beside: Sequence[str] = ()
    along: str | None = None


def load_experiment(name: str, directory: Path) -> Experiment:
    """Load an experiment from its file, which defines ``experiment()``.

    Args:
        name: The name of the file, with hyphens for underscores and without ``.py``.
        directory: The directory of experiments.

    Returns:
        The experiment.

    Raises:
        ConfigError: There is no such file.
    """
    known = sorted(
        path.stem.replace("_", "-")
        for path in directory.glob("*.py")
        if not path.stem.startswith("_")
    )
    if name not in known:
        raise ConfigError(f"experiment '{name}': unknown{nearest(name, known)}")
    path = directory / f"{name.replace('-', '_')}.py"
    module_spec = importlib.util.spec_from_file_location(f"experiments_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    experiment: Experiment = module.experiment()
    return experiment


def run_experiment(
    experiment: Experiment,
    *,
    out: Path,
    seeds: int | None = None,
    fast: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Measure every cell for every seed.

    Args:
        experiment: The experiment.
        out: The JSON file of results. One of the same revision that lacks some runs is resumed;
            one that is empty counts as none.
        seeds: The number of seeds; by default the experiment's, or one if ``fast``.
        fast: Train less, to see that everything works.
        progress: A function that gets the cell, the number of the run and of all runs.

    Returns:
        The content of the file.

    Raises:
        StorageError: There is a file of that name that holds no results.
    """
    numbers = list(range(seeds or (1 if fast else experiment.seeds)))
    outcome = _begun(experiment, out, numbers, fast) or {
        **{key: getattr(experiment, key) for key in _KEPT},
        "beside": list(experiment.beside),
        "seeds": numbers,
        "fast": fast,
        "revision": revision(),
        "numerics": NUMERICS,
        "machine": _machine(),
        "finished": False,
        "seconds": 0.0,
        "cells": [
            {"coordinates": dict(job.coordinates), "paper": job.paper, "runs": []}
            for job in experiment.jobs
        ],
    }
    total, done = len(experiment.jobs) * len(numbers), 0
    for job, cell in zip(experiment.jobs, outcome["cells"], strict=True):
        for seed in numbers:
            done += 1
            if seed < len(cell["runs"]):
                continue
            if progress is not None:
                progress(_where(job), done, total)
            began = time.monotonic()
            cell["runs"].append(_measure(job, seed, fast, experiment.metric))
            _summarize(cell, experiment.metric)
            outcome["seconds"] += time.monotonic() - began
            write_json(out, outcome)
    outcome["finished"] = True
    write_json(out, outcome)
    return outcome


def _measure(job: Job, seed: int, fast: bool, metric: str) -> dict[str, Any]:
    """Measure one run; None and the reason stand for one that diverged."""
    try:
        return {"seed": seed, **job.measure(seed, fast)}
    except Diverged as error:
        return {"seed": seed, metric: None, "diverged": str(error)}


def _summarize(cell: dict[str, Any], metric: str) -> None:
    values = [run[metric] for run in cell["runs"] if run[metric] is not None]
    cell["seeds"] = len(cell["runs"])
    cell["missed"] = len(cell["runs"]) - len(values)
    # A mean without the runs that missed would flatter them: the table has a median then.
    complete = not cell["missed"]
    cell["mean"] = statistics.fmean(values) if complete else None
    cell["std"] = (statistics.stdev(values) if len(values) > 1 else 0.0) if complete else None
    if cell["mean"] is not None and not math.isfinite(cell["mean"]):
        raise ValueError(f"{cell['coordinates']}: {metric} is {cell['mean']}")


def _begun(
    experiment: Experiment, out: Path, numbers: list[int], fast: bool
) -> dict[str, Any] | None:
    """The earlier results to go on from: stopped halfway, or finished with fewer seeds."""
    if not out.exists() or not out.stat().st_size:
        return None
    before = read_outcome(out)
    same = (
        before["name"] == experiment.name
        and before["seeds"] == numbers[: len(before["seeds"])]
        and before["fast"] == fast
        and before["revision"] == revision()
        and before.get("numerics") == NUMERICS
        and not (before["finished"] and before["seeds"] == numbers)
        and [cell["coordinates"] for cell in before["cells"]]
        == [dict(job.coordinates) for job in experiment.jobs]
    )
    return before | {"seeds": numbers, "finished": False} if same else None


def _where(job: Job) -> str:
    return ", ".join(f"{key} {value}" for key, value in job.coordinates.items())


def _machine() -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}"
    )
