"""Named data sets, each split by columns between parties, and traces of CPU use.

``load_dataset("breast_cancer")`` needs no files; ``DATASETS`` lists every data set and the files
that it needs. Values are the provider's: numbers, and text for categories. No cell is empty and no
column is constant; the loader's docstring says what it filled in. Nothing is downloaded here, and
tables of one's own are read by ``colonnade.data.blocks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from colonnade.core.config import nearest
from colonnade.core.errors import DataError
from colonnade.data.datasets import (
    activity,
    bundled,
    hospital,
    houses,
    image_sets,
    qoe,
    tabular,
    voice,
)
from colonnade.data.datasets.description import Dataset, DatasetEntry
from colonnade.data.datasets.location import cache_directory, find_data, has_data
from colonnade.data.datasets.partition import repartition
from colonnade.data.datasets.traces import (
    TRACES,
    TraceEntry,
    is_trace_available,
    load_cpu_trace,
)

__all__ = [
    "DATASETS",
    "TRACES",
    "Dataset",
    "DatasetEntry",
    "TraceEntry",
    "cache_directory",
    "is_available",
    "is_trace_available",
    "load_cpu_trace",
    "load_dataset",
    "repartition",
]

DATASETS: Mapping[str, DatasetEntry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            *bundled.ENTRIES,
            *tabular.ENTRIES,
            *image_sets.ENTRIES,
            *activity.ENTRIES,
            *voice.ENTRIES,
            *houses.ENTRIES,
            *qoe.ENTRIES,
            *hospital.ENTRIES,
        )
    }
)


def load_dataset(name: str, *, num_parties: int | None = None, root: Path | None = None) -> Dataset:
    """Load a named data set.

    Args:
        name: One of the names in ``DATASETS``.
        num_parties: Deal the columns out evenly to so many parties; None keeps the natural split.
        root: Where to look for files first, before ``COLONNADE_DATA`` and the cache directory.

    Returns:
        The blocks by party, the labels, and who holds them.

    Raises:
        DataError: The name is unknown, or there are fewer columns than parties.
        DatasetNotFound: Some files are missing; the message says which and where to get them.
    """
    entry = named_entry(name)
    directory = find_data(name, entry.paths, entry.source, root) if entry.needs_files else Path()
    dataset = entry.load(entry, directory)
    return dataset if num_parties is None else repartition(dataset, num_parties)


def is_available(name: str, root: Path | None = None) -> bool:
    """Say whether the files of a data set are on this machine.

    Args:
        name: One of the names in ``DATASETS``.
        root: Where to look first.

    Returns:
        True if ``load_dataset`` would find every file, or needs none.

    Raises:
        DataError: The name is unknown.
    """
    entry = named_entry(name)
    return not entry.needs_files or has_data(entry.paths, root)


def named_entry(name: str) -> DatasetEntry:
    if name not in DATASETS:
        raise DataError(f"data set '{name}' is not known{nearest(name, list(DATASETS))}")
    return DATASETS[name]
