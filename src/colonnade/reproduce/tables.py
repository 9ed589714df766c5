"""An experiment's results as a table for the docs and as a picture."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.core.errors import ConfigError
from colonnade.files import write_atomically

__all__ = ["check_page", "fill_page", "markdown_table", "plot"]

_END = "<!-- end of results -->"


def markdown_table(outcome: Mapping[str, Any]) -> str:
    """Ours beside the paper's, one row a cell, with seeds and revision below."""
    keys = list(outcome["cells"][0]["coordinates"])
    beside = outcome.get("beside", [])
    lines = [
        f"**{outcome['title']}** ({outcome['metric']}, {outcome['better']} is better)",
        "",
        "| " + " | ".join([*keys, "ours", "paper", *beside]) + " |",
        "|" + "---|" * (len(keys) + 2 + len(beside)),
    ]
    for cell in outcome["cells"]:
        place = [str(cell["coordinates"][key]) for key in keys]
        further = [_number(_mean(cell, name)) for name in beside]
        row = [*place, _ours(cell), _number(cell["paper"]), *further]
        lines.append("| " + " | ".join(row) + " |")
    mode = " A quick run with less training: not for comparison." if outcome["fast"] else ""
    lines += [
        "",
        f"Mean ± standard deviation over {len(outcome['seeds'])} seeds; revision "
        f"{outcome['revision']}.{mode} {outcome['note']}",
    ]
    return "\n".join(lines)


def check_page(page: Path, name: str) -> None:
    """Raise ConfigError unless the page is there and has a place for this experiment."""
    if not page.is_file():
        raise ConfigError(f"{page}: no such page")
    begin = _begin(name)
    text = page.read_text(encoding="utf-8")
    if begin not in text or _END not in text.split(begin, 1)[1]:
        raise ConfigError(f"{page}: no place for it; add the lines '{begin}' and '{_END}'")


def _begin(name: str) -> str:
    return f"<!-- results: {name} -->"


def fill_page(page: str, outcome: Mapping[str, Any]) -> str:
    """The page with the table between its markers for this experiment."""
    begin = _begin(outcome["name"])
    before, rest = page.split(begin, 1)
    after = rest.split(_END, 1)[1]
    return f"{before}{begin}\n{markdown_table(outcome)}\n{_END}{after}"


def plot(outcome: Mapping[str, Any], path: Path) -> None:
    """Write a picture: a bar per cell with its spread, and the paper's value as a line."""
    # Imported when something is drawn: it takes half a second.
    from matplotlib.figure import Figure

    cells = [cell for cell in outcome["cells"] if cell.get("mean") is not None]
    figure = Figure(figsize=(8, 1.2 + 0.32 * len(cells)), layout="constrained")
    axes = figure.add_subplot()
    names = [", ".join(str(item) for item in cell["coordinates"].values()) for cell in cells]
    places = list(range(len(cells)))
    axes.barh(
        places,
        [cell["mean"] for cell in cells],
        xerr=[cell["std"] for cell in cells],
        color="#5533bb",
        label="ours",
    )
    for place, cell in zip(places, cells, strict=True):
        if cell["paper"] is not None:
            label = "paper" if "paper" not in axes.get_legend_handles_labels()[1] else None
            axes.plot([cell["paper"]] * 2, [place - 0.4, place + 0.4], color="black", label=label)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlabel(str(outcome["metric"]))
    axes.set_title(str(outcome["title"]))
    axes.legend()
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    write_atomically(path, content.getvalue())


def _ours(cell: Mapping[str, Any]) -> str:
    if cell["mean"] is None:
        return "not reached"
    missed = f" ({cell['missed']} of {cell['seeds']} not reached)" if cell["missed"] else ""
    return f"{_number(cell['mean'])} ± {_number(cell['std'])}{missed}"


def _mean(cell: Mapping[str, Any], name: str) -> float | None:
    values = [run[name] for run in cell["runs"] if run.get(name) is not None]
    return statistics.fmean(values) if values else None


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
