"""The picture of ``bench slow``: quality over wall time, with the slow party and without."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["draw_curves"]

_SLOW, _QUICK = "#bb3355", "#5533bb"


def draw_curves(outcome: Mapping[str, Any]) -> bytes | None:
    """Draw the curves of a measurement, a panel for each method.

    Args:
        outcome: The content of a measurement's file.

    Returns:
        An SVG file; None if no row has curves.
    """
    rows = [row for row in outcome["rows"] if row.get("curves")]
    if not rows:
        return None
    # Imported when something is drawn: it takes half a second.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # The same file for the same numbers.
    with rc_context({"svg.hashsalt": "colonnade"}):
        figure = Figure(figsize=(3 * len(rows), 3.2), layout="constrained")
        panels = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
        for axes, row in zip(panels, rows, strict=True):
            _draw(axes, row["curves_against"], _QUICK, "without delay")
            _draw(axes, row["curves"], _SLOW, "one party behind 200 ms")
            axes.axhline(row["target"], color="black", linewidth=0.8, linestyle=":")
            axes.set_title(row["case"])
            axes.set_xlabel("wall time, s")
            axes.set_xlim(left=0)
        panels[0].set_ylabel("validation accuracy")
        panels[0].legend(loc="lower right", fontsize="small")
        content = io.BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def _draw(
    axes: Any, curves: Iterable[Iterable[tuple[float, float]]], color: str, name: str
) -> None:
    for place, curve in enumerate(curves):
        seconds, quality = zip(*curve, strict=True)
        label = None if place else name
        axes.plot(seconds, quality, color=color, linewidth=1.2, alpha=0.8, label=label)
