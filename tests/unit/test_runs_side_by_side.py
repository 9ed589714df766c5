"""Runs in a directory: list, compare, tags, deletion, and where each comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.core.errors import ConfigError, StorageError
from colonnade.data.table_files import plain_numbers
from colonnade.run.engine import train
from colonnade.run.run_shelf import PROMOTED, RunShelf
from colonnade.run.spec import read_spec
from colonnade.run.storage import RunInUse, lock_or_refuse

CONFIG = """
seed = {seed}
[label_holder]
name = "bank"
file = "bank.csv"
id = "id"
label = "defaulted"
[party.bank]
file = "bank.csv"
id = "id"
columns = ["income"]
[party.telco]
file = "telco.csv"
id = "id"
[stop]
exchanges = 2
{further}
"""


@pytest.fixture
def shelf(tmp_path: Path) -> RunShelf:
    """Two runs with different seeds, and one that started from the first."""
    draw = np.random.default_rng(0)
    ids = [f"c{number}" for number in range(40)]
    values = draw.normal(size=(40, 3))
    label = np.where(values.sum(1) > 0, "yes", "no")
    bank = pd.DataFrame({"id": ids, "income": values[:, 0], "defaulted": label})
    bank.to_csv(tmp_path / "bank.csv", index=False)
    telco = pd.DataFrame({"id": ids, "calls": values[:, 1], "minutes": values[:, 2]})
    telco.to_csv(tmp_path / "telco.csv", index=False)
    (tmp_path / "runs").mkdir()
    for name, seed, further in (
        ("first", 1, ""),
        ("second", 2, ""),
        ("third", 1, '[start]\nrun = "runs/first"'),
    ):
        config = tmp_path / f"{name}.toml"
        config.write_text(CONFIG.format(seed=seed, further=further))
        train(read_spec(config), directory=tmp_path / "runs" / name)
    return RunShelf(tmp_path / "runs")


def lineage(shelf: RunShelf, name: str) -> dict[str, Any]:
    found: dict[str, Any] = shelf.entry(name).summary["lineage"]
    return found


def test_runs_have_names_quality_lineage_and_tags(shelf: RunShelf) -> None:
    assert [item.name for item in shelf.entries()] == ["first", "second", "third"]
    assert shelf.entry("first").quality is not None
    first, second, third = (lineage(shelf, name) for name in ("first", "second", "third"))
    assert first["settings"] != second["settings"]
    # Another seed, other parts: the rows are the same people in another order.
    assert first["data"]["labels"] != second["data"]["labels"]
    assert first["data"] == third["data"]
    assert first["parent"] is None
    assert third["parent"] == {"run": "first", "settings": first["settings"]}
    assert shelf.tag("first", PROMOTED) is None
    assert shelf.tag("second", PROMOTED) == "first"
    assert shelf.entry(PROMOTED).name == "second"
    assert shelf.entry("second").plain()["tags"] == [PROMOTED]


def test_where_the_files_are_makes_no_other_settings(shelf: RunShelf, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("bank.csv", "telco.csv", "first.toml"):
        (elsewhere / name).write_bytes((tmp_path / name).read_bytes())
    summary = train(read_spec(elsewhere / "first.toml")).summary
    assert summary["lineage"] == lineage(shelf, "first")


def test_a_changed_value_is_other_data(shelf: RunShelf, tmp_path: Path) -> None:
    table = pd.read_csv(tmp_path / "telco.csv")
    table.loc[3, "calls"] += 0.5
    table.to_csv(tmp_path / "telco.csv", index=False)
    data = train(read_spec(tmp_path / "first.toml")).summary["lineage"]["data"]
    before = lineage(shelf, "first")["data"]
    assert [name for name in data if data[name] != before[name]] == ["telco"]


def test_two_runs_are_compared_by_setting(shelf: RunShelf) -> None:
    found = shelf.compare("first", "second")
    assert found["seed"] == (1, 2)
    assert "method.name" not in found
    assert "lineage.settings" in found


def test_what_is_tagged_or_a_parent_or_in_use_stays(shelf: RunShelf) -> None:
    shelf.tag("second", "candidate")
    with pytest.raises(ConfigError, match=r"tagged candidate.*untag"):
        shelf.delete("second")
    with pytest.raises(ConfigError, match="third started from it"):
        shelf.delete("first")
    shelf.untag("candidate")
    lock_or_refuse(shelf.root / "second")
    with pytest.raises(StorageError, match="in use"):
        shelf.delete("second")
    first, second = (RunInUse(shelf.root / "third") for _ in range(2))
    first.close()
    with pytest.raises(StorageError, match=r"in use.*end that service"):
        shelf.delete("third")
    second.close()
    shelf.delete("third")
    shelf.delete("first")
    assert [item.name for item in shelf.entries()] == ["second"]


@pytest.mark.parametrize("name", ["frist", "../first", "", "first/../first"])
def test_a_name_that_is_no_run_is_told_the_nearest(shelf: RunShelf, name: str) -> None:
    with pytest.raises(ConfigError, match="no run or tag"):
        shelf.delete(name)
    assert len(shelf.entries()) == 3


def test_bad_tags_are_refused(shelf: RunShelf) -> None:
    for tag in ("first", "", "a b", "../x", "x" * 65):
        with pytest.raises(ConfigError, match="tag"):
            shelf.tag("second", tag)
    (shelf.root / "first" / "summary.json").unlink()
    with pytest.raises(ConfigError, match="has not ended"):
        shelf.tag("first", "candidate")


def test_damaged_tags_are_named(shelf: RunShelf) -> None:
    (shelf.root / "tags.json").write_text(json.dumps({"production": 3}))
    with pytest.raises(StorageError, match="damaged"):
        shelf.entries()


def test_commands_take_a_tag_for_a_run_and_ids_keep_their_type(
    shelf: RunShelf, tmp_path: Path
) -> None:
    def ran(*words: object) -> str:
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done
        return done.output

    ran("runs", "promote", shelf.root, "second")
    tagged = shelf.root / PROMOTED
    assert ran("evaluate", tagged, "--json") == ran("evaluate", shelf.root / "second", "--json")
    files = {name: tmp_path / f"new_{name}.csv" for name in ("bank", "telco")}
    for name, file in files.items():
        table = pd.read_csv(tmp_path / f"{name}.csv")
        table.assign(id=table["id"].str[1:].astype(int)).to_csv(file, index=False)
    blocks = [f"--block={name}={file}" for name, file in files.items()]
    ran("predict", tagged, *blocks, "--out", tmp_path / "answers.parquet")
    answers = pd.read_parquet(tmp_path / "answers.parquet")
    assert answers["id"].tolist() == list(range(40))
    assert answers["id"].dtype == np.int64


@pytest.mark.parametrize("ids", [["007", "8"], ["+7"], ["7.0"], ["-0"], ["9" * 19], ["a"]])
def test_what_is_not_written_as_a_plain_number_stays_text(ids: list[str]) -> None:
    assert plain_numbers(pd.Index(ids)).tolist() == ids
    assert plain_numbers(pd.Index(["-7", "0", "12"])).tolist() == [-7, 0, 12]
