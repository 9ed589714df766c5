"""Several runs in one picture: their lines, their clocks, and runs that have no line."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

from colonnade.report import read_run
from colonnade.report.overlay import overlaid_quality
from report_pages import run_directory


def test_runs_are_laid_over_each_other_with_a_chart_for_each_clock(tmp_path: Path) -> None:
    places = {
        "one": run_directory(tmp_path / "one"),
        "two <b>": run_directory(tmp_path / "two", fabric="in_process", num_exchanges=30),
        "short": run_directory(tmp_path / "short", num_exchanges=5),
    }
    records = {name: read_run(place) for name, place in places.items()}
    shown = overlaid_quality(records, "accuracy")
    charts = [
        json.loads(html.unescape(held)) for held in re.findall(r'data-curves="([^"]*)"', shown)
    ]
    assert [(chart["x"], chart["holds"]) for chart in charts] == [
        ("exchange", True),
        ("elapsed time, the simulated clock (seconds)", True),
        ("elapsed time, the fabric's clock (seconds)", True),
    ]
    names = [[line["name"] for line in chart["lines"]] for chart in charts]
    assert names == [["one", "two <b>"], ["one"], ["two <b>"]]
    assert charts[0]["lines"][1]["points"] == [[10, 0.51], [20, 0.52], [30, 0.53]]
    assert charts[2]["lines"][0]["points"] == [[2.5, 0.51], [5, 0.52], [7.5, 0.53]]
    assert "No accuracy along the way: short." in shown
    # A run keeps its colour in every chart.
    colours = [set(re.findall(r"--run-\d", part)) for part in shown.split('class="curves"')[1:]]
    assert colours == [{"--run-0", "--run-1"}, {"--run-0"}, {"--run-1"}]
    del records["one"]
    assert overlaid_quality(records, "accuracy") == ""
