"""One SplitNN exchange in process against one centralized step of the same joint network."""

from __future__ import annotations

from typing import Any

from colonnade.bench.subjects import JointNetwork, Shape, exchange, make_federation
from colonnade.bench.timing import interleaved

__all__ = ["bench_step"]


def bench_step(fast: bool) -> list[dict[str, Any]]:
    """Rows for K = 2, 4, 8, 16 parties; batch 128, 64 columns each, 64-128-64 encoders."""
    runs = 100 if fast else 500
    return [_row(num_parties, runs) for num_parties in (2, 4, 8, 16)]


def _row(num_parties: int, runs: int) -> dict[str, Any]:
    federation = make_federation(Shape(num_parties=num_parties))
    joint = JointNetwork(federation)
    ours, theirs = interleaved(lambda number: exchange(federation, number), joint.step, runs=runs)
    return {
        "case": f"K={num_parties}",
        "ratio": ours / theirs,
        "unit": "time of one SplitNN exchange / time of one centralized step",
        "against": "PyTorch, same parameters, one graph, one optimizer",
        "runs": runs,
        "microseconds": ours * 1e6,
        "microseconds_against": theirs * 1e6,
    }
