"""Measurements as ratios: both sides interleaved in one run, medians compared."""

from __future__ import annotations

import os
import platform
from importlib import import_module
from typing import Any

from colonnade.bench.table import check_bench_page, fill_bench_page, with_goals
from colonnade.core.errors import ConfigError

__all__ = ["BENCHES", "check_bench_page", "fill_bench_page", "machine", "run_bench"]


# Each is the function bench_NAME of the module NAME, imported when it is asked for: the help of the
# command line lists the names, and is not to wait for what they measure.
BENCHES = ("step", "memory", "simulate", "align", "laser", "network", "protect")


def run_bench(name: str, *, fast: bool = False) -> dict[str, Any]:
    """The rows of one measurement, with machine and revision."""
    import torch

    from colonnade.run.summary import revision

    # One thread on both sides: these matrices are small, and a second thread measures the
    # machine's other work more than ours.
    torch.set_num_threads(1)
    try:
        measure = getattr(import_module(f"colonnade.bench.{name}"), f"bench_{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"bench {name}: needs {error.name}; pip install 'colonnade[{name}]'"
        ) from error
    rows = with_goals(name, measure(fast))
    return {"name": name, "fast": fast, "rows": rows, "machine": machine(), "revision": revision()}


def machine() -> str:
    """What this was measured on."""
    import torch

    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
