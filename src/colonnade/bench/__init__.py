"""Measurements of speed and memory as ratios, against something else in the same run.

Where two sides are timed they take turns, and their medians are compared. Each measurement is a
module of this package; ``run_bench`` runs one by name.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from importlib import import_module
from typing import Any

from colonnade.bench.slow_curves import draw_curves
from colonnade.bench.table import GOALS, WITHOUT_GOAL, bench_pages, fill_bench_page, with_goals
from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, RunError
from colonnade.core.extras import missing_package

__all__ = ["BENCHES", "bench_pages", "draw_curves", "fill_bench_page", "machine", "run_bench"]


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


# Measurements whose cases can be run by themselves; the others are quick or have one subject.
_BY_CASE = ("serve", "slow")


def run_bench(name: str, *, fast: bool = False, cases: Collection[str] = ()) -> dict[str, Any]:
    """Run one measurement.

    Args:
        name: One of ``BENCHES``.
        fast: Fewer repetitions.
        cases: The cases to run, of a measurement that can divide them; all if empty.

    Returns:
        Its rows, with machine and revision.

    Raises:
        ConfigError: A case is unknown, or a package is missing.
        RunError: A process of the measurement ended early.
    """
    _check_cases(name, cases)
    import torch

    from colonnade.core.numerics import NUMERICS
    from colonnade.run.summary import revision

    # One thread on both sides: these matrices are small, and a second thread measures the
    # machine's other work more than ours.
    torch.set_num_threads(1)
    try:
        measure = getattr(import_module(f"colonnade.bench.{BENCHES[name]}"), f"bench_{name}")
    except ModuleNotFoundError as error:
        raise missing_package(f"bench {name}", str(error.name), "network,serve,bench") from error
    try:
        measured = measure(fast, frozenset(cases)) if cases else measure(fast)
    except EOFError as error:
        # Left alone it would end the command with "Aborted", as a person's Ctrl-D does.
        raise RunError(
            f"bench {name}: one of its processes ended or hung up in the middle; run it again, "
            "with nothing else that takes memory"
        ) from error
    rows = with_goals(name, measured)
    return {
        "name": name,
        "fast": fast,
        "rows": rows,
        "machine": machine(),
        "revision": revision(),
        "numerics": NUMERICS,
    }


def _check_cases(name: str, cases: Collection[str]) -> None:
    if cases and name not in _BY_CASE:
        raise ConfigError(f"bench {name}: runs all its cases at once; leave out --case")
    known = [*GOALS[name], *WITHOUT_GOAL.get(name, ())] if cases else []
    for case in cases:
        if case not in known:
            raise ConfigError(f"bench {name}, case '{case}': unknown{nearest(case, known)}")


def machine() -> str:
    """The processor, Python and torch of this machine, in one line."""
    import torch

    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
