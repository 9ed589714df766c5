"""The demo's picture: what a federation gains, and what a missing or a slow party costs it.

Its colours stand for themselves, on a white ground, since it is shown on pages of others too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from colonnade.report.charts import PALETTE

__all__ = ["Course", "write_demo_picture"]

# Quality by second.
Course: TypeAlias = Sequence[tuple[float, float]]

_GREY = "#6b7280"


def write_demo_picture(
    accuracies: Sequence[tuple[str, float]],
    courses: Mapping[str, Course],
    *,
    target: float,
    out: Path,
) -> Path:
    """Draw accuracies as bars, and courses over simulated time, as one SVG file.

    Args:
        accuracies: Names and accuracies, first to last.
        courses: Quality by simulated second, by name.
        target: The quality at which a course ends.
        out: The file.

    Returns:
        Its path.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    style = {"svg.hashsalt": "colonnade", "font.size": 9.5, "axes.spines.top": False}
    with matplotlib.style.context(["default", {**style, "axes.spines.right": False}]):
        figure = Figure(figsize=(10, 3.4), layout="constrained")
        bars, lines = figure.subplots(1, 2, width_ratios=(1.15, 1))
        names = [name for name, _ in accuracies]
        values = [value for _, value in accuracies]
        colours = [_colour(name) for name in names]
        bars.barh(names, values, color=colours, height=0.62)
        for place, value in enumerate(values):
            bars.text(value + 0.01, place, f"{value:.3f}", va="center", color=_GREY)
        bars.invert_yaxis()
        bars.set_xlim(0, 1.14)
        bars.set_xlabel("test accuracy")
        bars.set_title("Alone, together, and with a party missing", fontsize=10.5, loc="left")
        last = max(second for course in courses.values() for second, _ in course)
        for (name, course), colour in zip(courses.items(), (PALETTE[5], PALETTE[0]), strict=True):
            seconds, quality = zip(*course, strict=True)
            lines.plot(seconds, quality, marker="o", markersize=3.5, color=colour)
            lines.annotate(
                name,
                (seconds[-1], quality[-1]),
                xytext=(6, -26),
                textcoords="offset points",
                color=colour,
                ha="right" if seconds[-1] == last else "left",
            )
        lines.axhline(target, color=_GREY, linewidth=0.8, linestyle=":")
        lines.set_xlim(left=0)
        lines.set_ylim(0, 1)
        lines.set_xlabel("simulated seconds")
        lines.set_ylabel("validation accuracy")
        lines.set_title("One party behind half a second of network", fontsize=10.5, loc="left")
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out


def _colour(name: str) -> str:
    if name.startswith("LASER"):
        return PALETTE[2]
    return PALETTE[5] if "missing" in name else PALETTE[0]
