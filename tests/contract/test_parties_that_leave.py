"""Parties join and leave a federation between organisations, as they can in one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from agents import hub_of
from colonnade.core.errors import ConfigError, MissingBlock
from colonnade.federate.prediction_files import evaluate_over, predict_over
from colonnade.federate.training import train_over
from colonnade.protect.ledger import ledger_hashes
from colonnade.run.leaving import remove_party
from colonnade.run.spec import read_spec
from e2e.organisations import HOLDER, Organisations


@pytest.fixture
def make(tmp_path: Path) -> Any:
    return partial(Organisations, tmp_path, nursery=None, exchanges=2, combine="mean")


def train(organisations: Organisations, run: Path, config: Path, names: list[str]) -> Any:
    with hub_of(organisations, names) as hub:
        return train_over(
            hub,
            read_spec(config),
            HOLDER,
            run,
            alignments=organisations.federation / "alignments",
        )


def predict(organisations: Organisations, ids: Path, names: list[str]) -> Any:
    lines: list[str] = []
    with hub_of(organisations, names) as hub:
        table = predict_over(
            hub,
            organisations.federation,
            organisations.run,
            ids,
            organisations.root / "out.csv",
            say=lines.append,
        )
    return table, [line for line in lines if not line.startswith("waiting for shop")]


def test_a_party_that_left_is_neither_waited_for_nor_asked(make: Any) -> None:
    organisations = make(method="laser")
    train(organisations, organisations.run, organisations.config, ["shop", "telco"])
    assert remove_party(organisations.run, "telco") == ("bank", "shop")
    with pytest.raises(ConfigError, match="left the federation"):
        remove_party(organisations.run, "telco")
    with pytest.raises(ConfigError, match="party prune"):
        remove_party(organisations.run, "shop", erase=True)
    bank = organisations.root / "bank.csv"
    table, lines = predict(organisations, bank, ["shop"])
    assert lines == []
    used = set(table["blocks"])
    assert used
    assert used <= {"bank", "bank; shop", "shop"}
    # Connected or not, it is asked nothing; new ids are aligned with those who stay.
    (place,) = (organisations.home("telco") / "runs").iterdir()
    before = ledger_hashes(place)
    new = organisations.root / "new.csv"
    known = pd.read_csv(bank)
    pd.concat([known, known.iloc[:1].assign(id="c999")]).to_csv(new, index=False)
    table, lines = predict(organisations, new, ["shop", "telco"])
    assert lines == ["aligning with shop"]
    assert "telco" not in " ".join(table["blocks"])
    assert ledger_hashes(place) == before
    with hub_of(organisations, ["shop"]) as hub:
        measured = evaluate_over(hub, organisations.federation, organisations.run)
    assert "accuracy@shop" in measured
    assert "accuracy@telco" not in measured


def test_nobody_leaves_a_method_that_needs_everybody(make: Any) -> None:
    organisations = make(method="splitnn")
    train(organisations, organisations.run, organisations.config, ["shop", "telco"])
    with pytest.raises(MissingBlock, match="needs the blocks of every party"):
        remove_party(organisations.run, "telco")


def test_a_party_joins_a_run_that_goes_on_from_an_earlier_one(make: Any) -> None:
    organisations = make(method="laser")
    text = organisations.config.read_text()
    without = organisations.root / "without.toml"
    without.write_text(text.replace("[party.telco]", ""))
    train(organisations, organisations.run, without, ["shop"])
    joined = organisations.root / "joined.toml"
    joined.write_text(f'{text}\n[start]\nrun = "{organisations.run}"\n')
    summary = train(organisations, organisations.root / "second", joined, ["shop", "telco"])
    assert summary["lineage"]["parent"]["run"] == "run"
    names = [path.name for path in (organisations.home("telco") / "runs").iterdir()]
    assert names == [(organisations.root / "second" / "run_name").read_text()]
