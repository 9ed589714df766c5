"""The table of factors, and its place in a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["fill_page", "markdown_table"]

BEGIN, END = "<!-- peers -->", "<!-- end of peers -->"


def markdown_table(outcome: Mapping[str, Any]) -> str:
    """A row per peer: what it is, milliseconds per step of both, the factor."""
    lines = [
        "| against | version | its ms a step | our ms a step | factor |",
        "|---|---|---|---|---|",
    ]
    for row in outcome["rows"]:
        versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
        theirs, ours = 1000 / row["per_second_against"], 1000 / row["per_second"]
        lines.append(
            f"| {row['against']} | {versions} | {theirs:.3g} | {ours:.3g} | {row['ratio']:.3g} |"
        )
    lines += ["", f"Revision {outcome['revision']}; {outcome['machine']}."]
    return "\n".join(lines)


def fill_page(page: str, outcome: Mapping[str, Any]) -> str:
    """The page with the table between its markers."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"no place for the table; add the lines '{BEGIN}' and '{END}'")
    return f"{before}{BEGIN}\n{markdown_table(outcome)}\n{END}{after}"
