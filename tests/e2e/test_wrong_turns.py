"""Twenty wrong turns of a new user: each ends in one clear line, or in the right result."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.cli.main import main
from colonnade.cli.progress import ProgressLines
from colonnade.run.storage import lock_or_refuse, read_json

NUM_SAMPLES = 300
HEAD = """
[label_holder]
name = "bank"
label = "defaulted"
[defaults]
encoder = {{ kind = "mlp", hidden = [8], embedding = 4 }}
optimizer = {{ lr = 0.02 }}
{defaults}
[label_holder.optimizer]
lr = 0.02
[data]
batch_size = 32
{data}
[stop]
epochs = {epochs}
"""


@dataclass
class Place:
    """Two parties' tables, the settings of a run, and the command line."""

    root: Path
    command: Callable[..., tuple[int, str]]
    bank: pd.DataFrame = field(init=False)
    telco: pd.DataFrame = field(init=False)
    writing: dict[str, Any] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=lambda: {"bank": "customer", "telco": "customer"})
    extra: dict[str, str] = field(default_factory=lambda: {"bank": "", "telco": ""})
    defaults: str = ""
    data: str = ""
    epochs: int = 15

    def __post_init__(self) -> None:
        draw = np.random.default_rng(4)
        ids = draw.permutation(np.arange(1000, 1000 + NUM_SAMPLES))
        self.bank = pd.DataFrame({"customer": ids, "income": draw.normal(40, 12.5, NUM_SAMPLES)})
        self.telco = pd.DataFrame({"customer": ids, "calls": draw.normal(20, 5.25, NUM_SAMPLES)})
        risk = (self.bank["income"] - 40) / 12.5 + (self.telco["calls"] - 20) / 5.25
        self.bank["defaulted"] = np.where(risk > 0, "yes", "no")
        self.telco = self.telco.sample(frac=1, random_state=1, ignore_index=True)

    def write(self) -> Path:
        text = HEAD.format(defaults=self.defaults, data=self.data, epochs=self.epochs)
        for name, table in (("bank", self.bank), ("telco", self.telco)):
            table.to_csv(self.root / f"{name}.csv", index=False, **self.writing)
            text += f'[party.{name}]\nfile = "{name}.csv"\nid = "{self.ids[name]}"\n'
            text += f"{self.extra[name]}\n"
        (self.root / "run.toml").write_text(text, encoding="utf-8")
        return self.root / "run.toml"

    def train(self) -> tuple[int, str]:
        return self.command("train", str(self.write()), "--out", str(self.root / "run"))

    def refused(self, *telling: str) -> None:
        """Train and check both end in one line that says all this, and nothing is written."""
        code, said = self.train()
        assert code == 1, said
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, said
        assert [item for item in telling if item not in errors[0]] == [], errors[0]
        assert "Traceback" not in said
        assert not (self.root / "run").exists()
        code, said = self.command("check", str(self.root / "run.toml"))
        assert code == 1, said
        assert any(all(item in line for item in telling) for line in said.splitlines()), said

    def trained(self, *telling: str, least: float = 0.85) -> str:
        """Training ends well, and says all this on the way."""
        code, said = self.train()
        assert code == 0, said
        assert [item for item in telling if item not in said] == [], said
        quality = read_json(self.root / "run" / "summary.json")["quality"]["test"]
        assert quality["accuracy"] >= least, quality
        return said


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Place:
    """The command line in this process: arguments in, exit code and all that was said out."""

    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["colonnade", *arguments])
        monkeypatch.setenv("COLONNADE_DEBUG", "")
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        told = capsys.readouterr()
        return code, told.out + told.err

    return Place(tmp_path, command)


def test_nothing_wrong(place: Place) -> None:
    place.trained()
    code, said = place.command("check", str(place.root / "run.toml"))
    assert code == 0, said
    for fact in ("income: numbers", "300 known to all", "binary (guessed", "exchanges", "ready"):
        assert fact in said


def test_1_a_typing_mistake_in_a_key_or_a_party(place: Place) -> None:
    place.data = "batchsize = 3"
    code, said = place.train()
    assert code == 1
    assert "data.batchsize: unknown key; did you mean 'batch_size'?" in said
    place.data = ""
    place.trained()
    run = str(place.root / "run")
    block = f"bnk={place.root / 'bank.csv'}"
    code, said = place.command("predict", run, "--block", block, "--out", f"{run}/p.csv")
    assert code == 1
    assert "no party 'bnk'; did you mean 'bank'?" in said


def test_2_a_wrong_id_column(place: Place) -> None:
    place.telco["row"] = range(NUM_SAMPLES)
    place.ids["telco"] = "row"
    place.refused("no sample is known to all", "'telco' has 0", "id column")
    place.ids["telco"] = "custmer"
    place.refused("'telco'", "no column ['custmer']", "did you mean 'customer'?")


def test_3_duplicate_ids(place: Place) -> None:
    place.telco = pd.concat([place.telco, place.telco[:5]])
    place.refused("'telco'", "5 duplicate ids", "one row per id")


@pytest.mark.parametrize("coding", ["same", "numbers", "turned", "other party"])
def test_4_the_label_among_the_columns(place: Place, coding: str) -> None:
    is_yes = (place.bank["defaulted"] == "yes").astype(int)
    if coding == "other party":
        answer = dict(zip(place.bank["customer"], is_yes, strict=True))
        place.telco["flag"] = place.telco["customer"].map(answer)
        place.refused("'telco'", "'flag'", "in another coding, the label 'defaulted'", "leave it")
        return
    values = {"same": place.bank["defaulted"], "numbers": is_yes, "turned": 7 - 3 * is_yes}
    place.bank["flag"] = values[coding]
    place.refused("'bank'", "'flag'", "the label 'defaulted'", "leave it out")


def test_4b_a_column_that_nearly_is_the_label(place: Place) -> None:
    noise = np.random.default_rng(0).normal(0, 0.2, NUM_SAMPLES)
    place.bank["paid_back"] = (place.bank["defaulted"] == "no") + noise
    place.trained("'paid_back' alone tells the label (AUC", "leave it out of party.bank.columns")


def test_5_missing_values(place: Place) -> None:
    place.bank.loc[7, "income"] = None
    place.refused("'bank'", "'income' has 1 missing", 'party.bank.prepare.missing = "mean"')
    place.extra["bank"] = 'prepare = { missing = "mean" }'
    place.trained()


@pytest.mark.parametrize("pattern", ["{:.2f} €", "EUR{:.2f}", "{:.0f} km"])
def test_6_text_that_is_numbers(place: Place, pattern: str) -> None:
    place.bank["income"] = place.bank["income"].map(pattern.format)
    place.refused("'bank'", "'income'")


def test_7_semicolons(place: Place) -> None:
    place.writing = {"sep": ";"}
    place.trained("fields are separated by ';'")


def test_8_decimal_commas(place: Place) -> None:
    place.writing = {"sep": ";", "decimal": ","}
    place.trained("'income' has a decimal comma")


def test_8b_decimal_commas_between_commas(place: Place) -> None:
    place.writing = {"decimal": ","}
    place.trained("'income' has a decimal comma")


def test_8c_thousands_or_fractions(place: Place) -> None:
    place.bank["income"] = [f"{item:,.0f}" for item in 1000 + 500 * place.bank["income"]]
    place.refused("'bank'", "'income'", 'csv.thousands = ","', 'csv.decimal = ","')
    place.extra["bank"] = 'csv = { thousands = "," }'
    place.trained()


def test_9_latin_1(place: Place) -> None:
    place.bank["town"] = np.where(place.bank["customer"] % 2 == 0, "Köln", "Genève")
    place.writing = {"encoding": "latin-1"}
    place.trained("not UTF-8 and was read as Latin-1")
    assert "Köln" in str(read_json(place.root / "run/parties/bank/preparation.json")["levels"])


def test_10_dates(place: Place) -> None:
    days = pd.date_range("2020-01-01", periods=NUM_SAMPLES)
    place.bank["opened"] = days.strftime("%d/%m/%Y")
    place.refused("'bank'", "'opened' holds dates as text", "csv.dates")
    place.extra["bank"] = 'csv = { dates = { opened = "%d/%m/%Y" } }'
    place.trained()
    place.extra["bank"] = 'csv = { dates = { opened = "%m/%d/%Y" } }'
    (place.root / "run").rename(place.root / "first")
    place.refused("'opened'", "no date of the format '%m/%d/%Y'", "row 12")


def test_11_a_constant_column(place: Place) -> None:
    place.telco["country"] = "NL"
    place.refused("'telco'", "'country' is constant", "prepare.constant")


def test_12_names_and_very_many_categories(place: Place) -> None:
    place.bank["name"] = [f"Person {number}" for number in range(NUM_SAMPLES)]
    place.refused("'bank'", "'name' has a different text in 300 of 300 rows", "leave it out")
    place.bank = place.bank.drop(columns="name")
    place.bank["serial"] = np.arange(NUM_SAMPLES) + 77
    place.trained("'serial' is a different whole number in every row", "leave it out")


def test_13_ten_rows(place: Place) -> None:
    place.bank, place.epochs = place.bank[:10], 2
    place.data = 'incomplete = "drop"'
    code, said = place.train()
    assert code == 0, said
    assert "only 10 labelled samples" in said


def test_14_three_positives_in_300(place: Place) -> None:
    place.bank["defaulted"] = "no"
    place.bank.loc[[3, 50, 90], "defaulted"] = "yes"
    place.epochs = 2
    said = place.trained("only 3 of 300 samples (1.0 %)", "accuracy hides failure", "balanced")
    assert "Traceback" not in said


def test_15_an_empty_party(place: Place) -> None:
    place.telco = place.telco[:0]
    place.refused("party 'telco' has no rows", "at least one")


@pytest.mark.parametrize("what", ["gone", "directory", "damaged", "kind"])
def test_16_a_file_that_can_not_be_read(place: Place, what: str) -> None:
    path = place.write()
    file = place.root / "telco.csv"
    file.unlink()
    if what == "directory":
        file.mkdir()
    elif what == "damaged":
        path.write_text(path.read_text().replace("telco.csv", "telco.parquet"))
        file = place.root / "telco.parquet"
        file.write_text("no parquet")
    elif what == "kind":
        path.write_text(path.read_text().replace("telco.csv", "telco.xlsx"))
        file = place.root / "telco.xlsx"
        file.write_text("no table")
    for name in ("train", "check"):
        code, said = place.command(name, str(path))
        assert code == 1
        assert said.count("\n") == 1, said
        assert file.name in said


def test_17_a_directory_in_use(place: Place) -> None:
    (place.root / "run").mkdir()
    lock = lock_or_refuse(place.root / "run")
    try:
        code, said = place.train()
    finally:
        os.close(lock)
    assert code == 1
    assert "in use by another process" in said
    place.trained()
    code, said = place.train()
    assert code == 1
    assert "holds a run already" in said
    assert "--resume" in said


def test_18_ctrl_c(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ProgressLines.exchanged

    def interrupted(self: ProgressLines, event: Any) -> None:
        told(self, event)
        if event.exchange == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressLines, "exchanged", interrupted)
    code, said = place.train()
    assert code == 130
    assert "stopped after exchange 3; --resume goes on" in said
    monkeypatch.undo()


def test_19_spaces_and_umlauts_in_paths(place: Place) -> None:
    place.root = place.root / "Müllers Daten (neu)"
    place.root.mkdir()
    place.trained()
    code, said = place.command("evaluate", str(place.root / "run"))
    assert code == 0, said


def test_20_a_changed_schema_at_prediction(place: Place) -> None:
    place.trained()
    run, out = str(place.root / "run"), str(place.root / "p.csv")
    tables = {
        "gone": place.telco.drop(columns="calls").assign(sms=1),
        "text": place.telco.assign(calls="many"),
        "gaps": place.telco.assign(calls=place.telco["calls"].where(place.telco.index != 3)),
    }
    telling = {
        "gone": ("'telco'", "no column ['calls']", "it has: sms"),
        "text": ("'telco'", "'calls' was numeric in training", "give numbers"),
        "gaps": ("'telco'", "'calls' has 1 missing", "row 3"),
    }
    for name, table in tables.items():
        table.to_csv(place.root / "new.csv", index=False)
        blocks = [f"bank={place.root / 'bank.csv'}", f"telco={place.root / 'new.csv'}"]
        code, said = place.command(
            "predict", run, "--block", blocks[0], "--block", blocks[1], "--out", out
        )
        assert code == 1
        assert [item for item in telling[name] if item not in said] == [], said
    place.telco.assign(more=1).to_csv(place.root / "new.csv", index=False)
    code, said = place.command(
        "predict", run, "--block", blocks[0], "--block", blocks[1], "--out", out
    )
    assert code == 0, said


# A file that trains, from nothing but tables


def test_init_writes_settings_that_train(place: Place) -> None:
    place.bank["name"] = [f"Person {number}" for number in range(NUM_SAMPLES)]
    place.bank["flag"] = (place.bank["defaulted"] == "yes").astype(int)
    place.bank["country"] = "NL"
    place.telco = place.telco.rename(columns={"customer": "kunde"})[:250]
    place.telco.loc[3, "calls"] = None
    place.write()
    out = place.root / "made.toml"
    files = [str(place.root / f"{name}.csv") for name in ("bank", "telco")]
    code, said = place.command("init", *files, "--out", str(out))
    assert code == 0, said
    assert "bank by 'customer', telco by 'kunde'" in said
    assert "'defaulted' of 'bank'" in said
    text = out.read_text(encoding="utf-8")
    for fact in ('file = "bank.csv"', "guessed", "left out", "'flag' is the label", "250 of 300"):
        assert fact in text
    code, said = place.command("check", str(out))
    assert code == 0, said
    code, said = place.command("train", str(out), "--out", str(place.root / "run"))
    assert code == 0, said
    code, said = place.command("init", *files, "--out", str(out))
    assert code == 1
    assert "is there already" in said
    other = str(place.root / "other.toml")
    code, said = place.command("init", *files, "--label", "defalted", "--out", other)
    assert code == 1
    assert "did you mean 'defaulted'?" in said
