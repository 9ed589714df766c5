"""A result knows which numerics it was measured with, and a stale one is shown as stale only."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from colonnade.bench import run_bench
from colonnade.cli.main import app
from colonnade.core.errors import ConfigError, StorageError
from colonnade.core.numerics import NUMERICS, SEEDED_RUNS
from colonnade.reproduce import (
    Experiment,
    Job,
    mark_pages,
    markdown_table,
    run_experiment,
    stale_results,
    staleness,
)
from golden_runs import FILE
from messages import says

DOCS = Path(__file__).parents[2] / "docs"


def test_the_number_changes_when_seeded_weights_change() -> None:
    found = hashlib.sha256(FILE.read_bytes()).hexdigest()
    assert found == SEEDED_RUNS[NUMERICS], (
        "tests/golden/seeded_runs.json changed: if a number in it did, add an entry to SEEDED_RUNS "
        "in core/numerics.py; if it only has new cases, change the last entry"
    )
    assert list(SEEDED_RUNS) == list(range(1, NUMERICS + 1))
    assert len(set(SEEDED_RUNS.values())) == len(SEEDED_RUNS)


def files_of_results() -> list[Path]:
    return sorted((DOCS / "results").glob("*.json"))


@pytest.mark.parametrize("file", files_of_results(), ids=lambda file: file.stem)
def test_a_page_shows_a_stale_result_only_with_that_word(file: Path) -> None:
    outcome = json.loads(file.read_text(encoding="utf-8"))
    is_stale = bool(staleness(outcome))
    begin, end = f"<!-- results: {file.stem} -->", "<!-- end of results -->"
    num_shown = 0
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for shown in (part.split(end, 1)[0] for part in text.split(begin)[1:]):
            num_shown += 1
            assert ("*Stale*" in shown) == is_stale, f"{page.name}: run colonnade reproduce --mark"
        if re.search(rf"results/{file.stem}\.(svg|json)", text):
            assert not is_stale or "stale" in text.lower(), f"{page.name} shows {file.stem}"
    assert num_shown


def measured(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    experiment = Experiment(
        name="small",
        title="A small one",
        metric="score",
        better="higher",
        note="Made up.",
        jobs=[Job(coordinates={"case": "a"}, measure=lambda seed, fast: {"score": 1.0 + seed})],
        seeds=2,
    )
    results = tmp_path / "results"
    results.mkdir(exist_ok=True)
    outcome = run_experiment(experiment, out=results / "small.json") | changes
    (results / "small.json").write_text(json.dumps(outcome), encoding="utf-8")
    return outcome


def checked(docs: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", "--docs", str(docs), *options])


def test_what_was_measured_with_the_numerics_of_today_stands(tmp_path: Path) -> None:
    outcome = measured(tmp_path)
    assert outcome["numerics"] == NUMERICS
    assert "stale" not in markdown_table(outcome).lower()
    assert stale_results(tmp_path / "results") == []
    found = checked(tmp_path, "--check")
    assert found.exit_code == 0
    assert "all results stand" in found.output


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"numerics": NUMERICS - 1}, f"numerics {NUMERICS - 1}"),
        ({"numerics": None}, "before numerics had a number"),
        ({"finished": False}, "not finished"),
        ({"fast": True}, "quick run"),
    ],
    ids=["older", "unknown", "unfinished", "fast"],
)
def test_check_lists_what_does_not_stand_and_fails(
    tmp_path: Path, changes: Mapping[str, Any], reason: str
) -> None:
    outcome = measured(tmp_path, **changes)
    found = checked(tmp_path, "--check")
    assert found.exit_code == 1
    assert "small: stale" in found.output
    assert reason in found.output
    assert bool(staleness(outcome)) == ("numerics" in changes)


def test_marking_follows_the_files(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n<!-- results: small -->\n<!-- end of results -->\nEnd.\n")
    measured(tmp_path, numerics=1)
    assert mark_pages(tmp_path) == [page]
    assert "*Stale*: measured with numerics 1" in page.read_text()
    assert mark_pages(tmp_path) == []
    measured(tmp_path, numerics=NUMERICS)
    assert checked(tmp_path, "--mark").exit_code == 0
    assert "Stale" not in page.read_text()
    assert page.read_text().endswith("End.\n")


def test_an_empty_file_of_results_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "small.json").touch()
    assert measured(tmp_path)["cells"][0]["mean"] == 1.5


@pytest.mark.parametrize("content", ["{", "[]", '{"name": "small"}'])
def test_a_damaged_file_of_results_is_named_and_kept(tmp_path: Path, content: str) -> None:
    (tmp_path / "results").mkdir()
    file = tmp_path / "results" / "small.json"
    file.write_text(content)
    with pytest.raises(StorageError, match=says("small.json", "measure again")):
        measured(tmp_path)
    assert file.read_text() == content
    with pytest.raises(StorageError, match=says("small.json")):
        stale_results(tmp_path / "results")


def test_nothing_to_check_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no files of results"):
        stale_results(tmp_path)
    found = CliRunner().invoke(app, ["reproduce"])
    assert isinstance(found.exception, ConfigError)
    assert "--check" in str(found.exception)


def test_measurements_of_speed_say_their_numerics() -> None:
    assert run_bench("step", fast=True)["numerics"] == NUMERICS
