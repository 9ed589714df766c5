"""Goals of the measurements, and the tables of results in the docs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from colonnade.files import check_place, fill_place

__all__ = ["GOALS", "WITHOUT_GOAL", "bench_table", "check_bench_page", "fill_bench_page", "with_goals"]

_END = "<!-- end of bench -->"

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
WITHOUT_GOAL = {"slow": ("splitnn", "round-robin-splitnn", "round-robin-async")}


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


def bench_table(outcome: Mapping[str, Any]) -> str:
    """A Markdown table with a row for each case, and revision and machine below."""
    lines = ["| case | ratio | goal | what over what | against |", "|---|---|---|---|---|"]
    for row in outcome["rows"]:
        goal = row.get("goal", "") + ("" if row.get("met", True) else ": missed")
        ratio = f"{row['ratio']:.2f}"
        lines.append(f"| {row['case']} | {ratio} | {goal} | {row['unit']} | {row['against']} |")
    lines += ["", f"Revision {outcome['revision']}; {outcome['machine']}."]
    return "\n".join(lines)


def check_bench_page(page: Path, name: str) -> None:
    """Raise ConfigError unless the page is there and has a place for this measurement."""
    check_place(page, _begin(name), _END)


def fill_bench_page(text: str, outcome: Mapping[str, Any]) -> str:
    """A page's text with the table between its lines for this measurement."""
    return fill_place(text, _begin(outcome["name"]), _END, bench_table(outcome))


def _begin(name: str) -> str:
    return f"<!-- bench: {name} -->"
