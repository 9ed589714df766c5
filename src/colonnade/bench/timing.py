"""Timing of two functions in turns, so that the machine's other work slows both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

__all__ = ["interleaved"]


def interleaved(
    ours: Callable[[int], None], against: Callable[[int], None], *, runs: int
) -> tuple[float, float]:
    """Median seconds of each over ``runs`` turns, after a tenth as many to warm up."""
    warm_up = max(1, runs // 10)
    mine, theirs = [], []
    for number in range(warm_up + runs):
        began = time.perf_counter()
        against(number)
        between = time.perf_counter()
        ours(number)
        ended = time.perf_counter()
        if number >= warm_up:
            theirs.append(between - began)
            mine.append(ended - between)
    return statistics.median(mine), statistics.median(theirs)
