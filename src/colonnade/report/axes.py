"""Axes that don't make noise look like learning: fixed ends, and what a guess reaches in sight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from colonnade.report.verdict import read_card
from colonnade.run.timeline_file import timeline_lines

__all__ = ["axis_of", "compared_with"]

_SHARES = frozenset(
    {"accuracy", "auc", "f1", "macro_f1", "precision", "recall", "average_precision"}
)


def axis_of(metric: str, values: Sequence[float]) -> tuple[float, float] | None:
    """The ends of a metric's axis.

    Args:
        metric: Its name.
        values: All that will be drawn.

    Returns:
        Of a share up to 1, and below it a tenth lower than the lowest value; of R² at least from 0
        to 1; of an error from 0. None for a metric of another kind.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    if metric in _SHARES:
        return max(0.0, math.floor(10 * min(finite) - 0.5) / 10), 1.02
    if metric == "r2":
        return min(-0.05, 1.05 * min(finite)), 1.02
    if metric in ("loss", "rmse", "mae") and min(finite) >= 0:
        return 0.0, 1.08 * (max(finite) or 1.0)
    return None


def compared_with(run: Path, metric: str) -> list[tuple[str, float]]:
    """What to compare a run's curve with.

    Args:
        run: The run's directory.
        metric: The metric that is drawn.

    Returns:
        Names and values: what a guess reaches on the validation part, and the label holder alone.
    """
    found = []
    for line in timeline_lines(run):
        guess = line.get("guess") if line["kind"] == "start" else None
        if isinstance(guess, dict) and isinstance(guess.get("metrics"), dict):
            value = guess["metrics"].get(metric)
            if isinstance(value, float) and math.isfinite(value):
                found.append((str(guess.get("who")), value))
            break
    card = read_card(run)
    if card is not None and card.metric == metric:
        alone = [row for row in card.rows if row.who.endswith(" alone")]
        found += [(row.who, row.value) for row in alone if math.isfinite(row.value)]
    return found
