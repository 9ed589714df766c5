"""Traces of CPU use over time on real machines, for simulated clocks with uneven parties.

Traces have no labels and no columns to split, so they have a registry of their own, ``TRACES``.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from colonnade.core.config import nearest
from colonnade.core.errors import DataError
from colonnade.data.datasets.description import words
from colonnade.data.datasets.location import find_data, has_data

__all__ = ["TRACES", "TraceEntry", "is_trace_available", "load_cpu_trace"]

Array = np.ndarray[Any, Any]

PLANETLAB_DAYS = words("""
    20110303 20110306 20110309 20110322 20110325 20110403 20110409 20110411 20110412 20110420
""")
AWS_SERIES = words("""
    cpu_utilization_asg_misconfiguration ec2_cpu_utilization_24ae8d ec2_cpu_utilization_53ea38
    ec2_cpu_utilization_5f5533 ec2_cpu_utilization_77c1ca ec2_cpu_utilization_825cc2
    ec2_cpu_utilization_ac20cd ec2_cpu_utilization_c6585a ec2_cpu_utilization_fe7f93
    rds_cpu_utilization_cc0c53 rds_cpu_utilization_e47b3b
""")


@dataclass(frozen=True, kw_only=True)
class TraceEntry:
    """A row of the registry of traces: steps are five minutes in all of them.

    Args:
        name: Its name in ``load_cpu_trace``.
        summary: One line for a list.
        num_machines: The number of machines.
        num_steps: The number of steps of each machine.
        source: Authors and licence.
        paths: Its files, relative to a data directory.
        read: The function that reads them, as percentages (machine, step).
    """

    name: str
    summary: str
    num_machines: int
    num_steps: int
    source: str
    paths: tuple[str, ...]
    read: Callable[[Path, tuple[str, ...]], Array]


def read_google(directory: Path, paths: tuple[str, ...]) -> Array:
    """A day of each virtual machine, by name of job and day; the second column is memory."""
    days = {}
    with tarfile.open(directory / paths[0]) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                days[member.name] = np.array(file.read().split(), float).reshape(-1, 2)[:, 0]
    return np.stack([days[name] for name in sorted(days)])


def read_planetlab(directory: Path, paths: tuple[str, ...]) -> Array:
    """All machines of all ten days, day after day; those of one day are aligned in time."""
    days = [pd.read_csv(directory / path).drop(columns="vm").to_numpy(float) for path in paths]
    return np.concatenate(days)


def read_nab(directory: Path, paths: tuple[str, ...]) -> Array:
    """The first two weeks of each series; one of them goes on for longer."""
    series = [pd.read_csv(directory / path)["value"].to_numpy(float) for path in paths]
    shortest = min(map(len, series))
    return np.stack([values[:shortest] for values in series])


TRACES: Mapping[str, TraceEntry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            TraceEntry(
                name="google",
                summary="Virtual machine days of the 2011 Google cluster trace",
                num_machines=1600,
                num_steps=288,
                source="Google cluster trace 2011, CC BY 4.0; reduced by Nguyen, Di Francesco, "
                "Ylä-Jääski",
                paths=("cluster_cpu/google_GCD_VMs.tar.gz",),
                read=read_google,
            ),
            TraceEntry(
                name="planetlab",
                summary="Virtual machines of PlanetLab on ten days of 2011",
                num_machines=11746,
                num_steps=288,
                source="Park and Pai, CoMon; published by Beloglazov and Buyya; licence not stated",
                paths=tuple(
                    f"cluster_cpu/planetlab/planetlab_cpu_{day}.csv.gz" for day in PLANETLAB_DAYS
                ),
                read=read_planetlab,
            ),
            TraceEntry(
                name="nab",
                summary="Amazon machines, two weeks each, with anomalies",
                num_machines=11,
                num_steps=4032,
                source="Numenta Anomaly Benchmark, MIT",
                paths=tuple(f"cluster_cpu/nab_aws/{series}.csv.gz" for series in AWS_SERIES),
                read=read_nab,
            ),
        )
    }
)


def load_cpu_trace(
    name: str, *, num_machines: int | None = None, root: Path | None = None
) -> Array:
    """Load the CPU use of recorded machines.

    Args:
        name: One of the names in ``TRACES``.
        num_machines: Take the first so many machines; None takes all.
        root: Where to look for files first.

    Returns:
        A (machine, step) array with values from 0 to 1.

    Raises:
        DataError: The name is unknown, or there are fewer machines.
        DatasetNotFound: Some files are missing.
    """
    entry = named_trace(name)
    if num_machines is not None and not 1 <= num_machines <= entry.num_machines:
        raise DataError(
            f"num_machines: trace '{name}' has {entry.num_machines} machines, "
            f"got {num_machines}; ask for 1 to {entry.num_machines}"
        )
    directory = find_data(f"trace {name}", entry.paths, entry.source, root)
    percent = entry.read(directory, entry.paths)[:num_machines]
    return np.clip(percent / 100.0, 0.0, 1.0)


def is_trace_available(name: str, root: Path | None = None) -> bool:
    """Say whether the files of a trace are on this machine.

    Args:
        name: One of the names in ``TRACES``.
        root: Where to look first.

    Returns:
        True if ``load_cpu_trace`` would find every file.

    Raises:
        DataError: The name is unknown.
    """
    return has_data(named_trace(name).paths, root)


def named_trace(name: str) -> TraceEntry:
    if name not in TRACES:
        raise DataError(f"trace '{name}' is not known{nearest(name, list(TRACES))}")
    return TRACES[name]
