"""The pages of defaults name every table on which they miss their goal, by the measured files."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def misses(outcome: dict[str, Any], group: str) -> set[str]:
    """Tables more than a standard deviation of the better model behind the better model."""
    found = set()
    for cell in outcome["cells"]:
        if cell["coordinates"]["tables"] != group:
            continue
        by_model = [[run[name] for run in cell["runs"]] for name in ("MLP", "linear")]
        better = max(by_model, key=statistics.fmean)
        if cell["mean"] < statistics.fmean(better) - statistics.stdev(better):
            found.add(cell["coordinates"]["table"])
    return found


def test_every_miss_is_named() -> None:
    outcome = json.loads((DOCS / "results/defaults.json").read_text(encoding="utf-8"))
    assert len(outcome["seeds"]) > 1
    page = (DOCS / "defaults.md").read_text(encoding="utf-8")
    for group in ("chosen on", "left out", "named"):
        told = re.search(rf"^- Misses, {group}: (.+)\.$", page, re.MULTILINE)
        assert told is not None, group
        missed = misses(outcome, group)
        assert set(re.findall(r"`(\w+)`", told[1])) == missed, group
        total = sum(cell["coordinates"]["tables"] == group for cell in outcome["cells"])
        assert re.search(
            rf"^\| {group} \|.*\| {total - len(missed)} of {total} \|$", page, re.MULTILINE
        )


def behind_splitnn(outcome: dict[str, Any], group: str) -> dict[str, float]:
    """Tables on which laser is behind by more than its distance differs by seed; in points."""
    found = {}
    for cell in outcome["cells"]:
        ahead = [run["ahead"] for run in cell["runs"]]
        distance = statistics.fmean(ahead)
        if cell["coordinates"]["tables"] == group and distance < -statistics.stdev(ahead):
            found[cell["coordinates"]["table"]] = 100 * distance
    return found


def test_every_table_is_named_on_which_laser_is_behind_splitnn() -> None:
    outcome = json.loads((DOCS / "results/defaults-laser.json").read_text(encoding="utf-8"))
    assert outcome["finished"]
    assert len(outcome["seeds"]) > 1
    page = (DOCS / "methods/laser.md").read_text(encoding="utf-8")
    for group in ("chosen on", "left out", "named"):
        told = re.search(rf"^- Behind, {group}: (.+)\.$", page, re.MULTILINE)
        assert told is not None, group
        behind = behind_splitnn(outcome, group)
        named = dict(re.findall(r"`(\w+)` \(−([\d.]+)\)", told[1]))
        assert named == {name: f"{-points:.1f}" for name, points in behind.items()}, group
        cells = [cell for cell in outcome["cells"] if cell["coordinates"]["tables"] == group]
        runs = [run for cell in cells for run in cell["runs"]]
        by_seed = [
            100 * statistics.fmean(run["ahead"] for run in runs if run["seed"] == seed)
            for seed in outcome["seeds"]
        ]
        ahead = f"{statistics.fmean(by_seed):+.1f} ± {statistics.stdev(by_seed):.1f}"
        control = 100 * statistics.fmean(run["control"] - run["splitnn"] for run in runs)
        met = f"{len(cells) - len(behind)} of {len(cells)}"
        row = f"| {group} | {ahead} | {control:+.1f} | {met} |"
        assert row.replace("-", "−") in page, row
