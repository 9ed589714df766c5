"""Measurements of speed and memory as ratios, against something else in the same run.

Where two sides are timed they take turns, and their medians are compared. Each measurement is a
module of this package; ``run_bench`` runs one by name.
"""

from __future__ import annotations

import os
import platform
from importlib import import_module
from typing import Any

from colonnade.bench.table import check_bench_page, fill_bench_page, with_goals
from colonnade.core.errors import ConfigError

__all__ = ["BENCHES", "check_bench_page", "fill_bench_page", "machine", "run_bench"]


# The module that has the function bench_NAME. It is imported when the measurement runs: the help of
# the command line lists the names and must not wait for the modules.
BENCHES = {
    "step": "step",
    "memory": "resident_memory",
    "simulate": "simulate",
    "align": "align",
    "laser": "laser_exchange",
    "network": "network",
    "protect": "protect",
    "serve": "serving_speed",
    "slow": "slow",
    "soak": "soak",
}


def run_bench(name: str, *, fast: bool = False) -> dict[str, Any]:
    """Run one measurement; its rows, with machine and revision."""
    import torch

    from colonnade.core.numerics import NUMERICS
    from colonnade.run.summary import revision

    # One thread on both sides: these matrices are small, and a second thread measures the
    # machine's other work more than ours.
    torch.set_num_threads(1)
    try:
        measure = getattr(import_module(f"colonnade.bench.{BENCHES[name]}"), f"bench_{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"bench {name}: needs {error.name}; pip install 'colonnade[{name}]'"
        ) from error
    rows = with_goals(name, measure(fast))
    return {
        "name": name,
        "fast": fast,
        "rows": rows,
        "machine": machine(),
        "revision": revision(),
        "numerics": NUMERICS,
    }


def machine() -> str:
    """The processor, Python and torch of this machine, in one line."""
    import torch

    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
