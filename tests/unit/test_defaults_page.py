"""The page of defaults names every data set on which they miss their goal, by the measured file."""

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
