"""Goals of the measurements, and the tables of results in the docs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from colonnade.core.errors import ConfigError
from colonnade.files import check_place, fill_place

__all__ = [
    "GOALS",
    "WITHOUT_GOAL",
    "bench_pages",
    "bench_table",
    "fill_bench_page",
    "with_goals",
]

_END = "<!-- end of bench -->"
# Stands before a place as long as nothing was measured.
_NOT_YET = (
    "No figures stand here yet: `colonnade bench {name}` has not been measured on a quiet "
    "machine.\n\n"
)

Goal = tuple[Literal["at most", "at least", "around 1"], float]
# Predictions of a time over the real one.
_TRUE: Goal = ("around 1", 0.15)
_SIMULATED = (
    *("splitnn", "fedbcd", "async", "vafl"),
    *("flex", "adaptive_flex", "laser", "easter"),
)

# The bound on the ratio, by measurement and case.
GOALS: Mapping[str, Mapping[str, Goal]] = {
    "step": {"K=4": ("at most", 1.6)},
    "laser": {
        "K=4": ("at least", 2.5),
        "K=8": ("at least", 4.0),
        "K=16": ("at least", 8.0),
        "growth": ("at most", 4.0),
    },
    "network": {"128x64": ("at least", 0.5), "1MB": ("at least", 0.35)},
    "protect": {
        "blinded-K=4": ("at most", 1.25),
        "blinded-K=16": ("at most", 1.5),
        "perturbed-K=4": ("at most", 1.15),
    },
    "serve": {
        "one-sample": ("at most", 10.0),
        "rows": ("at least", 0.5),
        "gather": ("at least", 0.5),
        "switch": ("at most", 0.0),
        "p50": ("at most", 3.0),
        "tail": ("at most", 8.0),
        "beside-p99": ("at most", 2.0),
        "beside-training": ("at least", 0.8),
        **dict.fromkeys(("frozen", "killed"), ("at least", 0.999)),
        **dict.fromkeys(("frozen-slowest", "killed-slowest"), ("at most", 1.0)),
        **dict.fromkeys(("frozen-wrong", "killed-wrong"), ("at most", 0.0)),
    },
    "slow": {
        **dict.fromkeys(("async", "vafl", "flex"), ("at most", 1.3)),
        "flex-exchange": ("at most", 1.1),
        **dict.fromkeys((f"simulated-{name}" for name in _SIMULATED), _TRUE),
    },
    "soak": {"wrong": ("at most", 0.0), "memory": ("at most", 1.05)},
    "align": {
        "two-parties-100k": ("at most", 1.0),
        "four-parties-100k": ("at most", 2.2),
        "memory-1000k-label-holder": ("at most", 1.0),
        "memory-1000k-party": ("at most", 1.0),
    },
}


# Cases without a goal that can be measured by themselves.
WITHOUT_GOAL = {
    "serve": (
        *("rows-bare", "p50-bare", "beside-p99-bare", "beside-training-bare"),
        *("frozen-bare", "killed-bare"),
    ),
    "slow": ("splitnn", "flex-waiting", "round-robin-splitnn", "round-robin-async"),
}


def with_goals(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each row its goal and whether the ratio meets it, where the case has a goal."""
    return [_with_goal(row, GOALS.get(name, {}).get(row["case"])) for row in rows]


def _with_goal(row: dict[str, Any], goal: Goal | None) -> dict[str, Any]:
    if goal is None:
        return row
    bound, value = goal
    if bound == "around 1":
        return {**row, "goal": f"1 ± {value:g}", "met": abs(row["ratio"] - 1) <= value}
    met = row["ratio"] <= value if bound == "at most" else row["ratio"] >= value
    return {**row, "goal": f"{bound} {value:g}", "met": met}


def bench_table(outcome: Mapping[str, Any], cases: Sequence[str] = ()) -> str:
    """A Markdown table with a row for each case, and revision and machine below.

    Args:
        outcome: The content of a measurement's file.
        cases: The cases to show, in this order; all if none are named.

    Raises:
        ConfigError: If a named case was not measured.
    """
    rows = {row["case"]: row for row in outcome["rows"]}
    if unknown := [case for case in cases if case not in rows]:
        raise ConfigError(f"bench {outcome['name']}: no case {unknown} among {list(rows)}")
    lines = ["| case | ratio | goal | what over what | against |", "|---|---|---|---|---|"]
    for case in cases or rows:
        row = rows[case]
        goal = row.get("goal", "") + ("" if row.get("met", True) else ": missed")
        ratio = f"{row['ratio']:.2f}"
        lines.append(f"| {row['case']} | {ratio} | {goal} | {row['unit']} | {row['against']} |")
    if not cases and any(row.get("curves") for row in rows.values()):
        name = outcome["name"]
        lines += ["", f"![Quality over wall time, run by run](results/bench/{name}.svg)"]
    lines += ["", f"Revision {outcome['revision']}; {outcome['machine']}."]
    return "\n".join(lines)


def bench_pages(place: Path, name: str) -> list[Path]:
    """The pages that have a place for a measurement, or for some of its cases.

    Args:
        place: A page, or a directory with pages.
        name: The measurement.

    Raises:
        ConfigError: If there is none.
    """
    if not place.is_dir():
        check_place(place, _begin(name), _END)
        return [place]
    pages = [page for page in sorted(place.rglob("*.md")) if _places(page.read_text("utf-8"), name)]
    if not pages:
        raise ConfigError(f"{place}: no page has the line '{_begin(name)}'")
    return pages


def fill_bench_page(text: str, outcome: Mapping[str, Any]) -> str:
    """A page's text with the table between its lines for this measurement.

    A place may name cases: ``<!-- bench: NAME: CASE, CASE -->`` has those rows only.
    """
    name = outcome["name"]
    text = text.replace(_NOT_YET.format(name=name), "")
    for begin, cases in _places(text, name):
        text = fill_place(text, begin, _END, bench_table(outcome, cases))
    return text


def _places(text: str, name: str) -> list[tuple[str, list[str]]]:
    """The lines that begin a place of this measurement, and the cases that each one names."""
    found = re.finditer(rf"<!-- bench: {re.escape(name)}(?:: ([^>]+))? -->", text)
    return [(item[0], item[1].split(", ") if item[1] else []) for item in found]


def _begin(name: str) -> str:
    return f"<!-- bench: {name} -->"
