"""From tables to predictions: fit, predict, evaluate, save and load, whatever form data come in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from colonnade import fit
from colonnade.core.errors import ConfigError, DataError, MissingBlock, StorageError
from colonnade.methods import METHODS
from colonnade.run.engine import train
from colonnade.run.result import Result
from colonnade.run.spec import parse_spec
from federations import assert_bitwise_equal, weights
from messages import says

NUM_SAMPLES = 48
SMALL: Mapping[str, Any] = {
    "defaults": {"encoder": {"kind": "mlp", "hidden": [6], "embedding": 4}},
    "label_holder": {"fusion": {"kind": "mlp", "hidden": [5]}},
}


def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    draw = np.random.default_rng(11)
    ids = pd.Index([f"u{number:03d}" for number in draw.permutation(NUM_SAMPLES)], name="id")
    bank = pd.DataFrame(draw.normal(size=(NUM_SAMPLES, 2)), index=ids, columns=["age", "income"])
    telco = pd.DataFrame({"calls": draw.normal(size=NUM_SAMPLES)}, index=ids)
    telco["plan"] = draw.choice(["basic", "gold", "family"], NUM_SAMPLES)
    return bank, telco


BANK, TELCO = tables()
SIGNAL = BANK["age"] + TELCO["calls"]
LABELS = {
    "binary": pd.Series(np.where(SIGNAL > 0, "yes", "no"), index=BANK.index, name="defaulted"),
    "multiclass": pd.Series(np.digitize(SIGNAL, [-0.7, 0.7]) * 10, index=BANK.index, name="tier"),
    "regression": (5000 + 100 * SIGNAL).rename("debt"),
}
BLOCKS = {"bank": BANK, "telco": TELCO}


def quick(blocks: Any = None, labels: Any = None, **arguments: Any) -> Result:
    """A fit of three epochs on small networks."""
    settings = {**SMALL, **arguments.pop("settings", {})}
    arguments = {"label_holder": "bank", "epochs": 3, "batch_size": 16, **arguments}
    return fit(
        BLOCKS if blocks is None else blocks,
        LABELS["binary"] if labels is None else labels,
        settings=settings,
        **arguments,
    )


def weights_of(result: Result) -> dict[str, torch.Tensor]:
    return weights(result._federation)


@pytest.fixture(scope="module", params=LABELS)
def fitted(request: pytest.FixtureRequest) -> Result:
    return quick(labels=LABELS[request.param], epochs=10)


def test_predictions_come_in_the_labels_own_terms(fitted: Result) -> None:
    kind = fitted.summary["task"]
    predicted = fitted.predict(BLOCKS)
    truth = LABELS[kind]
    assert predicted.name == truth.name
    assert list(predicted.index) == list(BANK.index)
    if kind == "regression":
        assert 4000 < predicted.mean() < 6000
        assert abs(predicted.mean() - truth.mean()) < truth.std()
        with pytest.raises(ConfigError, match=says("regression", "predict")):
            fitted.predict_proba(BLOCKS)
        return
    assert set(predicted) <= set(truth)
    assert fitted.classes == tuple(sorted(set(truth)))
    shares = fitted.predict_proba(BLOCKS)
    assert list(shares.columns) == sorted(set(truth))
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (shares.idxmax(axis=1) == predicted).all()


def test_evaluation_agrees_with_the_predictions(fitted: Result) -> None:
    kind = fitted.summary["task"]
    found = fitted.evaluate(BLOCKS, LABELS[kind])
    predicted, truth = fitted.predict(BLOCKS), LABELS[kind]
    if kind == "regression":
        np.testing.assert_allclose(found["rmse"], np.sqrt(((predicted - truth) ** 2).mean()))
    else:
        assert found["accuracy"] == (predicted == truth).mean()
    assert fitted.evaluate() == fitted.evaluate(part="test") == fitted.summary["quality"]["test"]
    assert fitted.evaluate(part="validation") == fitted.summary["quality"]["validation"]
    assert repr(fitted).startswith("Result(splitnn, test ")


def test_saved_and_loaded_it_is_the_same(fitted: Result, tmp_path: Path) -> None:
    root = fitted.save(tmp_path / "model")
    loaded = Result.load(root)
    assert_bitwise_equal(weights_of(loaded), weights_of(fitted))
    pd.testing.assert_series_equal(loaded.predict(BLOCKS), fitted.predict(BLOCKS), check_exact=True)
    truth = LABELS[fitted.summary["task"]]
    assert loaded.evaluate(BLOCKS, truth) == fitted.evaluate(BLOCKS, truth)
    assert (loaded.summary, loaded.classes) == (fitted.summary, fitted.classes)
    with pytest.raises(DataError, match=says("'test'", "blocks", "labels")):
        loaded.evaluate(part="test")
    with pytest.raises(StorageError, match=says(tmp_path / "model", "already")):
        fitted.save(root)
    again = Result.load(loaded.save(tmp_path / "again"))
    assert_bitwise_equal(weights_of(again), weights_of(fitted))


def test_a_run_in_a_directory_is_the_run_in_memory(tmp_path: Path) -> None:
    for settings in ({}, {"stop": {"patience": 1}}):
        place = tmp_path / f"run{len(settings)}"
        kept = quick(epochs=6, out=place, settings=settings)
        assert_bitwise_equal(weights_of(kept), weights_of(quick(epochs=6, settings=settings)))
        assert_bitwise_equal(weights_of(Result.load(place)), weights_of(kept))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_predicts_and_is_saved(method: str, tmp_path: Path) -> None:
    result = quick(method=method)
    loaded = Result.load(result.save(tmp_path / "model"))
    pd.testing.assert_series_equal(loaded.predict(BLOCKS), result.predict(BLOCKS))
    assert result.summary["method"] == method


# The same data in other forms


def shuffled_rows(table: Any, seed: int) -> Any:
    return table.sample(frac=1, random_state=seed)


def as_int(item: Any) -> Any:
    return item.set_axis([int(text[1:]) for text in item.index])


def as_text(item: Any) -> Any:
    return item.set_axis([str(int(text[1:])) for text in item.index])


@pytest.mark.parametrize(
    "other",
    [
        lambda: ({"telco": TELCO, "bank": BANK}, LABELS["binary"]),
        lambda: (
            {"bank": shuffled_rows(BANK, 1), "telco": shuffled_rows(TELCO, 2)},
            shuffled_rows(LABELS["binary"], 3),
        ),
        lambda: (
            {"bank": pd.concat([BANK, BANK.set_axis(BANK.index + "x")]), "telco": TELCO},
            LABELS["binary"],
        ),
        lambda: ({"bank": BANK.astype(object).convert_dtypes(), "telco": TELCO}, LABELS["binary"]),
    ],
    ids=["parties", "rows", "strangers", "dtypes"],
)
def test_the_same_data_in_another_order(other: Any) -> None:
    blocks, labels = other()
    assert_bitwise_equal(weights_of(quick(blocks, labels)), weights_of(quick()))


TURNED = {"bank": BANK[["income", "age"]], "telco": TELCO[["plan", "calls"]]}


def test_the_order_of_columns_does_not_change_predictions() -> None:
    """Files of the same party may list their columns in any order."""
    result = quick()
    pd.testing.assert_series_equal(result.predict(TURNED), result.predict(BLOCKS))


def test_the_order_of_columns_does_not_change_weights() -> None:
    assert_bitwise_equal(weights_of(quick(TURNED)), weights_of(quick()))


def test_ids_as_numbers_here_and_text_there() -> None:
    labels = LABELS["binary"]
    first = quick({"bank": as_int(BANK), "telco": as_text(TELCO)}, as_int(labels))
    second = quick({"bank": as_text(BANK), "telco": as_int(TELCO)}, as_text(labels))
    assert_bitwise_equal(weights_of(first), weights_of(second))
    mixed = first.predict({"bank": as_text(BANK), "telco": as_int(TELCO)})
    assert list(mixed.index) == list(as_text(BANK).index)
    assert first.evaluate({"bank": as_int(BANK), "telco": as_text(TELCO)}, as_int(labels))


def test_ids_in_a_column_or_beside_arrays() -> None:
    indexed = quick()
    columned = quick({name: item.reset_index() for name, item in BLOCKS.items()}, id_column="id")
    assert_bitwise_equal(weights_of(columned), weights_of(indexed))
    numeric = {"bank": BANK.to_numpy(), "telco": TELCO[["calls"]].to_numpy()}
    arrays = quick(numeric, LABELS["binary"].to_numpy(), ids=BANK.index)
    frames = quick({"bank": BANK, "telco": TELCO[["calls"]]})
    assert_bitwise_equal(weights_of(arrays), weights_of(frames))
    with pytest.raises(DataError, match=says("labels", "ids=")):
        quick(BLOCKS, LABELS["binary"].to_numpy())


def from_files(directory: Path, ending: str, **extra: Any) -> Result:
    files = {"bank": BANK.join(LABELS["binary"]), "telco": TELCO}
    for name, table in files.items():
        path = directory / f"{name}.{ending}"
        if ending == "parquet":
            table.reset_index().to_parquet(path)
        else:
            table.to_csv(path)
    party = {name: {"file": str(directory / f"{name}.{ending}"), "id": "id"} for name in files}
    holder = {**SMALL["label_holder"], "name": "bank", "label": "defaulted", **extra}
    plan = {**SMALL, "party": party, "label_holder": holder, "data": {"batch_size": 16}}
    return train(parse_spec({**plan, "stop": {"epochs": 3}}))


def test_csv_and_parquet_and_tables_give_the_same_weights(tmp_path: Path) -> None:
    expected = weights_of(quick())
    for ending in ("csv", "csv.gz", "parquet"):
        assert_bitwise_equal(weights_of(from_files(tmp_path, ending)), expected)


# Who holds the labels


def test_a_label_holder_without_a_block() -> None:
    apart, beside = quick(label_holder="registry"), quick(label_holder="bank")
    assert_bitwise_equal(weights_of(apart), weights_of(beside))
    assert apart.summary["label_holder"] == "registry"
    assert apart.parties == ("bank", "telco")
    assert apart.summary["bytes_up"]["bank"] == apart.summary["bytes_up"]["telco"] > 0
    assert beside.summary["bytes_up"]["bank"] == 0


def test_alone() -> None:
    own = quick(method="alone")
    assert own.parties == ("bank",)
    assert_bitwise_equal(weights_of(own), weights_of(quick({"bank": BANK})))
    other = quick(method={"name": "alone", "who": "telco"})
    assert other.parties == ("telco",)
    assert other.predict({"telco": TELCO}).index.equals(TELCO.index)
    with pytest.raises(ConfigError, match=says("method.who", "'shop'", ["bank", "telco"])):
        quick(method={"name": "alone", "who": "shop"})
    with pytest.raises(ConfigError, match=says("method.who", "'registry'", ["bank", "telco"])):
        quick(method="alone", label_holder="registry")


def test_centralized_is_as_wide_as_all_together() -> None:
    settings = {
        "party": {
            "bank": {"encoder": {"kind": "mlp", "hidden": [6], "embedding": 4}},
            "telco": {"encoder": {"kind": "mlp", "hidden": [3], "embedding": 5}},
        }
    }
    for holder in ("bank", "registry"):
        result = quick(method="centralized", settings=settings, label_holder=holder)
        shapes = {name: tuple(item.shape) for name, item in weights_of(result).items()}
        assert shapes[f"{holder}.encoder.hidden0.weight"] == (6 + 3, 2 + 1 + 3)
        assert shapes[f"{holder}.encoder.output.weight"] == (4 + 5, 6 + 3)
        assert result.parties == ("bank", "telco")
        assert sum(result.summary["bytes_up"].values()) == 0
    uneven = {"party": {"bank": {"encoder": {"kind": "mlp", "hidden": [6, 6]}}}}
    with pytest.raises(ConfigError, match=says("method.name", "'centralized'", "mlp")):
        quick(method="centralized", settings=uneven)


def test_centralized_does_not_take_codes_for_numbers() -> None:
    """An embedding's codes have no order: level 3 is not three times level 1."""
    embedding = {"defaults": {**SMALL["defaults"], "prepare": {"categorical": "embedding"}}}
    try:
        result = quick(method="centralized", settings=embedding)
    except ConfigError:
        return
    assert any(".tables." in name for name in weights_of(result))


# Prediction for new samples


@pytest.mark.parametrize("categorical", ["one_hot", "embedding"])
def test_levels_never_seen_in_training(categorical: str, tmp_path: Path) -> None:
    settings = {"party": {"telco": {"prepare": {"categorical": categorical}}}}
    result = quick(settings=settings)
    new = {"bank": BANK.iloc[:3], "telco": TELCO.iloc[:3].assign(plan=["platinum", "", "gold"])}
    loaded = Result.load(result.save(tmp_path / "model"))
    shares = loaded.predict_proba(new)
    assert np.isfinite(shares.to_numpy()).all()
    pd.testing.assert_frame_equal(shares, result.predict_proba(new), check_exact=True)
    seen = result.predict_proba(BLOCKS).loc[shares.index]
    np.testing.assert_allclose(shares.iloc[2], seen.iloc[2], rtol=1e-6)
    assert abs(shares.iloc[0, 0] - seen.iloc[0, 0]) > 1e-6


def test_missing_blocks_and_samples_are_counted_not_named() -> None:
    result = quick()
    with pytest.raises(MissingBlock, match=says(["telco"], "'splitnn'", ["bank", "telco"])):
        result.predict({"bank": BANK})
    with pytest.raises(MissingBlock) as caught:
        result.predict({"bank": BANK.iloc[:40], "telco": TELCO.iloc[5:]})
    message = str(caught.value)
    assert "of 48 samples" in message
    assert "'bank' lacks 8" in message
    assert "'telco' lacks 5" in message
    assert "leave those samples out" in message
    assert "u0" not in message
    extra = result.predict({**BLOCKS, "shop": BANK})
    pd.testing.assert_series_equal(extra, result.predict(BLOCKS))


def test_predictions_follow_the_first_block_whatever_the_order_of_the_others() -> None:
    result = quick()
    expected = result.predict_proba(BLOCKS)
    turned = result.predict_proba({"bank": BANK[::-1], "telco": shuffled_rows(TELCO, 4)})
    assert list(turned.index) == list(BANK.index[::-1])
    np.testing.assert_allclose(turned.loc[expected.index], expected, rtol=1e-5)


def test_predicting_leaves_no_trace() -> None:
    result = quick()
    before = weights_of(result)
    first = result.predict_proba(BLOCKS)
    result.evaluate()
    pd.testing.assert_frame_equal(result.predict_proba(BLOCKS), first, check_exact=True)
    assert_bitwise_equal(weights_of(result), before)
    assert result.evaluate() == result.summary["quality"]["test"]


def test_evaluation_needs_fitting_labels() -> None:
    result = quick()
    truth = LABELS["binary"]
    with pytest.raises(ConfigError, match=says("labels", "evaluation")):
        result.evaluate(BLOCKS)
    with pytest.raises(DataError, match=says("labels", "8 of 48")):
        result.evaluate(BLOCKS, truth.iloc[:40])
    with pytest.raises(DataError, match=says("labels", "48 duplicate")):
        result.evaluate(BLOCKS, pd.concat([truth, truth]))
    with pytest.raises(DataError, match=says("1 class", ["maybe"])):
        result.evaluate(BLOCKS, truth.where(truth == "yes", "maybe"))
    with pytest.raises(DataError, match=says("'tset'", ["test", "train", "validation"])):
        result.evaluate(part="tset")


def test_a_result_with_a_metric_that_is_no_number_is_saved(tmp_path: Path) -> None:
    """One held-out sample has no r2."""
    single = {"data": {"split": {"test": 0.02}, "batch_size": 16}}
    result = quick(labels=LABELS["regression"], settings=single, batch_size=None)
    assert result.summary["num_samples"]["test"] == 1
    loaded = Result.load(result.save(tmp_path / "model"))
    assert loaded.summary["quality"]["test"]["r2"] is None
    assert repr(loaded)


def test_settings_that_the_call_itself_gives() -> None:
    for key, value in (("method", "splitnn"), ("seed", 3)):
        with pytest.raises(ConfigError, match=says(f"settings.{key}", f"{key}=")):
            quick(settings={key: value})


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"party": {"bank": {"columns": ["age"]}}}, "columns"),
        ({"party": {"bank": {"file": "bank.csv", "id": "id"}}}, "file"),
        ({"data": {"dataset": "breast_cancer"}}, "dataset"),
        ({"label_holder": {"name": "telco"}}, "label_holder.name"),
    ],
    ids=str,
)
def test_settings_that_blocks_in_memory_contradict(settings: dict[str, Any], key: str) -> None:
    """Never ignored in silence: refused, or for columns followed."""
    refusal = ""
    try:
        result = quick(settings=settings)
    except ConfigError as error:
        refusal = str(error)
    if refusal:
        assert key in refusal
    else:
        assert key == "columns"
        assert weights_of(result)["bank.encoder.hidden0.weight"].shape == (6, 1)
