"""Tables of measurements in the docs are those of their files."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import colonnade.bench
from colonnade.bench import BENCHES, bench_pages, draw_curves, fill_bench_page, run_bench
from colonnade.bench.table import GOALS, WITHOUT_GOAL, bench_table, with_goals
from colonnade.core.errors import ConfigError
from messages import says

DOCS = Path(__file__).parents[2] / "docs"
SOURCES = Path(colonnade.bench.__file__).parent
PAGE = DOCS / "benchmarks.md"


@pytest.mark.parametrize("name", BENCHES)
def test_pages_show_the_last_measurement(name: str) -> None:
    pages = bench_pages(DOCS, name)
    assert PAGE in pages
    file = DOCS / "results" / "bench" / f"{name}.json"
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if not file.exists():
            places = re.findall(
                rf"<!-- bench: {name}\b.*? -->(.*?)<!-- end of bench -->", text, re.S
            )
            assert places
            assert not "".join(places).strip(), f"a table of '{name}' that no file holds"
            continue
        outcome = json.loads(file.read_text(encoding="utf-8"))
        assert not outcome["fast"]
        assert fill_bench_page(text, outcome) == text


def test_a_goal_is_met_or_missed() -> None:
    row = {"unit": "a / b", "against": "b", "runs": 3}
    rows = with_goals(
        "laser",
        [
            {"case": "K=4", "ratio": 2.5, **row},
            {"case": "K=8", "ratio": 3.9, **row},
            {"case": "growth", "ratio": 4.1, **row},
            {"case": "other", "ratio": 1.0, **row},
        ],
    )
    assert [item.get("met") for item in rows] == [True, False, False, None]
    table = bench_table({"rows": rows, "revision": "abc", "machine": "one"})
    assert "| K=4 | 2.50 | at least 2.5 | a / b | b |" in table
    assert "| K=8 | 3.90 | at least 4: missed | a / b | b |" in table
    assert "| growth | 4.10 | at most 4: missed | a / b | b |" in table
    assert "| other | 1.00 |  | a / b | b |" in table


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(ConfigError, match=says("page.md", "no such")):
        bench_pages(page, "step")
    page.write_text("# A page\n")
    with pytest.raises(ConfigError, match=says("page.md", "'<!-- bench: step -->'")):
        bench_pages(page, "step")
    with pytest.raises(ConfigError, match=says("no page", "'<!-- bench: step -->'")):
        bench_pages(tmp_path, "step")


OUTCOME = {
    "name": "slow",
    "revision": "abc",
    "machine": "one",
    "rows": [
        {
            "case": "async",
            "ratio": 1.1,
            "unit": "a / b",
            "against": "b",
            "target": 0.8,
            "curves": [[[0.1, 0.2], [0.5, 0.8]], [[0.1, 0.3], [0.4, 0.9]]],
            "curves_against": [[[0.1, 0.2], [0.4, 0.85]]],
        },
        {"case": "simulated-async", "ratio": 0.9, "unit": "c / d", "against": "d"},
    ],
}


def test_a_place_has_its_cases_and_loses_the_excuse() -> None:
    excuse = "No figures stand here yet: `colonnade bench slow` has not been measured on a quiet"
    text = (
        f"# Page\n\n{excuse} machine.\n\n<!-- bench: slow: simulated-async, async -->\n"
        "<!-- end of bench -->\n\nand\n\n<!-- bench: slow -->\n<!-- end of bench -->\n"
    )
    filled = fill_bench_page(text, OUTCOME)
    assert excuse not in filled
    some, whole = filled.split("\nand\n")
    assert some.index("| simulated-async | 0.90 |") < some.index("| async | 1.10 |")
    assert ".svg" not in some
    assert "(results/bench/slow.svg)" in whole
    assert fill_bench_page(filled, OUTCOME) == filled


def test_a_case_that_was_not_measured_is_refused() -> None:
    text = "<!-- bench: slow: flex -->\n<!-- end of bench -->\n"
    with pytest.raises(ConfigError, match=says("no case", "'flex'")):
        fill_bench_page(text, OUTCOME)


def test_curves_over_wall_time_are_the_same_file_for_the_same_numbers() -> None:
    drawn = draw_curves(OUTCOME)
    assert drawn is not None
    assert drawn.startswith(b"<?xml")
    assert drawn == draw_curves(OUTCOME)
    assert draw_curves({"rows": OUTCOME["rows"][1:]}) is None


@pytest.mark.parametrize("name", BENCHES)
def test_every_measurement_is_where_its_name_says(name: str) -> None:
    module = ast.parse((SOURCES / f"{BENCHES[name]}.py").read_text("utf-8"))
    assert f"bench_{name}" in {item.name for item in module.body if hasattr(item, "name")}


def test_a_case_that_is_not_there_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=says("'one-samples'", "'one-sample'")):
        run_bench("serve", cases=["one-samples"])
    with pytest.raises(ConfigError, match=says("step", "--case")):
        run_bench("step", cases=["K=4"])
    with pytest.raises(ConfigError, match=says("'splitn'", "'splitnn'")):
        run_bench("slow", cases=["splitn"])


def test_cases_that_can_be_named_are_those_that_are_measured() -> None:
    from colonnade.bench.slow import CASES

    assert set(CASES) == {*GOALS["slow"], *WITHOUT_GOAL["slow"]}
