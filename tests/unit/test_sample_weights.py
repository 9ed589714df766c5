"""Weights of samples and classes, and splits by time: in the loss, by every way in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import colonnade
from colonnade.core.errors import ConfigError, DataError
from colonnade.core.task import Task
from colonnade.data.splits import SplitSpec, split_samples
from colonnade.estimator import VerticalClassifier, VerticalRegressor
from colonnade.run.engine import train
from colonnade.run.result import Result
from colonnade.run.spec import parse_spec
from federations import assert_bitwise_equal, weights
from messages import says

COUNT = 40
DRAW = np.random.default_rng(3)
IDS = [f"u{number:02}" for number in range(COUNT)]
BANK = pd.DataFrame(DRAW.normal(size=(COUNT, 2)), index=IDS, columns=["age", "pay"])
TELCO = pd.DataFrame(DRAW.normal(size=(COUNT, 1)), index=IDS, columns=["calls"])
SCORE = (BANK["age"] + TELCO["calls"] + DRAW.normal(size=COUNT)).rename("score")
KIND = pd.cut(SCORE, [-9, -0.5, 0.5, 9], labels=["low", "mid", "high"]).astype(str).rename("kind")
COUNTED = pd.Series(DRAW.integers(1, 4, COUNT), index=IDS)
TARGETS = {
    "binary": (SCORE > 0).map({True: "yes", False: "no"}).rename("left"),
    "multiclass": KIND,
    "regression": SCORE,
}
# One batch of everything, unscaled: rows that are there twice are then the same as a weight of 2.
WHOLE: dict[str, Any] = {
    "dtype": "float64",
    "data": {"split": {"validation": 0.0, "test": 0.0}, "batch_size": 1000},
    "defaults": {
        "encoder": {"kind": "mlp", "hidden": [4], "embedding": 3},
        "prepare": {"scale": False},
        "optimizer": {"name": "sgd", "lr": 0.1},
    },
    "label_holder": {
        "fusion": {"kind": "mlp", "hidden": [4], "combine": "mean"},
        "optimizer": {"name": "sgd", "lr": 0.1},
    },
}


def trained(labels: pd.Series[Any], rows: Any = IDS, **arguments: Any) -> Result:
    ids = [f"{item}.{number}" for number, item in enumerate(rows)]
    blocks = {
        name: block.loc[rows].set_axis(ids) for name, block in (("bank", BANK), ("telco", TELCO))
    }
    given = {"label_holder": "bank", "epochs": 3, "settings": WHOLE, **arguments}
    return colonnade.fit(blocks, labels.loc[rows].set_axis(ids), **given)


@pytest.mark.parametrize("kind", list(TARGETS))
@pytest.mark.parametrize("method", ["splitnn", "fedbcd", "laser", "easter", "standard"])
def test_a_weight_of_two_is_a_row_that_is_there_twice(method: str, kind: str) -> None:
    repeated = [item for item in IDS for _ in range(COUNTED[item])]
    often = trained(TARGETS[kind], repeated, method=method)
    weighed = trained(TARGETS[kind], method=method, sample_weight=COUNTED.to_numpy(), ids=IDS)
    for name, tensor in weights(often._federation).items():
        torch.testing.assert_close(weights(weighed._federation)[name], tensor, msg=name)
    plain = trained(TARGETS[kind], method=method)
    pairs = zip(
        weights(plain._federation).values(), weights(often._federation).values(), strict=True
    )
    assert not all(torch.allclose(one, other) for one, other in pairs)
    # Ten times the weights are the same weights.
    tenfold = trained(TARGETS[kind], method=method, sample_weight=10 * COUNTED.to_numpy(), ids=IDS)
    for name, tensor in weights(weighed._federation).items():
        torch.testing.assert_close(weights(tenfold._federation)[name], tensor, msg=name)


def test_balanced_classes_of_weighted_samples_count_weights() -> None:
    values = np.array(["a", "a", "b"])
    often = Task.fit("binary", np.array(["a", "a", "a", "b", "b"]), class_weights="balanced")
    weighed = Task.fit("binary", values, class_weights="balanced", weights=np.array([1, 2, 2]))
    assert weighed.class_weights == often.class_weights


def test_class_weights_by_name() -> None:
    counted = KIND.map({"low": 1.0, "mid": 1.0, "high": 3.0})
    mean = counted.mean()
    named = {**WHOLE, "label_holder": {**WHOLE["label_holder"], "class_weights": {"high": 3.0}}}
    by_class = trained(KIND, settings=named, sample_weight=None)
    # As given, not brought to a mean of 1: then a learning rate as much larger is the same.
    holder = {**WHOLE["label_holder"], "optimizer": {"name": "sgd", "lr": 0.1 * mean}}
    defaults = {**WHOLE["defaults"], "optimizer": {"name": "sgd", "lr": 0.1 * mean}}
    faster = {**WHOLE, "label_holder": holder, "defaults": defaults}
    by_sample = trained(KIND, settings=faster, sample_weight=counted.to_numpy(), ids=IDS)
    for name, tensor in weights(by_class._federation).items():
        torch.testing.assert_close(weights(by_sample._federation)[name], tensor, msg=name)

    for given, message in (
        ({"hihg": 3.0}, ("class_weights", "no class 'hihg'", "did you mean 'high'?")),
        ({"high": 0.0}, ("class_weights.high", "above 0")),
        ({"high": "3"}, ("label_holder.class_weights.high", "a number")),
        ("balance", ("label_holder.class_weights", "did you mean 'balanced'?")),
    ):
        wrong = {**WHOLE, "label_holder": {**WHOLE["label_holder"], "class_weights": given}}
        with pytest.raises(ConfigError, match=says(*message)):
            trained(KIND, settings=wrong)
    wrong = {**WHOLE, "label_holder": {**WHOLE["label_holder"], "class_weights": {"1": 2.0}}}
    with pytest.raises(ConfigError, match=says("class_weights", "regression has none")):
        trained(SCORE, settings=wrong)


def test_weights_by_id_by_column_and_in_row_order(tmp_path: Path) -> None:
    blocks = {"bank": BANK, "telco": TELCO}
    target = TARGETS["binary"]
    given: dict[str, Any] = {"label_holder": "bank", "epochs": 1}
    shuffled = COUNTED.sample(frac=1, random_state=1)
    by_id = colonnade.fit(blocks, target, sample_weight=shuffled, **given)
    bank = BANK.assign(w=COUNTED, left=target)
    both = {"bank": bank, "telco": TELCO}
    by_name = colonnade.fit(both, "left", sample_weight="w", **given)
    assert_bitwise_equal(weights(by_id._federation), weights(by_name._federation))
    assert "w" not in by_name._blueprint.preparations["bank"].numeric  # type: ignore[union-attr]
    again = Result.load(by_id.save(tmp_path / "model"))
    assert again.evaluate(blocks, target) == by_id.evaluate(blocks, target)

    rows = {"bank": BANK.to_numpy(), "telco": TELCO.to_numpy()}
    colonnade.fit(rows, target.to_numpy(), sample_weight=list(COUNTED), ids="row order", **given)
    for wrong, message in (
        (COUNTED.iloc[:-2], "none for 2 of 40"),
        (-COUNTED, "40 are negative"),
        (COUNTED.astype(str) + "x", "expected numbers"),
        (0 * COUNTED, "all of the training part are 0"),
        ("weight", "no column 'weight'"),
    ):
        with pytest.raises((ConfigError, DataError), match=says(message)):
            colonnade.fit(both, "left", sample_weight=wrong, **given)
    with pytest.raises(DataError, match=says("sample weights: 3 for 40")):
        colonnade.fit(rows, target.to_numpy(), sample_weight=[1, 2, 3], ids="row order", **given)


def files(place: Path) -> dict[str, Any]:
    day = pd.date_range("2024-03-01", periods=COUNT, tz="Europe/Zurich").to_series(index=IDS)
    bank = BANK.assign(left=TARGETS["binary"], w=COUNTED, day=day.sample(frac=1, random_state=2))
    bank.to_csv(place / "bank.csv", index_label="id")
    TELCO.to_csv(place / "telco.csv", index_label="id")
    return {
        "label_holder": {"name": "bank", "label": "left", "sample_weight": "w"},
        "party": {
            name: {"file": str(place / f"{name}.csv"), "id": "id"} for name in ("bank", "telco")
        },
        "data": {"split": {"time": "day", "validation": 0.2, "test": 0.1}},
        "stop": {"epochs": 1},
    }


def test_a_files_weights_and_times_are_no_features(tmp_path: Path) -> None:
    settings = files(tmp_path)
    result = train(parse_spec(settings), directory=tmp_path / "run")
    blueprint = result._blueprint
    assert blueprint.preparations["bank"].numeric == ("age", "pay")  # type: ignore[union-attr]
    assert blueprint.num_samples == {"train": 28, "validation": 8, "test": 4}
    assert blueprint.task.weighted
    # The same numbers from memory, and in another time zone.
    bank = pd.read_csv(tmp_path / "bank.csv", index_col="id", parse_dates=["day"])
    bank["day"] = pd.to_datetime(bank["day"], utc=True)
    split = {"data": settings["data"]}
    again = colonnade.fit(
        {"bank": bank, "telco": TELCO},
        "left",
        label_holder="bank",
        sample_weight="w",
        settings={**split, "stop": {"epochs": 1}},
    )
    assert_bitwise_equal(weights(result._federation), weights(again._federation))
    with pytest.raises(ConfigError, match=says("data.split.time", "named data set")):
        train(parse_spec({"data": {"dataset": "wine", "split": {"time": "year"}}}))


def test_the_latest_samples_are_held_out() -> None:
    times = DRAW.permutation(20).astype(float)
    parts = split_samples(20, SplitSpec(validation=0.25, test=0.2, time="t"), seed=0, times=times)
    assert set(times[parts["test"]]) == {16.0, 17.0, 18.0, 19.0}
    assert set(times[parts["validation"]]) == {11.0, 12.0, 13.0, 14.0, 15.0}
    # Samples of one time stay together.
    days = np.repeat([1.0, 2.0, 3.0, 4.0], 5)
    parts = split_samples(20, SplitSpec(validation=0.3, test=0.1, time="t"), seed=0, times=days)
    assert [sorted(set(days[item])) for item in parts.values()] == [[1.0, 2.0], [3.0], [4.0]]
    with pytest.raises(DataError, match=says("data.split.time", "the train part")):
        split_samples(20, SplitSpec(time="t"), seed=0, times=np.zeros(20))
    blocks = {"bank": BANK.assign(day="soon"), "telco": TELCO}
    split = {"data": {"split": {"time": "day"}}}
    with pytest.raises(DataError, match=says("data.split.time", "neither dates nor numbers")):
        colonnade.fit(blocks, KIND, label_holder="bank", settings=split)
    blocks["bank"] = BANK.assign(day=pd.Timestamp("2024-03-05")).mask(BANK["age"] > 1)
    with pytest.raises(DataError, match=says("data.split.time", "missing values")):
        colonnade.fit(blocks, KIND, label_holder="bank", settings=split)
    with pytest.raises(ConfigError, match=says("data.split.time", "must have a table")):
        colonnade.fit(blocks, KIND, settings=split)


@pytest.mark.parametrize("estimator", [VerticalClassifier, VerticalRegressor])
def test_estimators_take_sample_weights(estimator: Any) -> None:
    table = pd.concat([BANK, TELCO], axis=1)
    target = KIND if estimator is VerticalClassifier else SCORE
    whole = {"defaults": {"prepare": {"scale": False}}}
    given: dict[str, Any] = {"epochs": 3, "batch_size": 1000, "random_state": 0, "settings": whole}
    repeated = [item for item in IDS for _ in range(COUNTED[item])]
    often = estimator(**given).fit(table.loc[repeated], target.loc[repeated])
    weighed = estimator(**given).fit(table, target, sample_weight=COUNTED)
    for name, tensor in weights(often.result_._federation).items():
        torch.testing.assert_close(weights(weighed.result_._federation)[name], tensor, msg=name)
    with pytest.raises(ValueError, match=says("sample_weight", "negative")):
        estimator(**given).fit(table, target, sample_weight=-COUNTED)
