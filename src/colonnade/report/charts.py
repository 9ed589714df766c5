"""Charts as SVG text for a page: curves, bars of parties, and a ranking.

Colours of text, lines and curves are CSS variables of the page, so that one picture suits light and
dark. Parties have fixed colours from the palette of Okabe and Ito, which colour-blind readers can
tell apart. Ids start with the chart's key: charts can share a page. ``heat_map`` has the heat map.
"""

from __future__ import annotations

import io
import math
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

from colonnade.report.curves import Curve, readable_curves, thinned
from colonnade.report.readable import (
    Quantity,
    format_bytes,
    format_number,
    format_seconds,
    printable,
    shortened,
    unit_for,
)

# matplotlib takes 25 MB and a moment to import, so functions that draw import it.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "PALETTE",
    "PartyBars",
    "curves_chart",
    "party_bars_chart",
    "party_colours",
    "ranking_chart",
]

Size = Literal["wide", "half"]

# Okabe and Ito (2008) without black, which is the page's own ink; grey is the eighth.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
# Lines of equal rank: eight colours and three dashes repeat together only after 24 lines.
_NUM_COLOURS = 8
# While drawing, a colour that is used nowhere else stands for each variable of the page.
_STAND_INS: Mapping[str, str] = {
    "accent": "#0a0b01",
    "ink": "#0a0b02",
    "muted": "#0a0b03",
    "line": "#0a0b04",
    **{f"run-{place}": f"#0a0c0{place}" for place in range(_NUM_COLOURS)},
}
_WIDTHS: Mapping[str, float] = {"wide": 8.8, "half": 4.3}
_DASHES: Mapping[str, str] = {"accent": "-", "ink": "--", "muted": ":"}
_MARKERS: Mapping[str, str] = {"accent": "o", "ink": "s", "muted": "^"}
_RANKED_DASHES = ("-", "--", ":")
_RANKED_MARKERS = ("o", "s", "^", "D", "v")
_MAX_POINTS = 1500
_SECOND_ALPHA = 0.35
_STEPS = [1, 2, 2.5, 5, 10]
# What the page's script switches off; ``_svg`` makes attributes of these names.
_CURVE = "curve-"

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "colonnade",
    "text.parse_math": False,
    "font.size": 8.5,
    "text.color": _STAND_INS["ink"],
    "axes.edgecolor": _STAND_INS["line"],
    "axes.labelcolor": _STAND_INS["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": _STAND_INS["line"],
    "grid.linewidth": 0.5,
    "xtick.color": _STAND_INS["line"],
    "ytick.color": _STAND_INS["line"],
    "xtick.labelcolor": _STAND_INS["muted"],
    "ytick.labelcolor": _STAND_INS["muted"],
    "legend.frameon": False,
}
# Matplotlib's settings belong to the whole process: one chart at a time may change them.
_SETTINGS = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class PartyBars:
    """Two quantities of each party, such as computing and waiting; an absent one has no bar.

    ``marks`` are said in brackets after some names.
    """

    names: Sequence[str]
    marks: Mapping[str, str]
    first: tuple[str, Mapping[str, float]]
    second: tuple[str, Mapping[str, float]]
    quantity: Quantity
    stacked: bool


def party_colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each party, by its place among the names."""
    return {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(names)}


def curves_chart(
    curves: Sequence[Curve],
    *,
    key: str,
    label: str,
    x_label: str,
    y_label: str,
    size: Size,
    x_is_seconds: bool = False,
    x_is_share: bool = False,
    y_range: tuple[float, float] | None = None,
    levels: Sequence[tuple[str, float]] = (),
    holds: bool = False,
) -> str:
    """Lines over exchanges, time or a share, as an SVG element in a box.

    ``levels`` are named heights to compare with, such as what a guess reaches. ``holds`` is for
    lines that have their values at different places; see ``readable_curves``.
    """
    with _styled():
        figure = _new_figure(figsize=(_WIDTHS[size], 2.7), layout="constrained")
        axes = figure.add_subplot()
        xs = [x for curve in curves for x in curve.xs if math.isfinite(x)] or [0.0]
        divisor, unit = unit_for("seconds", max(xs)) if x_is_seconds else (1.0, "")
        for place, curve in enumerate(curves):
            _draw_curve(axes, curve, divisor, f"{_CURVE}{place}")
        # The axis covers all recorded exchanges, also those whose values are gaps.
        room = 0.03 * (max(xs) - min(xs)) or 0.1 * abs(max(xs)) or 1.0
        axes.set_xlim((min(xs) - room) / divisor, (max(xs) + room) / divisor)
        axes.set_xlabel(f"{x_label} ({unit})" if unit else x_label)
        axes.set_ylabel(shortened(y_label))
        _few_ticks(axes, 6, integer=not (x_is_seconds or x_is_share))
        if y_range is not None:
            axes.set_ylim(*y_range)
        low, high = axes.get_ylim()
        for name, height in levels:
            under = any(0 < other - height < (high - low) / 10 for _, other in levels)
            axes.axhline(height, color=_STAND_INS["muted"], linewidth=0.8, linestyle=(0, (4, 3)))
            said = f"{shortened(name)} {format_number(height)}"
            side, across = "top" if under else "bottom", axes.get_yaxis_transform()
            axes.text(1.0, height, said, transform=across, ha="right", va=side)
        axes.legend(loc="best", fontsize="small").set_gid(f"{_CURVE}legend")
        picture = _svg(figure, key, label)
        return readable_curves(
            picture,
            curves,
            x_label=axes.get_xlabel(),
            divisor=divisor,
            corners=_corners(axes),
            holds=holds,
        )


def party_bars_chart(
    bars: PartyBars, *, colours: Mapping[str, str], key: str, label: str, size: Size
) -> str:
    """Two quantities per party as bars, end to end or one under the other, as an SVG element."""
    with _styled():
        figure = _new_figure(
            figsize=(_WIDTHS[size], 0.85 + 0.42 * max(len(bars.names), 1)), layout="constrained"
        )
        axes = figure.add_subplot()
        sizes = [_finite(values.get(name)) for _, values in _both(bars) for name in bars.names]
        most = max(sizes, default=0.0)
        if bars.stacked:
            most = max((a + b for a, b in _pairs(bars)), default=0.0)
        divisor, unit = unit_for(bars.quantity, most)
        thick = 0.55 if bars.stacked else 0.36
        for place, (name, (first, second)) in enumerate(zip(bars.names, _pairs(bars), strict=True)):
            offset = 0.0 if bars.stacked else thick / 2
            look: dict[str, Any] = {
                "height": thick,
                "edgecolor": _STAND_INS["muted"],
                "linewidth": 0.4,
            }
            pale = (colours[name], _SECOND_ALPHA)
            left = first / divisor if bars.stacked else 0.0
            axes.barh([place - offset], [first / divisor], facecolor=colours[name], **look)
            axes.barh([place + offset], [second / divisor], left=left, facecolor=pale, **look)
            if bars.stacked:
                _note(axes, left + second / divisor, place, _amount(bars, first + second))
            else:
                _note(axes, first / divisor, place - offset, _amount(bars, first))
                _note(axes, second / divisor, place + offset, _amount(bars, second))
        _party_axis(axes, [_marked(name, bars.marks.get(name)) for name in bars.names])
        axes.set_xlabel(unit)
        axes.set_xlim(0.0, max(most / divisor, 1e-9) * (1.2 if size == "wide" else 1.3))
        from matplotlib.patches import Patch

        handles = [
            Patch(color=_STAND_INS["muted"], linewidth=0.0, alpha=alpha, label=title)
            for (title, _), alpha in zip(_both(bars), (1.0, _SECOND_ALPHA), strict=True)
        ]
        figure.legend(
            handles=handles, loc="outside upper right", ncols=2, fontsize="small", borderpad=0.1
        )
        return _svg(figure, key, label)


def ranking_chart(
    rows: Sequence[tuple[str, float]], *, key: str, label: str, x_label: str, size: Size
) -> str:
    """One bar per name, from zero, with the number at its end; NaN is said, not drawn."""
    with _styled():
        figure = _new_figure(
            figsize=(_WIDTHS[size], 0.7 + 0.32 * max(len(rows), 1)), layout="constrained"
        )
        axes = figure.add_subplot()
        for place, (_, value) in enumerate(rows):
            axes.barh([place], [_finite(value)], height=0.6, color=_STAND_INS["accent"])
            _note(axes, max(_finite(value), 0.0), place, format_number(value))
        _party_axis(axes, [shortened(name) for name, _ in rows])
        lowest = min([0.0, *(_finite(value) for _, value in rows)])
        highest = max([0.0, *(_finite(value) for _, value in rows)])
        room = 0.12 * ((highest - lowest) or 1.0)
        axes.set_xlim(lowest - (room if lowest < 0 else 0.0), highest + room)
        axes.axvline(0.0, color=_STAND_INS["muted"], linewidth=0.8)
        axes.set_xlabel(shortened(x_label))
        return _svg(figure, key, label)


@contextmanager
def _styled() -> Iterator[None]:
    """The charts' own style, whatever else this process draws."""
    import matplotlib.style

    with _SETTINGS, matplotlib.style.context(["default", _STYLE]):
        yield


def _new_figure(*, figsize: tuple[float, float], layout: Literal["constrained"]) -> Figure:
    from matplotlib.figure import Figure

    # SVG has 72 units to an inch: transforms of the figure are places in the picture.
    return Figure(figsize=figsize, layout=layout, dpi=72)


def _few_ticks(axes: Axes, most: int, *, integer: bool = False) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(most, steps=_STEPS, integer=integer))


def _corners(axes: Axes) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where (0, 0) and (1, 1) are in the picture that was drawn; its heights count from above."""
    assert axes.figure is not None
    tall = axes.figure.bbox.height
    (left, bottom), (right, top) = axes.transData.transform([(0.0, 0.0), (1.0, 1.0)]).tolist()
    return (
        (round(left, 4), round(tall - bottom, 4)),
        (round(right, 4), round(tall - top, 4)),
    )


def _draw_curve(axes: Axes, curve: Curve, divisor: float, gid: str) -> None:
    places = thinned(len(curve.xs), _MAX_POINTS)
    xs = [curve.xs[place] / divisor for place in places]
    ys = [curve.ys[place] for place in places]
    few = sum(math.isfinite(y) for y in ys) <= 40
    # Matplotlib leaves names that begin with an underscore out of the legend.
    name = shortened(curve.name)
    name = f"\N{ZERO WIDTH SPACE}{name}" if name.startswith("_") else name
    colour: str = curve.tone
    dash, marker = _DASHES[curve.tone], _MARKERS[curve.tone]
    if curve.place is not None:
        colour = f"run-{curve.place % _NUM_COLOURS}"
        dash = _RANKED_DASHES[curve.place % len(_RANKED_DASHES)]
        marker = _RANKED_MARKERS[curve.place % len(_RANKED_MARKERS)]
    axes.plot(
        xs,
        ys,
        label=name,
        color=_STAND_INS[colour],
        linestyle="-" if curve.faint else dash,
        linewidth=0.8 if curve.faint else 1.6,
        alpha=0.6 if curve.faint else 1.0,
        marker=marker if few and not curve.faint else "",
        markersize=3.0,
        gid=gid,
    )


def _both(bars: PartyBars) -> tuple[tuple[str, Mapping[str, float]], ...]:
    return (bars.first, bars.second)


def _pairs(bars: PartyBars) -> list[tuple[float, float]]:
    first, second = bars.first[1], bars.second[1]
    return [(_finite(first.get(name)), _finite(second.get(name))) for name in bars.names]


def _amount(bars: PartyBars, value: float) -> str:
    return format_bytes(value) if bars.quantity == "bytes" else format_seconds(value)


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0


def _note(axes: Axes, x: float, y: float, text: str) -> None:
    axes.annotate(
        text,
        (x, y),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize="small",
        annotation_clip=False,
    )


def _party_axis(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelcolor=_STAND_INS["ink"])
    axes.grid(visible=False, axis="y")
    _few_ticks(axes, 5)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)


def _marked(name: str, mark: str | None) -> str:
    return shortened(name) if mark is None else f"{shortened(name)} ({mark})"


def _svg(figure: Figure, key: str, label: str) -> str:
    """The figure as one SVG element with its own ids and the page's colours."""
    text = io.StringIO()
    with warnings.catch_warnings():
        # The reader's browser has the letters that Matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(text.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    used = set(re.findall(r"#(\w+)", " ".join(_references(root))))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        if attributes.get("id") not in used:
            name = attributes.pop("id", "")
            if name.startswith(_CURVE):
                attributes["data-curve"] = name.removeprefix(_CURVE)
        for name, value in attributes.items():
            if name == "id":
                attributes[name] = f"{key}-{value}"
            elif name == "style":
                attributes[name] = _themed(value)
            attributes[name] = re.sub(r"url\(#", f"url(#{key}-", attributes[name])
        if "href" in attributes:
            attributes["href"] = f"#{key}-{attributes['href'][1:]}"
        element.attrib.clear()
        element.attrib.update(attributes)
        if element.tag != "text" and element.text:
            element.text = element.text.strip()
        element.tail = None
    kept = {"viewBox": root.attrib["viewBox"], "class": "chart", "role": "img"}
    root.attrib.clear()
    root.attrib.update({**kept, "aria-label": printable(label)})
    return ElementTree.tostring(root, encoding="unicode")


def _references(root: ElementTree.Element) -> list[str]:
    return [
        value
        for element in root.iter()
        for name, value in element.attrib.items()
        if name.endswith(("href", "clip-path", "style"))
    ]


def _themed(style: str) -> str:
    """A style with the page's variables for stand-in colours, and with the page's font."""
    style = re.sub(r"font-family: [^;]*(; )?", "", style)
    style = re.sub(r"font: ([\d.]+px)[^;]*", r"font-size: \1", style)
    for name, colour in _STAND_INS.items():
        style = style.replace(colour, f"var(--{name})")
    return style
