"""Measurements as ratios: both sides interleaved in one run, medians compared."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch

from colonnade.bench.align import bench_align
from colonnade.bench.laser import bench_laser
from colonnade.bench.memory import bench_memory
from colonnade.bench.protect import bench_protect
from colonnade.bench.simulate import bench_simulate
from colonnade.bench.step import bench_step
from colonnade.bench.table import check_bench_page, fill_bench_page, with_goals
from colonnade.core.errors import ConfigError
from colonnade.run.summary import revision

__all__ = ["BENCHES", "check_bench_page", "fill_bench_page", "machine", "run_bench"]


def _network(fast: bool) -> list[dict[str, Any]]:
    """Imported when asked for: it needs the extra that the others do without."""
    try:
        from colonnade.bench.network import bench_network
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"bench network: needs {error.name}; pip install 'colonnade[network]'"
        ) from error
    return bench_network(fast)


BENCHES: Mapping[str, Callable[[bool], list[dict[str, Any]]]] = {
    "step": bench_step,
    "memory": bench_memory,
    "simulate": bench_simulate,
    "align": bench_align,
    "laser": bench_laser,
    "network": _network,
    "protect": bench_protect,
}


def run_bench(name: str, *, fast: bool = False) -> dict[str, Any]:
    """The rows of one measurement, with machine and revision."""
    # One thread on both sides: these matrices are small, and a second thread measures the
    # machine's other work more than ours.
    torch.set_num_threads(1)
    rows = with_goals(name, BENCHES[name](fast))
    return {"name": name, "fast": fast, "rows": rows, "machine": machine(), "revision": revision()}


def machine() -> str:
    """What this was measured on."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
