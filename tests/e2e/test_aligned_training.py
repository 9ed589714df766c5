"""Training on a private alignment: the samples of an open join, and refusals of what is off."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from colonnade.cli.align import align
from colonnade.core.errors import ConfigError, DataError
from colonnade.run.engine import reopen, train
from colonnade.run.samples import Arrangement, arrange
from colonnade.run.sources import load_sources
from colonnade.run.spec import read_spec
from colonnade.run.storage import read_json
from messages import says

SALT = "0123456789abcdef-of-tests"

CONFIG = f"""
seed = 3
stop = {{ epochs = 2 }}
method = "splitnn"

[data]
incomplete = "drop"
ALIGNMENT

[align]
salt = "{SALT}"
key = [{{ rules = ["trim", "case"] }}, {{ rules = ["date"] }}]
duplicates = "keep_first"
columns = {{ bank = ["name", "born"], telco = ["customer", "birthday"] }}

[label_holder]
name = "bank"
label = "defaulted"

[party.bank]
file = "bank.csv"
id = "name"

[party.telco]
file = "telco.csv"
id = "customer"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two tables that write the same people differently, with a person twice in one of them."""
    draw = np.random.default_rng(0)
    count = 80
    born = [f"19{60 + n % 30}-0{1 + n % 9}-1{n % 10}" for n in range(count)]
    bank = pd.DataFrame(
        {
            "name": [f"Person {n:03d}" for n in range(count)],
            "born": born,
            "income": np.arange(count) + 0.5,
            "defaulted": np.where(draw.random(count) < 0.5, "yes", "no"),
        }
    )
    telco = pd.DataFrame(
        {
            "customer": [f" PERSON {n:03d}" for n in range(count)],
            "birthday": [item.replace("-", "/") for item in born],
            "calls": np.arange(count) * 2.0,
        }
    )
    bank[:70].to_csv(tmp_path / "bank.csv", index=False)
    shuffled = telco[10:].sample(frac=1, random_state=1)
    pd.concat([shuffled, shuffled[:3].assign(calls=-1.0)]).to_csv(
        tmp_path / "telco.csv", index=False
    )
    config(tmp_path, aligned=False)
    align(tmp_path / "plain.toml", out=tmp_path / "alignment", as_json=True)
    config(tmp_path, aligned=True)
    return tmp_path


def config(home: Path, *, aligned: bool, name: str = "") -> Path:
    path = home / (name or ("aligned.toml" if aligned else "plain.toml"))
    path.write_text(CONFIG.replace("ALIGNMENT", 'alignment = "alignment"' if aligned else ""))
    return path


def arranged(path: Path) -> Arrangement:
    spec = read_spec(path)
    return arrange(spec, load_sources(spec))


def test_the_aligned_samples_are_the_same_people_at_both_parties(home: Path) -> None:
    found = arranged(home / "aligned.toml")
    assert sum(found.roll.num_samples.values()) == 60
    bank, telco = found.blocks["bank"].values, found.blocks["telco"].values
    assert isinstance(bank, pd.DataFrame)
    assert isinstance(telco, pd.DataFrame)
    numbers = np.concatenate(list(found.samples.values()))
    income = bank["income"].to_numpy()[found.rows["bank"][numbers]]
    calls = telco["calls"].to_numpy()[found.rows["telco"][numbers]]
    # Person n has an income of n + 0.5 and 2 n calls; their second rows do not count.
    assert np.array_equal(2 * (income - 0.5), calls)
    assert sorted(calls / 2) == list(range(10, 70))
    labels = pd.read_csv(home / "bank.csv")["defaulted"].to_numpy()
    assert np.array_equal(found.values[numbers], labels[(income - 0.5).astype(int)])


def test_a_run_on_an_alignment_trains_resumes_and_keeps_no_salt(home: Path) -> None:
    spec = read_spec(home / "aligned.toml")
    result = train(spec, directory=home / "run")
    assert result.summary["stopped_by"] == "length"
    text = (home / "run" / "config.json").read_text()
    assert SALT not in text
    assert read_json(home / "run" / "config.json")["data"]["alignment"]
    again = reopen(home / "run").evaluate(part="test")
    assert again == result.evaluate(part="test")
    train(spec, directory=home / "run", resume=True)


def test_a_table_that_changed_is_refused(home: Path) -> None:
    table = pd.read_csv(home / "telco.csv")
    table.iloc[::-1].to_csv(home / "telco.csv", index=False)
    with pytest.raises(DataError, match=says("'telco'", "aligned", "--extend")):
        arranged(home / "aligned.toml")


def test_alignments_of_different_runs_are_refused(home: Path) -> None:
    align(home / "plain.toml", out=home / "other", as_json=True)
    shutil.copy(
        home / "other" / "parties" / "telco" / "alignment.npz",
        home / "alignment" / "parties" / "telco" / "alignment.npz",
    )
    with pytest.raises(DataError, match=r"digests: 'bank' \w+, 'telco' \w+"):
        arranged(home / "aligned.toml")


def test_a_party_that_was_not_aligned_is_named(home: Path) -> None:
    shutil.rmtree(home / "alignment" / "parties" / "telco")
    with pytest.raises(ConfigError, match=says("data.alignment", "'telco'")):
        arranged(home / "aligned.toml")


def test_an_alignment_without_its_terms_is_refused(home: Path) -> None:
    path = home / "aligned.toml"
    text = path.read_text()
    begin, end = text.index("[align]"), text.index("[label_holder]")
    path.write_text(text[:begin] + text[end:])
    with pytest.raises(ConfigError, match=says("aligned.toml", "data.alignment", "[align]")):
        read_spec(path)
