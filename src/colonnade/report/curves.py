"""Named lines of a chart, and what a page's script needs to read values off them.

The picture is complete without the script: it adds a reading under the pointer or the arrow keys,
and buttons that switch lines off.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from colonnade.core.printable import printable

__all__ = ["Curve", "Tone", "readable_curves", "smoothed", "thinned"]

Tone = Literal["accent", "ink", "muted"]
# A reading needs fewer points than a line, and a page should stay small.
_MOST_READ = 400


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A named line; NaN leaves a gap. ``faint`` is for raw values behind a smoothed line.

    ``place`` is for one of several lines of equal rank: it gives a colour and a dash instead of the
    tone's.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    tone: Tone = "accent"
    faint: bool = False
    place: int | None = None


def readable_curves(
    picture: str,
    curves: Sequence[Curve],
    *,
    x_label: str,
    divisor: float,
    corners: tuple[tuple[float, float], tuple[float, float]],
    holds: bool = False,
) -> str:
    """A chart with the numbers of its lines, for the page's script.

    Args:
        picture: The SVG element; line ``n`` has the attribute ``data-curve="n"``.
        curves: The lines, in order.
        x_label: What runs from left to right.
        divisor: From the curves' own unit to the axis's.
        corners: Where the values (0, 0) and (1, 1) of the axes are in the picture.
        holds: Whether a line without a value at some place is read there at its latest value;
            otherwise it is left out of that reading.

    Returns:
        HTML around the picture.
    """
    lines: list[dict[str, Any]] = []
    for curve in curves:
        places = thinned(len(curve.xs), _MOST_READ)
        pairs = [(curve.xs[place] / divisor, curve.ys[place]) for place in places]
        lines.append(
            {
                "name": printable(curve.name),
                "points": [
                    [float(f"{x:.6g}"), float(f"{y:.6g}")]
                    for x, y in pairs
                    if math.isfinite(x) and math.isfinite(y)
                ],
            }
        )
    content = {"x": printable(x_label), "corners": corners, "holds": holds, "lines": lines}
    held = html.escape(json.dumps(content, allow_nan=False, separators=(",", ":")))
    return f'<div class="curves" data-curves="{held}">{picture}</div>'


def smoothed(values: Sequence[float]) -> list[float]:
    """The mean around each value, over up to a thirtieth of them all; NaN stays out of it."""
    reach = min(len(values) // 60, 50) or min(len(values) // 10, 1)
    means = []
    for place, value in enumerate(values):
        around = values[max(place - reach, 0) : place + reach + 1]
        finite = [near for near in around if math.isfinite(near)]
        means.append(math.fsum(finite) / len(finite) if math.isfinite(value) else math.nan)
    return means


def thinned(length: int, most: int) -> list[int]:
    """At most so many places out of a sequence, evenly apart, the first and last among them."""
    if length <= most:
        return list(range(length))
    return [round(step * (length - 1) / (most - 1)) for step in range(most)]
