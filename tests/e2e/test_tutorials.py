"""Tutorials and examples do what they say: files are saved and commands typed, in order."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from colonnade.cli.main import main

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
EXAMPLES = ROOT / "examples"


def type_in(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """One line of a terminal, in this process; gives the exit code."""
    name, *arguments = shlex.split(line, comments=True)
    if name == "python":
        if arguments[0].startswith("examples/"):
            return 0  # in a checkout; run below, with fewer epochs
        runpy.run_path(arguments[0], run_name="__main__")
        return 0
    assert name == "colonnade"
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def follow(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of a page: files that begin with their name are saved, commands are typed."""
    monkeypatch.chdir(place)
    text = (TUTORIALS / f"{name}.md").read_text("utf-8")
    for language, block in re.findall(r"^```(python|toml|bash)\n(.*?)^```", text, re.M | re.S):
        named = re.match(r"# ([\w.]+\.(?:py|toml))\n", block)
        if named:
            (place / named[1]).write_text(block, "utf-8")
            continue
        assert language == "bash", f"{name}.md has a block without a file's name"
        for line in block.splitlines():
            expected = re.search(r"# exit code (\d+)$", line)
            assert type_in(line, monkeypatch) == (int(expected[1]) if expected else 0), line


def without_numbers(line: str) -> str:
    """A line whose numbers and times are a sign."""
    return re.sub(r"\d(?:[\d.:T-]|e-)*", "#", line)


def fractions(line: str) -> list[float]:
    """The numbers between 0 and 10 that have a point."""
    return [float(item) for item in re.findall(r"(?<![\d.:])\d\.\d+(?![\d:])", line)]


def assert_shown(name: str, said: str) -> None:
    """Every line of output on a page was printed, up to times and small changes of the numbers."""
    text = (TUTORIALS / f"{name}.md").read_text("utf-8")
    for block in re.findall(r"^```text\n(.*?)^```", text, re.M | re.S):
        for line in block.splitlines():
            begun = line.removesuffix("...")
            came = [
                fractions(item)[: len(fractions(begun))]
                for item in said.splitlines()
                if without_numbers(item).startswith(without_numbers(begun))
            ]
            assert any(values == pytest.approx(fractions(begun), abs=0.05) for values in came), line


def test_reading_a_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follow("reading-a-ledger", tmp_path, monkeypatch)
    said = capsys.readouterr()
    assert_shown("reading-a-ledger", said.out + said.err)
    assert "laboratory opened: protection perturb" in said.out
    assert re.search(r"^laboratory: \d+ bytes left, protection perturb$", said.out, re.M)
    assert re.search(r"^clinic: entry \d+: the hash does not fit", said.out, re.M)


def test_missing_customers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follow("missing-customers", tmp_path, monkeypatch)
    assert_shown("missing-customers", capsys.readouterr().out)
    both, bank_only = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("both", "bank_only"))
    assert len(both) == len(bank_only) == 100
    assert both["blocks"].value_counts().to_list() == [50, 50]
    assert set(bank_only["blocks"]) == {"bank"}
    assert (tmp_path / "runs/laser/report.html").is_file()
    learned = {}
    for name in ("laser", "splitnn"):
        summary = json.loads((tmp_path / f"runs/{name}/summary.json").read_text("utf-8"))
        learned[name] = sum(summary["num_samples"].values())
    assert learned == {"laser": 800, "splitnn": 500}


def test_comparing_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(EXAMPLES / "compare_methods.py"))
    found = example["compare"](epochs=1)
    page = (TUTORIALS / "comparing-methods.md").read_text("utf-8")
    shown = re.findall(r"^(\w+) +[\d.]+ +\d+ +[\d.]+ +([\d.]+)$", page, re.M)
    assert [name for name, _ in shown] == list(found.index)
    # The clock is exact, whatever the machine: ten epochs take ten times one, but for a last step.
    assert float(dict(shown)["splitnn"]) == pytest.approx(
        10 * found["seconds"]["splitnn"], rel=0.02
    )
    assert found["seconds"]["vafl"] < found["seconds"]["splitnn"] / 10
    capsys.readouterr()
    follow("comparing-methods", tmp_path, monkeypatch)
    said = capsys.readouterr().out
    assert "fedbcd" in said
    assert re.search(r"quality\.test\.loss +│ [\d.]{3,7} +│ [\d.]{3,7} +│", said)  # few digits


def test_own_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_tables.py"))["main"](tmp_path, epochs=2)
    assert "Result(splitnn" in capsys.readouterr().out


def test_the_notebook(tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / "first_steps.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    for cell in cells.values():
        assert cell.outputs == [], "clear the outputs before you commit a notebook"
        assert cell.execution_count is None
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_name="python3", timeout=120, resources=resources).execute()
    shown = {cell.source.split(" = ")[0]: cell.outputs for cell in cells.values()}
    bar, card = (output["data"]["text/html"] for output in shown["together"])
    value, most = re.search(r'<progress value="(\d+)" max="(\d+)">', bar).groups()
    assert value == most
    assert "splitnn" in card
    (answers,) = shown["laser"]
    assert len(re.findall(r"^\d+ +[01]$", answers["data"]["text/plain"], re.M)) == 5


def test_every_tutorial_and_example_is_named_here() -> None:
    text = Path(__file__).read_text("utf-8")
    pages = {path.stem for path in TUTORIALS.glob("*.md")} - {"notebook"}
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert [name for name in sorted(pages | files) if f'"{name}"' not in text] == []
