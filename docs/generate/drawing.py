"""A small kit for drawings in SVG: boxes, lines, arrows, words. Every drawing brings its own ground."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["AMBER", "BLUE", "GREEN", "GREY", "INK", "PURPLE", "RED", "Drawing"]

INK, GREY, GROUND = "#1f2933", "#5f6c7b", "#fcfbf8"
BLUE, AMBER, GREEN, PURPLE, RED = "#1f5fa8", "#9a5b00", "#256d3f", "#5b3aa6", "#b3261e"
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


class Drawing:
    """What was drawn so far; ``svg`` gives the file."""

    def __init__(self, width: int, height: int, *, title: str, about: str) -> None:
        self.width, self.height = width, height
        self._items = [f"<title>{escape(title)}</title>", f"<desc>{escape(about)}</desc>"]

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 14,
        color: str = INK,
        anchor: str = "middle",
        bold: bool = False,
        room: float | None = None,
    ) -> None:
        """One line around (x, y); ``room`` is how wide it may be.

        Raises:
            ValueError: If the words need more room, or leave the drawing.
        """
        needed = size * (0.57 if bold else 0.54) * len(text)
        left = x - {"start": 0.0, "middle": needed / 2, "end": needed}[anchor]
        if (room is not None and needed > room) or left < 2 or left + needed > self.width - 2:
            raise ValueError(f"no room for {text!r}: {needed:.0f} wide at {x:.0f}")
        weight = ' font-weight="600"' if bold else ""
        self._items.append(
            f'<text x="{x:g}" y="{y + size * 0.35:g}" font-size="{size}" fill="{color}" '
            f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        lines: str | Sequence[str] = (),
        *,
        color: str = GREY,
        fill: str | None = None,
        dashed: bool = False,
        size: int = 14,
        bold: bool = False,
        opaque: bool = False,
    ) -> None:
        """A rectangle with lines of words in its middle; tinted with its color unless ``fill``."""
        if opaque:
            self._items.append(
                f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
                f'fill="{GROUND}"/>'
            )
        ground = fill if fill is not None else color
        faint = "" if fill is not None else ' fill-opacity="0.1"'
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        self._items.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{min(6, height / 5):g}" '
            f'fill="{ground}"{faint} stroke="{color}" stroke-width="1.5"{dash}/>'
        )
        shown = [lines] if isinstance(lines, str) else list(lines)
        step = size * 1.35
        top = y + height / 2 - step * (len(shown) - 1) / 2
        ink = color if fill is None and color != GREY else INK
        for place, line in enumerate(shown):
            middle = x + width / 2
            self.words(
                middle, top + place * step, line, size=size, color=ink, bold=bold, room=width - 4
            )

    def polygon(self, points: Sequence[tuple[float, float]], *, color: str) -> None:
        """A closed shape, tinted with its color."""
        shown = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._items.append(
            f'<polygon points="{shown}" fill="{color}" fill-opacity="0.15" stroke="{color}" '
            'stroke-width="1.5" stroke-linejoin="round"/>'
        )

    def line(
        self,
        *points: tuple[float, float],
        color: str = GREY,
        dashed: bool = False,
        width: float = 1.5,
        arrow: bool = False,
    ) -> None:
        """A line through points, with a head at its end if it is an arrow."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        shown = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._items.append(
            f'<polyline points="{shown}" fill="none" stroke="{color}" stroke-width="{width}"{dash}/>'
        )
        if arrow:
            (ax, ay), (x, y) = points[-2:]
            length = ((x - ax) ** 2 + (y - ay) ** 2) ** 0.5
            ux, uy = (x - ax) / length, (y - ay) / length
            bx, by = x - 9 * ux, y - 9 * uy
            head = [(x, y), (bx - 4 * uy, by + 4 * ux), (bx + 4 * uy, by - 4 * ux)]
            corners = " ".join(f"{cx:.2f},{cy:.2f}" for cx, cy in head)
            self._items.append(f'<polygon points="{corners}" fill="{color}"/>')

    def svg(self) -> str:
        """The whole file."""
        body = "\n".join(self._items)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" font-family="{_FONT}">\n'
            f'<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>\n{body}\n</svg>\n'
        )
