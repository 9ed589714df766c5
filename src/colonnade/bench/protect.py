"""Protected SplitNN exchanges against plain ones: same networks and batches, turn by turn."""

from __future__ import annotations

from typing import Any

from colonnade.bench.subjects import Shape, exchange, make_federation
from colonnade.bench.timing import interleaved

__all__ = ["bench_protect"]

_BLIND = ({"kind": "blind"},)
_PERTURB = ({"kind": "perturb", "noise": 1.0},)


def bench_protect(fast: bool) -> list[dict[str, Any]]:
    """Rows for blinding at K = 4 and 16 and for perturbation at K = 4; embeddings 128 x 64."""
    runs = 100 if fast else 500
    return [
        _row("blinded", _BLIND, 4, runs),
        _row("blinded", _BLIND, 16, runs),
        _row("perturbed", _PERTURB, 4, runs),
    ]


def _row(
    name: str, protect: tuple[dict[str, Any], ...], num_parties: int, runs: int
) -> dict[str, Any]:
    shape = Shape(num_parties=num_parties)
    plain = make_federation(shape, combine="mean")
    protected = make_federation(shape, combine="mean", protect=protect)
    ours, theirs = interleaved(
        lambda number: exchange(protected, number),
        lambda number: exchange(plain, number),
        runs=runs,
    )
    return {
        "case": f"{name}-K={num_parties}",
        "ratio": ours / theirs,
        "unit": "time of one protected SplitNN exchange / time of one plain",
        "against": "the same federation without protection, mean fusion, all in one process",
        "runs": runs,
        "microseconds": ours * 1e6,
        "microseconds_against": theirs * 1e6,
    }
