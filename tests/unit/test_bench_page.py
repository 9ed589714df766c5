"""Tables of measurements in the docs are those of their files."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import colonnade.bench
from colonnade.bench import BENCHES, check_bench_page, fill_bench_page, run_bench
from colonnade.bench.table import bench_table, with_goals
from colonnade.core.errors import ConfigError
from messages import says

DOCS = Path(__file__).parents[2] / "docs"
SOURCES = Path(colonnade.bench.__file__).parent
PAGE = DOCS / "benchmarks.md"


@pytest.mark.parametrize("name", BENCHES)
def test_page_shows_the_last_measurement(name: str) -> None:
    check_bench_page(PAGE, name)
    text = PAGE.read_text(encoding="utf-8")
    file = DOCS / "results" / "bench" / f"{name}.json"
    if not file.exists():
        shown = text.split(f"<!-- bench: {name} -->", 1)[1].split("<!-- end of bench -->", 1)[0]
        assert not shown.strip(), f"a table of '{name}' that no file holds"
        return
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
        check_bench_page(page, "step")
    page.write_text("# A page\n")
    with pytest.raises(ConfigError, match=says("page.md", "'<!-- bench: step -->'")):
        check_bench_page(page, "step")


@pytest.mark.parametrize("name", BENCHES)
def test_every_measurement_is_where_its_name_says(name: str) -> None:
    module = ast.parse((SOURCES / f"{BENCHES[name]}.py").read_text("utf-8"))
    assert f"bench_{name}" in {item.name for item in module.body if hasattr(item, "name")}


def test_a_case_that_is_not_there_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=says("'one-samples'", "'one-sample'")):
        run_bench("serve", cases=["one-samples"])
    with pytest.raises(ConfigError, match=says("step", "--case")):
        run_bench("step", cases=["K=4"])
