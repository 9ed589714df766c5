"""The table of factors, and its place in a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.files import check_place, fill_place

__all__ = ["check_page", "fill_page", "markdown_table"]

_BEGIN, _END = "<!-- bench: peers -->", "<!-- end of bench -->"


def markdown_table(outcome: Mapping[str, Any]) -> str:
    """A row per peer: what it is, milliseconds per step of both, the factor."""
    lines = [
        "| against | version | its ms a step | our ms a step | factor |",
        "|---|---|---|---|---|",
    ]
    for row in outcome["rows"]:
        versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
        theirs, ours = 1000 / row["per_second_against"], 1000 / row["per_second"]
        numbers = f"{_rounded(theirs)} | {_rounded(ours)} | {_rounded(row['ratio'])}"
        lines.append(f"| {row['against']} | {versions} | {numbers} |")
    low, high = (pick(row["load"] for row in outcome["rows"]) for pick in (min, max))
    # Neighbours slow both sides down, and whoever computes more, more.
    lines += [
        "",
        f"Revision {outcome['revision']}; {outcome['machine']}; processes that wanted a core "
        f"before each measurement: {low:.1f} to {high:.1f}.",
    ]
    return "\n".join(lines)


def _rounded(value: float) -> str:
    """Three digits, never with an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def check_page(page: Path) -> None:
    """Raise ConfigError unless the page is there and has a place for the table."""
    check_place(page, _BEGIN, _END)


def fill_page(text: str, outcome: Mapping[str, Any]) -> str:
    """A page's text with the table between its lines."""
    return fill_place(text, _BEGIN, _END, markdown_table(outcome))
