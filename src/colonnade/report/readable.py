"""Numbers, durations, amounts of data and names as people read them, in charts and in tables.

Plain text only: ``markup`` makes it safe for a page, ``charts`` and ``heat_map`` draw it.
"""

from __future__ import annotations

import math
from typing import Literal

__all__ = [
    "Quantity",
    "format_bytes",
    "format_number",
    "format_seconds",
    "printable",
    "shortened",
    "unit_for",
]

Quantity = Literal["bytes", "seconds"]


def format_bytes(amount: float) -> str:
    """Bytes as people say them: 1.23 MB."""
    divisor, unit = unit_for("bytes", amount)
    return f"{amount / divisor:.3g} {unit}"


def format_seconds(seconds: float) -> str:
    """Seconds as people say them: 12.3 s, 3 min 20 s, 2 h 5 min."""
    if not math.isfinite(seconds):
        return "not recorded"
    if seconds >= 3599.5:
        minutes = round(seconds / 60)
        return f"{minutes // 60} h {minutes % 60} min"
    if seconds >= 59.95:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s"


def format_number(value: float) -> str:
    """A metric with four digits that count."""
    return f"{value:.4g}" if math.isfinite(value) else "not a number"


def unit_for(quantity: Quantity, largest: float) -> tuple[float, str]:
    """A divisor that makes numbers up to the largest short, and the unit that they then have."""
    units = {
        "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes")),
        "seconds": ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"), (1e-3, "ms")),
    }[quantity]
    for divisor, unit in units:
        if largest >= divisor * (0.9995 if quantity == "bytes" else 1.0):
            return divisor, unit
    return (1.0, "bytes") if quantity == "bytes" else (1.0, "seconds")


def shortened(text: str, most: int = 30) -> str:
    """Printable text of at most so many characters; tables have it whole."""
    plain = printable(text)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def printable(text: str) -> str:
    """The text with a replacement character for every sign that can't be shown."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
