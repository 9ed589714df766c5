"""Every table of results in the docs is the one that its file of results gives."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from colonnade.core.errors import ConfigError, StorageError
from colonnade.reproduce import Experiment, Job, check_page, fill_page, run_experiment
from colonnade.reproduce.tables import markdown_table, plot
from messages import says

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PLACES = [
    (page, name)
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for name in re.findall(r"<!-- results: ([a-z0-9-]+) -->", page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "name"), PLACES, ids=[f"{p.stem}-{n}" for p, n in PLACES])
def test_page_shows_the_results(page: Path, name: str) -> None:
    text = page.read_text(encoding="utf-8")
    file = RESULTS / f"{name}.json"
    if not file.exists():
        begin = f"<!-- results: {name} -->"
        shown = text.split(begin, 1)[1].split("<!-- end of results -->", 1)[0].strip()
        assert not shown, f"{page.name} shows results of {name} that no file holds"
        return
    assert fill_page(text, json.loads(file.read_text(encoding="utf-8"))) == text


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_results_are_whole_and_shown(file: Path) -> None:
    outcome = json.loads(file.read_text(encoding="utf-8"))
    assert outcome["finished"]
    assert outcome["name"] == file.stem
    assert not outcome["fast"]
    assert file.stem in {name for _, name in PLACES}
    for cell in outcome["cells"]:
        assert [run["seed"] for run in cell["runs"]] == outcome["seeds"]


def make_experiment(calls: list[int]) -> Experiment:
    def measure(seed: int, fast: bool) -> dict[str, float | None]:
        calls.append(seed)
        return {"score": None if seed == 2 else 0.5 + seed, "cost": 10.0 * seed}

    return Experiment(
        name="small",
        title="A small one",
        metric="score",
        better="higher",
        note="Made up.",
        jobs=[Job(coordinates={"case": "a"}, measure=measure, paper=1.25)],
        seeds=3,
        beside=("cost",),
    )


def test_cells_have_mean_spread_and_what_was_missed(tmp_path: Path) -> None:
    outcome = run_experiment(make_experiment([]), out=tmp_path / "small.json")
    cell = outcome["cells"][0]
    # No mean without the one that missed, which would flatter the others.
    assert (cell["mean"], cell["std"], cell["seeds"], cell["missed"]) == (None, None, 3, 1)
    assert json.loads((tmp_path / "small.json").read_text()) == outcome
    assert "| a | median 0.5 (1 of 3 not reached) | 1.25 | 10 |" in markdown_table(outcome)


def test_stopped_experiment_goes_on_where_it_was(tmp_path: Path) -> None:
    calls: list[int] = []
    out = tmp_path / "small.json"
    whole = run_experiment(make_experiment(calls), out=out)
    whole["finished"] = False
    whole["cells"][0]["runs"].pop()
    out.write_text(json.dumps(whole))
    calls.clear()
    assert run_experiment(make_experiment(calls), out=out)["finished"]
    assert calls == [2]


def test_an_empty_file_of_results_is_none_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    """``--json`` may name a file that is there already, made by ``mktemp`` or a full disk."""
    out = tmp_path / "small.json"
    out.touch()
    assert run_experiment(make_experiment([]), out=out)["finished"]
    out.write_text("{")
    with pytest.raises(StorageError, match=r"small\.json: damaged, no JSON"):
        run_experiment(make_experiment([]), out=out)


def test_more_seeds_are_added_to_a_finished_experiment(tmp_path: Path) -> None:
    calls: list[int] = []
    out = tmp_path / "small.json"
    few = run_experiment(make_experiment(calls), out=out, seeds=1)
    assert few["seeds"] == [0]
    more = run_experiment(make_experiment(calls), out=out)
    assert calls == [0, 1, 2]
    assert (more["finished"], more["seeds"]) == (True, [0, 1, 2])
    # The same seeds again are measured again, and so is a file with more than are wanted.
    for wanted in (3, 2):
        calls.clear()
        run_experiment(make_experiment(calls), out=out, seeds=wanted)
        assert calls == list(range(wanted))


def test_page_without_a_place_is_found_first(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(ConfigError, match=says("page.md", "no such")):
        check_page(page, "small")
    page.write_text("nothing here")
    with pytest.raises(ConfigError, match="results: small"):
        check_page(page, "small")


def test_an_experiment_that_goes_along_something_has_columns_and_curves(tmp_path: Path) -> None:
    def cell(task: str, method: str, epsilon: float | str, value: float | None) -> Job:
        return Job(
            coordinates={"task": task, "method": method, "epsilon": epsilon},
            measure=lambda seed, fast: {"score": value, "noise": 2.0},
            paper=0.5 if epsilon == 1.0 else None,
        )

    experiment = Experiment(
        name="small",
        title="A small one",
        metric="score",
        better="higher",
        note="Made up.",
        jobs=[
            cell("a", "ours", "none", 0.9),
            cell("a", "ours", 1.0, 0.6),
            cell("a", "other", 1.0, None),
            cell("b", "ours", 2.0, 0.7),
        ],
        seeds=1,
        beside=("noise",),
        along="epsilon",
    )
    outcome = run_experiment(experiment, out=tmp_path / "small.json")
    table = markdown_table(outcome)
    assert "*task a; by epsilon*\n\n|  | none | 1.0 |\n|---|---|---|\n" in table
    assert "| ours | 0.9 | 0.6 (paper 0.5) |\n| other |  | not reached (paper 0.5) |" in table
    assert "One seed; revision " in table
    assert "task b; by epsilon: noise\n\n|  | 2.0 |\n|---|---|\n| ours | 2 |" in table
    plot(outcome, tmp_path / "small.svg")
    picture = (tmp_path / "small.svg").read_text(encoding="utf-8")
    assert picture.count('<g id="axes_') == 2
    for text in ("task a", "task b", "ours, none", "epsilon", "score"):
        assert f"<!-- {text} -->" in picture
