"""The results of an experiment as a Markdown table for the docs, and as a picture."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from colonnade.files import check_place, fill_place, write_atomically
from colonnade.reproduce.staleness import read_outcome, staleness

__all__ = ["check_page", "fill_page", "mark_pages", "markdown_table", "plot"]

_END = "<!-- end of results -->"


def markdown_table(outcome: Mapping[str, Any]) -> str:
    """Write our numbers beside the paper's, with seeds and revision below.

    Stale results say so in their first line.

    Args:
        outcome: The content of an experiment's file of results.

    Returns:
        A title, one or several tables, and a note, as Markdown.
    """
    table = _rows(outcome) if outcome.get("along") is None else _columns(outcome)
    mode = " A quick run with less training: not for comparison." if outcome["fast"] else ""
    num_seeds = len(outcome["seeds"])
    over = "One seed" if num_seeds == 1 else f"Mean ± standard deviation over {num_seeds} seeds"
    reason = staleness(outcome)
    lines = [
        *(
            [f"*Stale*: {reason}, so these numbers may come out differently today.", ""]
            * bool(reason)
        ),
        f"**{outcome['title']}** ({outcome['metric']}, {outcome['better']} is better)",
        "",
        *table,
        "",
        f"{over}; revision {outcome['revision']}.{mode} {outcome['note']}",
    ]
    return "\n".join(lines)


def _rows(outcome: Mapping[str, Any]) -> list[str]:
    """A row for every cell."""
    keys, beside = list(outcome["cells"][0]["coordinates"]), outcome.get("beside", [])
    lines = [_row([*keys, "ours", "paper", *beside]), "|" + "---|" * (len(keys) + 2 + len(beside))]
    for cell in outcome["cells"]:
        place = [str(cell["coordinates"][key]) for key in keys]
        further = [_number(_mean(cell, name)) for name in beside]
        lines.append(_row([*place, _ours(cell, outcome), _number(cell["paper"]), *further]))
    return lines


def _columns(outcome: Mapping[str, Any]) -> list[str]:
    """A table for every panel, with a column for every value along its curves."""
    lines: list[str] = []
    for name, curves in _panels(outcome).items():
        values = list(dict.fromkeys(value for curve in curves.values() for value in curve))
        heading = f"{name}; by {outcome['along']}" if name else f"by {outcome['along']}"
        for shown in (None, *outcome.get("beside", [])):
            lines += ["", *([f"{heading}: {shown}", ""] if shown else [f"*{heading}*", ""])]
            lines += [_row(["", *map(str, values)]), "|" + "---|" * (len(values) + 1)]
            for curve, cells in curves.items():
                texts = [_entry(cells.get(value), shown, outcome) for value in values]
                lines.append(_row([curve, *texts]))
    return lines[1:]


Cell = Mapping[str, Any]


def _panels(outcome: Mapping[str, Any]) -> dict[str, dict[str, dict[Any, Cell]]]:
    """Panel, curve (by method) and value along it, of every cell."""
    along = outcome["along"]
    panels: dict[str, dict[str, dict[Any, Cell]]] = {}
    for cell in outcome["cells"]:
        place = dict(cell["coordinates"])
        value, curve = place.pop(along), str(place.pop("method"))
        name = ", ".join(f"{key} {item}" for key, item in place.items())
        panels.setdefault(name, {}).setdefault(curve, {})[value] = cell
    return panels


def _entry(cell: Cell | None, shown: str | None, outcome: Mapping[str, Any]) -> str:
    if cell is None:
        return ""
    if shown is not None:
        return _number(_mean(cell, shown))
    paper = "" if cell["paper"] is None else f" (paper {_number(cell['paper'])})"
    return _ours(cell, outcome) + paper


def _row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def check_page(page: Path, name: str) -> None:
    """Check that a page of the docs has a place for an experiment.

    Args:
        page: The page's file.
        name: The experiment's name.

    Raises:
        ConfigError: There is no such page, or it lacks the two lines around the place.
    """
    check_place(page, _begin(name), _END)


def _begin(name: str) -> str:
    return f"<!-- results: {name} -->"


def fill_page(page: str, outcome: Mapping[str, Any]) -> str:
    """Put the table into its place.

    Args:
        page: The text of the page.
        outcome: The content of an experiment's file of results.

    Returns:
        The text with the new table.
    """
    return fill_place(page, _begin(outcome["name"]), _END, markdown_table(outcome))


def mark_pages(docs: Path) -> list[Path]:
    """Write all tables again from their files: a stale one says so, one that stands does not.

    Args:
        docs: The directory of pages, with the files in ``results``.

    Returns:
        The pages that changed.
    """
    outcomes = [read_outcome(path) for path in sorted((docs / "results").glob("*.json"))]
    changed = []
    for page in sorted(docs.rglob("*.md")):
        text = before = page.read_text(encoding="utf-8")
        for outcome in outcomes:
            if _begin(outcome["name"]) in text:
                text = fill_page(text, outcome)
        if text != before:
            write_atomically(page, text.encode())
            changed.append(page)
    return changed


def plot(outcome: Mapping[str, Any], path: Path) -> None:
    """Draw the results: curves if the experiment has ``along``, otherwise bars.

    Args:
        outcome: The content of an experiment's file of results.
        path: The SVG file to write.
    """
    # Imported when something is drawn: it takes half a second.
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    if outcome.get("along") is None:
        _draw_bars(figure, outcome)
    else:
        _draw_curves(figure, outcome)
    figure.suptitle(str(outcome["title"]))
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    write_atomically(path, content.getvalue())


def _draw_bars(figure: Any, outcome: Mapping[str, Any]) -> None:
    """A bar per cell with its spread, and the paper's value as a line."""
    cells = [cell for cell in outcome["cells"] if _is_drawn(cell)]
    figure.set_size_inches(8, 1.2 + 0.32 * len(cells))
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
    axes.legend()


def _draw_curves(figure: Any, outcome: Mapping[str, Any]) -> None:
    """A panel for each table, a curve for each method; a value that is a text is a dashed line."""
    panels = _panels(outcome)
    num_columns = min(2, len(panels))
    num_rows = -(-len(panels) // num_columns)
    figure.set_size_inches(5 * num_columns, 0.6 + 3.4 * num_rows)
    for number, (name, curves) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(num_rows, num_columns, number)
        for place, (curve, cells) in enumerate(curves.items()):
            color = f"C{place % 10}"
            found = {key: cell for key, cell in cells.items() if _is_drawn(cell)}
            points = [(key, cell) for key, cell in found.items() if not isinstance(key, str)]
            if points:
                axes.errorbar(
                    [key for key, _ in points],
                    [cell["mean"] for _, cell in points],
                    yerr=[cell["std"] for _, cell in points],
                    color=color,
                    marker="o",
                    markersize=3,
                    label=curve,
                )
            for key, cell in found.items():
                if isinstance(key, str):
                    label = curve if not points else f"{curve}, {key}"
                    axes.axhline(cell["mean"], color=color, linestyle="--", lw=0.8, label=label)
        numbers = [key for cells in curves.values() for key in cells if not isinstance(key, str)]
        if min(numbers) > 0 and max(numbers) >= 15 * min(numbers):
            axes.set_xscale("log")
            # Labels of a logarithmic axis overlap within one power of ten; these are few.
            axes.set_xticks(sorted(set(numbers)), [f"{key:g}" for key in sorted(set(numbers))])
            axes.minorticks_off()
        axes.set_xlabel(str(outcome["along"]))
        axes.set_ylabel(str(outcome["metric"]))
        axes.set_title(name, fontsize="medium")
        axes.legend(fontsize="x-small")


def _ours(cell: Cell, outcome: Mapping[str, Any]) -> str:
    if cell["missed"] == cell["seeds"]:
        return "not reached"
    if cell["missed"]:
        missed = f"{cell['missed']} of {cell['seeds']} not reached"
        middle = _median(cell, outcome)
        return missed if middle is None else f"median {_number(middle)} ({missed})"
    # Two digits that count, and no power of ten beside a plain number: ± 200, not ± 2e+02.
    rounded = float(f"{cell['std']:.2g}")
    spread = f" ± {rounded:g}" if cell["seeds"] > 1 else ""
    return f"{_number(cell['mean'])}{spread}"


def _median(cell: Cell, outcome: Mapping[str, Any]) -> float | None:
    """Over all runs, those that missed counted as worst; None if the median is one of them."""
    worst = math.inf if outcome["better"] == "lower" else -math.inf
    values = [run[outcome["metric"]] for run in cell["runs"]]
    found = statistics.median(worst if value is None else value for value in values)
    return found if math.isfinite(found) else None


def _is_drawn(cell: Cell) -> bool:
    """Whether there is a mean of all its runs."""
    return cell.get("mean") is not None and not cell["missed"]


def _mean(cell: Mapping[str, Any], name: str) -> float | None:
    values = [run[name] for run in cell["runs"] if run.get(name) is not None]
    return statistics.fmean(values) if values else None


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
