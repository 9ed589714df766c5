"""Memory of a long run: resident bytes after many exchanges against those after the first ones."""

from __future__ import annotations

import gc
from typing import Any

from colonnade.bench.processes import process_bytes
from colonnade.bench.subjects import Shape, exchange, make_federation

__all__ = ["bench_memory"]


def bench_memory(fast: bool) -> list[dict[str, Any]]:
    """Rows for both local fabrics: 10,000 exchanges against 1,000."""
    return [_row(fabric, 2_000 if fast else 10_000) for fabric in ("in_process", "simulated")]


def _row(fabric: str, num_exchanges: int) -> dict[str, Any]:
    shape = Shape(num_parties=4, num_columns=16, hidden=32, embedding=16, num_samples=1024)
    federation = make_federation(shape, fabric=fabric)
    settled = num_exchanges // 10
    for number in range(settled):
        exchange(federation, number)
    before = _resident_bytes()
    for number in range(settled, num_exchanges):
        exchange(federation, number)
    return {
        "case": fabric,
        "ratio": _resident_bytes() / before,
        "unit": f"resident bytes after {num_exchanges} exchanges / after {settled}",
        "against": "itself, earlier in the same run",
        "runs": num_exchanges,
    }


def _resident_bytes() -> int:
    gc.collect()
    return process_bytes("VmRSS")
