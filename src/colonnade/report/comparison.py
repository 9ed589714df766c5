"""Several runs on one page, as their directories have them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from colonnade.core.errors import ConfigError
from colonnade.report.page import ComparisonRow, write_comparison
from colonnade.report.reading import RunRecord, read_run

__all__ = ["compare_runs"]


def compare_runs(directories: Sequence[Path], out: Path) -> Path:
    """Write one page about several runs: a row and a section each.

    Args:
        directories: The runs' directories.
        out: The page's file.

    Returns:
        The path of the page.

    Raises:
        ConfigError: The runs have no metric in common.
        StorageError: A file of a run is missing or damaged, or the page can't be written.
    """
    names = _names(directories)
    runs = dict(zip(names, directories, strict=True))
    records = {name: read_run(directory) for name, directory in runs.items()}
    metric = _metric(list(records.values()))
    shared = set.intersection(*(set(_quality(record)) for record in records.values()))
    rows = [_row(name, record, metric, shared) for name, record in records.items()]
    differing = {record.fabric for record in records.values()}
    intro = f"Held-out {metric} of {len(rows)} runs, each at its end or as far as it got."
    if len(differing) > 1:
        intro += " Their times are on different clocks and don't compare."
    return write_comparison(
        rows, title="Runs compared", intro=intro, out=out, quality_name=metric, runs=runs
    )


def _names(directories: Sequence[Path]) -> list[str]:
    """Directories' names; with as much of their paths as tells them apart."""
    resolved = [directory.resolve() for directory in directories]
    short = [path.name for path in resolved]
    if len(set(short)) == len(short):
        return short
    if len(set(resolved)) < len(resolved):
        raise ConfigError("runs: one directory is given twice; name different runs")
    shared = os.path.commonpath(resolved)
    return [str(path.relative_to(shared)) for path in resolved]


def _metric(records: Sequence[RunRecord]) -> str:
    known = [_quality(record) for record in records]
    wanted = [records[0].quality_name, *known[0]]
    for name in wanted:
        if name is not None and all(name in found for found in known):
            return name
    raise ConfigError("runs: they have no metric in common; compare runs of one kind of task")


def _quality(record: RunRecord) -> dict[str, float]:
    """At the end on the test part, or else the newest that is known."""
    if record.summary is not None:
        for part in ("test", "validation"):
            if record.summary.quality.get(part):
                return dict(record.summary.quality[part])
    return dict(record.evaluations[-1].metrics) if record.evaluations else {}


def _row(name: str, record: RunRecord, metric: str, shared: set[str]) -> ComparisonRow:
    """One line; a metric that not all runs have is in the sections of those that have it."""
    quality = {key: value for key, value in _quality(record).items() if key in shared}
    parties = f"{record.method}, {len(record.parties)} parties"
    return ComparisonRow(
        name=name,
        summary=parties,
        quality=quality.pop(metric, math.nan),
        metrics=quality,
        bytes_total=sum(record.bytes_up.values()) + sum(record.bytes_down.values()),
        seconds=record.elapsed or 0.0,
        note="" if record.summary is not None else "unfinished",
    )
