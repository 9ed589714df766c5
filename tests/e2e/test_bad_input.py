"""Bad input is a clear error before anything is written: what, where, and the remedy."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from colonnade import fit
from colonnade.core.errors import (
    ColonnadeError,
    ConfigError,
    DataError,
    DatasetNotFound,
    Diverged,
    StorageError,
)
from colonnade.methods import METHODS
from colonnade.run.engine import train
from colonnade.run.result import Result
from colonnade.run.spec import parse_spec
from federations import weights
from messages import says

NUM_SAMPLES = 40
# Values that no message and no log may show.
SECRET_ID, SECRET_NUMBER, SECRET_TEXT = "person-", "424242", "secret"
SMALL: Mapping[str, Any] = {
    "defaults": {"encoder": {"kind": "mlp", "hidden": [6], "embedding": 4}},
    "data": {"batch_size": 8},
    "stop": {"epochs": 2},
}


class Data:
    """A bank and a telco, to be spoiled."""

    def __init__(self) -> None:
        draw = np.random.default_rng(2)
        ids = [f"{SECRET_ID}{number:03d}" for number in range(NUM_SAMPLES)]
        numbers = 424242 + draw.normal(size=(NUM_SAMPLES, 3))
        self.bank = pd.DataFrame(numbers[:, :2], index=ids, columns=["age", "income"])
        self.telco = pd.DataFrame({"calls": numbers[:, 2]}, index=ids)
        self.telco["plan"] = [f"{SECRET_TEXT}-{number % 3}" for number in range(NUM_SAMPLES)]
        signal = self.bank["age"] + self.telco["calls"]
        self.labels = (signal > signal.median()).astype(int).rename("defaulted")
        self.settings = dict(SMALL)

    def fit(self, **arguments: Any) -> Result:
        arguments = {"label_holder": "bank", "settings": self.settings, **arguments}
        return fit({"bank": self.bank, "telco": self.telco}, self.labels, **arguments)


@pytest.fixture
def data() -> Data:
    return Data()


def duplicate_ids(data: Data) -> None:
    data.telco = data.telco.set_axis([*data.telco.index[:-2], *data.telco.index[:2]])


def no_overlap(data: Data) -> None:
    data.telco = data.telco.set_axis("other-" + data.telco.index)


def no_rows(data: Data) -> None:
    data.telco = data.telco.iloc[:0]


def label_among_features(data: Data) -> None:
    data.bank["defaulted"] = data.labels


def label_at_another_party(data: Data) -> None:
    data.telco["defaulted"] = data.labels


def label_under_another_name(data: Data) -> None:
    data.bank["outcome"] = data.labels


def label_as_float(data: Data) -> None:
    data.bank["outcome"] = data.labels.astype(float)


def label_as_text(data: Data) -> None:
    data.labels = data.labels.map({0: "no", 1: "yes"})
    data.bank["outcome"] = data.labels.astype("category")


def missing_number(data: Data) -> None:
    data.bank = data.bank[::-1]
    data.bank.iloc[3, 0] = np.nan


def infinite_number(data: Data) -> None:
    data.bank.iloc[5, 1] = np.inf


def missing_text(data: Data) -> None:
    data.telco.loc[data.telco.index[2:4], "plan"] = None


def constant_column(data: Data) -> None:
    data.bank["country"] = 424242


def missing_label(data: Data) -> None:
    data.labels = data.labels.astype(float)
    data.labels.iloc[7] = np.nan


def infinite_label(data: Data) -> None:
    data.labels = data.bank["age"].rename("debt") * 2
    data.labels.iloc[7] = np.inf


def one_class(data: Data) -> None:
    data.labels[:] = 1


def rare_class(data: Data) -> None:
    """One sample each of many classes: some are bound to be held out only."""
    data.labels.iloc[:8] = np.arange(2, 10)
    data.settings["data"] = {**data.settings["data"], "split": {"stratified": False}}


def mixed_labels(data: Data) -> None:
    data.labels = data.labels.astype(object)
    data.labels.iloc[0] = "yes"


def unknown_party(data: Data) -> None:
    data.settings["party"] = {"telko": {"optimizer": {"lr": 0.1}}}


def unknown_profile(data: Data) -> None:
    data.settings["fabric"] = {"name": "simulated", "party": {"bnk": {"latency": 5}}}


def wrong_encoder(data: Data) -> None:
    data.settings["party"] = {"bank": {"encoder": "lenet"}}


def wrong_loss(data: Data) -> None:
    data.settings["label_holder"] = {"loss": "huber"}


def patience_without_validation(data: Data) -> None:
    data.settings["data"] = {"split": {"validation": 0.0}}
    data.settings["stop"] = {"epochs": 2, "patience": 1}


BAD: list[tuple[Callable[[Data], None], type[ColonnadeError], list[str]]] = [
    (duplicate_ids, DataError, ["party 'telco'", "2 duplicate ids", "row 38", "one row per id"]),
    (no_overlap, DataError, ["no sample is known to all", "'telco' has 0"]),
    (no_rows, DataError, ["party 'telco' has no rows", "at least one"]),
    (label_among_features, DataError, ["'bank'", "'defaulted' is the label", "leave it out"]),
    (label_at_another_party, DataError, ["'telco'", "'defaulted' is the label", "leave it out"]),
    (label_under_another_name, DataError, ["'bank'", "'outcome' equals the label 'defaulted'"]),
    (label_as_float, DataError, ["'bank'", "'outcome' equals the label 'defaulted'"]),
    (label_as_text, DataError, ["'bank'", "'outcome' equals the label 'defaulted'"]),
    (missing_number, DataError, ["'bank'", "'age' has 1 missing", "row 3)", "prepare.missing"]),
    (infinite_number, DataError, ["'bank'", "'income' has 1 infinite", "row 5)", "replace"]),
    (missing_text, DataError, ["'telco'", "'plan' has 2 missing", "row 2)", "prepare.missing"]),
    (constant_column, DataError, ["'bank'", "'country' is constant", "prepare.constant"]),
    (missing_label, DataError, ["labels 'defaulted'", "1 of 40 are missing", "row 7", "remove"]),
    (infinite_label, DataError, ["labels", "infinite", "remove"]),
    (one_class, DataError, ["labels", "1 class(es)", "at least two"]),
    (rare_class, DataError, ["labels", "do not occur in the training part", "more samples"]),
    (mixed_labels, DataError, ["labels"]),
    (unknown_party, ConfigError, ["party.telko", "no such party", "did you mean 'telco'?"]),
    (unknown_profile, ConfigError, ["fabric.party.bnk", "no such party", "did you mean 'bank'?"]),
    (wrong_encoder, ConfigError, ["party.bank.encoder", "lenet"]),
    (wrong_loss, ConfigError, ["label_holder.loss", "'huber' does not fit a binary target"]),
    (patience_without_validation, ConfigError, ["patience", "validation"]),
]


@pytest.mark.parametrize(("spoil", "kind", "telling"), BAD, ids=[item[0].__name__ for item in BAD])
def test_bad_tables(
    data: Data, tmp_path: Path, spoil: Any, kind: type[ColonnadeError], telling: list[str]
) -> None:
    spoil(data)
    with pytest.raises(kind) as caught:
        data.fit(out=tmp_path / "runs" / "one")
    message = str(caught.value)
    assert [part for part in telling if part not in message] == [], message
    for secret in (SECRET_ID, SECRET_NUMBER, SECRET_TEXT):
        assert secret not in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", METHODS)
def test_every_method_refuses_before_it_begins(data: Data, tmp_path: Path, method: str) -> None:
    constant_column(data)
    with pytest.raises(DataError, match=says("'country'", "constant")):
        data.fit(method=method, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "prepare"),
    [
        (missing_number, {"missing": "mean"}),
        (missing_text, {"missing": "mean"}),
        (constant_column, {"constant": "drop"}),
        (constant_column, {"constant": "keep"}),
    ],
)
def test_what_the_message_proposes_works(data: Data, spoil: Any, prepare: dict[str, str]) -> None:
    spoil(data)
    data.settings["defaults"] = {**SMALL["defaults"], "prepare": prepare}
    result = data.fit()
    shares = result.predict_proba({"bank": data.bank, "telco": data.telco})
    assert np.isfinite(shares.to_numpy()).all()
    width = weights(result._federation)["bank.encoder.hidden0.weight"].shape[1]
    assert width == (3 if prepare == {"constant": "keep"} else 2)


# Files


def plan_for(directory: Path, data: Data) -> dict[str, Any]:
    data.bank.join(data.labels).rename_axis("id").to_csv(directory / "bank.csv")
    data.telco.rename_axis("id").to_csv(directory / "telco.csv")
    return {
        **SMALL,
        "label_holder": {"name": "bank", "label": "defaulted"},
        "party": {
            "bank": {"file": str(directory / "bank.csv"), "id": "id"},
            "telco": {"file": str(directory / "telco.csv"), "id": "id"},
        },
    }


def test_good_files(data: Data, tmp_path: Path) -> None:
    assert train(parse_spec(plan_for(tmp_path, data))).summary["exchanges"] > 0


@pytest.mark.parametrize(
    ("section", "change", "kind", "telling"),
    [
        ("party.telco", {"file": "/gone/telco.csv"}, DataError, ["/gone/telco.csv: no such file"]),
        ("party.telco", {"file": None}, ConfigError, ["party.telco.file: missing"]),
        ("party.telco", {"id": None}, ConfigError, ["party.telco.id: missing"]),
        ("party.telco", {"id": "key"}, DataError, ["'telco'", "no column ['key']", "it has: id"]),
        ("party.telco", {"columns": ["calls", "bill"]}, DataError, ["no column ['bill']", "plan"]),
        ("party.telco", {"columns": ["id", "calls"]}, DataError, ["no column ['id']"]),
        ("party.telco", {"columns": []}, DataError, ["'telco'", "no columns"]),
        ("party.bank", {"columns": ["age", "defaulted"]}, DataError, ["'defaulted' is the label"]),
        ("label_holder", {"name": None}, ConfigError, ["label_holder.name: missing"]),
        ("label_holder", {"label": None}, ConfigError, ["label_holder.label: missing"]),
        ("label_holder", {"name": "court"}, ConfigError, ["label_holder.file: missing"]),
        ("label_holder", {"label": "risk"}, DataError, ["labels 'risk'", "no column ['risk']"]),
        ("label_holder", {"file": "/gone/y.csv"}, DataError, ["/gone/y.csv: no such file"]),
        ("data", {"dataset": "breast_cancer"}, ConfigError, ["label_holder.label", "its own lab"]),
    ],
    ids=str,
)
def test_bad_plans(
    data: Data, tmp_path: Path, section: str, change: Any, kind: Any, telling: list[str]
) -> None:
    plan = plan_for(tmp_path, data)
    *outer, last = section.split(".")
    target = plan[outer[0]] if outer else plan
    target[last] = {**target[last], **change}
    with pytest.raises(kind) as caught:
        train(parse_spec(plan), directory=tmp_path / "run")
    assert [part for part in telling if part not in str(caught.value)] == [], str(caught.value)
    assert SECRET_ID not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_no_data_or_unknown_data() -> None:
    with pytest.raises(ConfigError, match=says("data.dataset", "missing", "file")):
        train(parse_spec({}))
    with pytest.raises(ConfigError, match=says("party", "block")):
        fit({}, pd.Series([0, 1]))
    with pytest.raises(DataError, match=says("'brest_cancer'", "breast_cancer")):
        train(parse_spec({"data": {"dataset": "brest_cancer"}}))


def test_a_data_set_that_is_not_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DatasetNotFound, match="cifar10"):
        train(parse_spec({"data": {"dataset": "cifar10"}}))


# Run directories


def test_a_directory_in_use(data: Data, tmp_path: Path) -> None:
    plan, directory = parse_spec(plan_for(tmp_path, data)), tmp_path / "run"
    directory.mkdir()
    for resume in (False, True):
        with (directory / "lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(StorageError, match=says(directory, "in use")):
                train(plan, directory=directory, resume=resume)
        train(plan, directory=directory, resume=resume)  # the lock goes with its holder


def test_a_directory_with_a_run_in_it(data: Data, tmp_path: Path) -> None:
    data.fit(out=tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(StorageError, match=says(tmp_path / "run", "already", "--resume")):
        data.fit(out=tmp_path / "run")
    assert before == {path: path.read_bytes() for path in before}


def test_nothing_to_resume(data: Data, tmp_path: Path) -> None:
    plan = parse_spec(plan_for(tmp_path, data))
    for directory in (tmp_path / "none", tmp_path):
        with pytest.raises(StorageError, match=says(directory, "--resume")):
            train(plan, directory=directory, resume=True)
    assert not (tmp_path / "none").exists()
    saved = train(plan).save(tmp_path / "model")
    with pytest.raises(StorageError, match=says(saved, "model", "resumed")):
        train(plan, directory=saved, resume=True)


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/none/run"])
def test_a_directory_that_can_not_be(data: Data, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match=place):
        data.fit(out=tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


def test_loading_from_nowhere(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=says(tmp_path / "none", "no such directory")):
        Result.load(tmp_path / "none")
    with pytest.raises(StorageError, match=says("config.json", "no such file", "run directory")):
        Result.load(tmp_path)


@pytest.mark.parametrize("file", ["label_holder/task.json", "parties/bank/preparation.json"])
@pytest.mark.parametrize("content", ["{", "{}"])
def test_loading_what_is_damaged(data: Data, tmp_path: Path, file: str, content: str) -> None:
    data.fit(out=tmp_path / "run")
    (tmp_path / "run" / file).write_text(content)
    with pytest.raises(StorageError, match=file):
        Result.load(tmp_path / "run")


# Divergence


@pytest.mark.parametrize("labels", ["classes", "numbers"])
@pytest.mark.parametrize("evaluate_every", [1, 4])
@pytest.mark.parametrize("who", ["telco", "label_holder"])
@pytest.mark.parametrize("lr", [1e38, 1e300])
def test_divergence(
    data: Data, tmp_path: Path, who: str, evaluate_every: int, labels: str, lr: float
) -> None:
    """One participant's learning rate is far too high."""
    if labels == "numbers":
        data.labels = (data.bank["age"] * 3 + data.telco["calls"]).rename("debt")
    plan = {
        **SMALL,
        "stop": {"exchanges": 4, "evaluate_every": evaluate_every},
        "record": {"log_every": 1, "checkpoint_every": 1},
    }
    wild = {"optimizer": {"name": "sgd", "lr": lr}}
    plan |= {"party": {"telco": wild}} if who == "telco" else {"label_holder": wild}
    with pytest.raises(Diverged) as caught:
        data.fit(settings=plan, out=tmp_path / "run")
    error = caught.value
    assert error.party == ("telco" if who == "telco" else "bank")
    assert f"exchange {error.exchange}" in str(error)
    assert f"'{error.party}'" in str(error)
    assert "learning rate" in str(error)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped_by"] == "diverged"
    # The exchange that was under way, or after which the evaluation was.
    assert error.exchange - 1 <= summary["exchanges"] <= error.exchange
    assert "Diverged" in (tmp_path / "run" / "run.log").read_text()
    loaded = Result.load(tmp_path / "run")
    assert loaded.summary == summary
    assert all(bool(torch.isfinite(item).all()) for item in weights(loaded._federation).values())
