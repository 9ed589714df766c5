"""A heat map of quality by observed set: parties as rows, sets as columns.

It is drawn without matplotlib, since it has only squares and text. Colours are the page's own, so
that one picture suits light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from colonnade.report.readable import shortened

__all__ = ["Column", "heat_map"]

_CELL, _ROW, _GAP, _LEFT, _TOP, _BOTTOM = 44, 26, 10, 150, 24, 24
_PALEST, _FULLEST = 0.06, 0.6
_LONGEST_NAME = 20
_MISSING = "\N{MIDDLE DOT}"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One observed set, or all sets of one size: its parties, its quality, each party's quality."""

    group: str
    parties: frozenset[str]
    num_samples: int
    quality: float
    each: Mapping[str, float]


def heat_map(
    columns: Sequence[Column], *, parties: Sequence[str], together: str, label: str
) -> str:
    """The picture as one SVG element.

    A cell with a number is the quality of that row's predictor on that set; one with a filled dot
    says that the party is in the set but has no predictor of its own.
    """
    values = [
        value
        for column in columns
        for value in (column.quality, *column.each.values())
        if math.isfinite(value)
    ]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    places, width = _places(columns)
    height = _TOP + _ROW * (len(parties) + 1) + _GAP + _BOTTOM
    drawn = [_name(0, together, bold=True)]
    drawn += [_name(row, name) for row, name in enumerate(parties, start=1)]
    drawn += _groups(columns, places)
    for column, left in zip(columns, places, strict=True):
        drawn.append(_cell(left, 0, column.quality, low, high, bold=True))
        for row, name in enumerate(parties, start=1):
            if name in column.each:
                drawn.append(_cell(left, row, column.each[name], low, high))
            else:
                drawn.append(_mark(left, row, name in column.parties))
        drawn.append(
            _text(left + _CELL / 2, height - 8, f"{column.num_samples:,}", "muted", "middle")
        )
    drawn.append(_text(_LEFT - 8, height - 8, "samples", "muted", "end"))
    # A small picture keeps its size, a large one scrolls.
    look = f"width:{width}px;max-width:none" if width > 700 else f"max-width:{width}px"
    return (
        f'<svg viewBox="0 0 {width} {height}" class="chart" role="img" style="{look}" '
        f'aria-label="{escape(label)}">{"".join(drawn)}</svg>'
    )


def _places(columns: Sequence[Column]) -> tuple[list[int], int]:
    """The left edge of every column, with a gap between groups; and the width of it all."""
    places, left = [], _LEFT
    for number, column in enumerate(columns):
        if number and column.group != columns[number - 1].group:
            left += _GAP
        places.append(left)
        left += _CELL
    return places, left + _GAP


def _groups(columns: Sequence[Column], places: Sequence[int]) -> list[str]:
    found = []
    for group in dict.fromkeys(column.group for column in columns):
        own = [left for left, column in zip(places, columns, strict=True) if column.group == group]
        middle = (own[0] + own[-1] + _CELL) / 2
        found.append(_text(middle, _TOP - 9, group, "muted", "middle"))
    return found


def _top(row: int) -> int:
    return _TOP + _ROW * row + (_GAP if row else 0)


def _name(row: int, name: str, *, bold: bool = False) -> str:
    shown = shortened(name, _LONGEST_NAME)
    return _text(_LEFT - 8, _top(row) + _ROW / 2 + 4, shown, "ink", "end", bold=bold)


def _cell(left: int, row: int, value: float, low: float, high: float, *, bold: bool = False) -> str:
    share = (value - low) / (high - low) if high > low and math.isfinite(value) else 0.0
    opacity = _PALEST + (_FULLEST - _PALEST) * share
    shown = f"{value:.3f}" if math.isfinite(value) else "none"
    square = (
        f'<rect x="{left + 1}" y="{_top(row) + 1}" width="{_CELL - 2}" height="{_ROW - 2}" rx="2" '
        f'style="fill:var(--accent);fill-opacity:{opacity:.3f};stroke:var(--line)"/>'
    )
    middle = left + _CELL / 2
    return square + _text(middle, _top(row) + _ROW / 2 + 4, shown, "ink", "middle", bold=bold)


def _mark(left: int, row: int, is_in: bool) -> str:
    x, y = left + _CELL / 2, _top(row) + _ROW / 2
    if is_in:
        return f'<circle cx="{x:g}" cy="{y:g}" r="5" style="fill:var(--ink)"/>'
    return _text(x, y + 4, _MISSING, "muted", "middle")


def _text(x: float, y: float, content: str, tone: str, anchor: str, *, bold: bool = False) -> str:
    weight = ";font-weight:600" if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" '
        f'style="fill:var(--{tone});font-size:12px{weight}">{escape(content)}</text>'
    )
