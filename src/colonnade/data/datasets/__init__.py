"""Named data sets: each comes split by columns between parties, as it might be in life.

``load_dataset("breast_cancer")`` works everywhere; ``DATASETS`` lists what there is and what has
to be fetched first. Values are as the provider gives them (numbers, and text for categories), with
no cell empty and no constant column; every loader's docstring says what was filled in and how.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from colonnade.core.errors import DataError
from colonnade.data.datasets import activity, bundled, hospital, houses, images, qoe, tabular, voice
from colonnade.data.datasets.description import Dataset, DatasetEntry
from colonnade.data.datasets.location import cache_directory, find_data, has_data
from colonnade.data.datasets.naming import unknown_name
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

ROWS = (
    *bundled.ENTRIES,
    *tabular.ENTRIES,
    *images.ENTRIES,
    *activity.ENTRIES,
    *voice.ENTRIES,
    *houses.ENTRIES,
    *qoe.ENTRIES,
    *hospital.ENTRIES,
)

DATASETS: Mapping[str, DatasetEntry] = MappingProxyType({entry.name: entry for entry, _ in ROWS})

LOADERS = {entry.name: loader for entry, loader in ROWS}


def load_dataset(name: str, *, num_parties: int | None = None, root: Path | None = None) -> Dataset:
    """Load a data set in its natural split, or dealt out evenly to ``num_parties`` parties.

    Files are looked for under ``root``, then ``COLONNADE_DATA``, then the cache directory.
    """
    entry = named_entry(name)
    directory = find_data(name, entry.paths, entry.source, root) if entry.needs_files else Path()
    dataset = LOADERS[name](entry, directory)
    return dataset if num_parties is None else repartition(dataset, num_parties)


def is_available(name: str, root: Path | None = None) -> bool:
    """Whether a data set can be loaded on this machine as it is."""
    entry = named_entry(name)
    return not entry.needs_files or has_data(entry.paths, root)


def named_entry(name: str) -> DatasetEntry:
    if name not in DATASETS:
        raise DataError(unknown_name("data set", name, DATASETS))
    return DATASETS[name]
