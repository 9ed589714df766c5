"""The scikit-learn face: scikit-learn's own checks, its tools, columns and parties, every error."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from colonnade.core.errors import ColonnadeError, ConfigError, DataError, Diverged
from colonnade.estimator import VerticalClassifier, VerticalRegressor
from colonnade.methods import METHODS
from colonnade.run.result import Result
from messages import says

DOCS = Path(__file__).parents[2] / "docs" / "estimators.md"

# Checks of scikit-learn that can't hold, by estimator and name, each with its reason.
_SCALED = (
    "every party scales its columns by itself, and no party knows the label holder's weights; with "
    "`prepare.scale = false` it holds (`test_sample_weights.py`)"
)
_LEAKS = "its table has a column that is the label in another coding, which is refused"
_OF_WEIGHTS = {
    "check_sample_weight_equivalence_on_dense_data": _SCALED,
    "check_sample_weights_shape": _LEAKS,
    "check_sample_weights_not_overwritten": _LEAKS,
}
EXEMPTED: dict[str, dict[str, str]] = {
    "VerticalClassifier": _OF_WEIGHTS,
    "VerticalRegressor": _OF_WEIGHTS,
}

FAST: dict[str, Any] = {"epochs": 2, "hidden": (4,), "embedding": 2, "random_state": 0}


@parametrize_with_checks(
    [VerticalClassifier(epochs=20, batch_size=32), VerticalRegressor(epochs=20, batch_size=32)],
    expected_failed_checks=lambda estimator: EXEMPTED[type(estimator).__name__],
)
def test_keeps_scikit_learns_rules(
    estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One of the checks skips itself unless this is set.
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    check(estimator)


def test_documents_exactly_the_exempted_checks() -> None:
    rows = re.findall(
        r"^\| `(Vertical\w+)` \| `(check_\w+)` \| (.+) \|$", DOCS.read_text(), re.MULTILINE
    )
    documented: dict[str, dict[str, str]] = {"VerticalClassifier": {}, "VerticalRegressor": {}}
    for estimator, check, reason in rows:
        documented[estimator][check] = reason
    assert documented == EXEMPTED


def test_documented_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)


def test_documented_signature_is_the_real_one() -> None:
    rows = re.findall(r"^\| `([a-z]\w*)` \| `([^`]+)` \|", DOCS.read_text(), re.MULTILINE)
    documented = {name: ast.literal_eval(default) for name, default in rows}
    for estimator in (VerticalClassifier(), VerticalRegressor()):
        assert documented == estimator.get_params()


# scikit-learn's tools


def test_pipeline_on_breast_cancer() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    model = make_pipeline(StandardScaler(), VerticalClassifier(epochs=10, random_state=0))
    assert model.fit(X_train, y_train).score(X_test, y_test) > 0.93


def test_multiclass_on_digits() -> None:
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    model = VerticalClassifier(epochs=15, random_state=0).fit(X_train, y_train)
    assert model.score(X_test, y_test) > 0.93
    probabilities = model.predict_proba(X_test)
    assert probabilities.shape == (len(X_test), 10)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


def test_regression_on_diabetes() -> None:
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    assert cross_val_score(VerticalRegressor(random_state=0), X, y, cv=5).mean() > 0.35


def test_grid_search_over_numpy_values() -> None:
    X, y = load_iris(return_X_y=True)
    grid = {
        "learning_rate": np.array([1e-5, 1e-2], dtype=np.float32),
        "epochs": np.array([5]),
        "embedding": [np.int64(8)],
    }
    search = GridSearchCV(VerticalClassifier(random_state=0), grid, cv=3).fit(X, y)
    assert search.best_params_["learning_rate"] == np.float32(1e-2)
    assert search.best_estimator_.n_iter_ == 5


def test_cross_validation_with_text_labels_and_auc() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = VerticalClassifier(epochs=60, batch_size=32, random_state=0)
    assert cross_val_score(model, X, names, cv=3).mean() > 0.9
    assert cross_val_score(model, X[y > 0], names[y > 0], cv=3, scoring="roc_auc").mean() > 0.9


# Columns and parties


@pytest.fixture
def people() -> tuple[pd.DataFrame, pd.Series]:
    """A table in which only the region, text, decides the label."""
    generator = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": generator.integers(18, 90, 120),
            "income": generator.normal(30, 5, 120),
            "region": generator.choice(["north", "south", "west"], 120),
            "member": generator.choice([True, False], 120),
            "plan": pd.Categorical(generator.choice([10, 20], 120)),
        },
        index=generator.permutation(120),
    )
    return table, (table["region"] == "south").map({True: "yes", False: "no"}).rename("age")


def test_categorical_columns_and_explicit_parties(people: tuple[pd.DataFrame, pd.Series]) -> None:
    table, y = people
    parties = {"bank": ["income", "age"], "telco": ["region", 4, "member"]}
    model = VerticalClassifier(parties=parties, label_holder="bank", random_state=0)
    model.fit(table, y)
    assert model.score(table, y) == 1.0
    assert model.parties_ == {"bank": ["income", "age"], "telco": ["region", "plan", "member"]}
    assert model.feature_names_in_.tolist() == list(table.columns)
    assert model.n_features_in_ == 5
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.result_.parties == ("bank", "telco")
    assert model.result_.summary["label_holder"] == "bank"
    assert model.result_.summary["bytes_up"]["bank"] == 0


def test_levels_are_known_again_whatever_else_the_table_holds(
    people: tuple[pd.DataFrame, pd.Series],
) -> None:
    table, _ = people
    codes = table["region"].map({"north": 1, "south": 2, "west": 3})
    as_levels = pd.DataFrame({"code": codes.astype("category"), "age": table["age"]})
    as_numbers = pd.DataFrame({"code": codes, "age": table["age"]})
    model = VerticalClassifier(**FAST).fit(as_levels, codes == 2)
    np.testing.assert_array_equal(model.predict_proba(as_numbers), model.predict_proba(as_levels))


def test_unknown_level_is_predicted_for(people: tuple[pd.DataFrame, pd.Series]) -> None:
    table, y = people
    model = VerticalClassifier(**FAST).fit(table, y)
    assert model.predict(table.head(3).assign(region="east")).shape == (3,)


def test_columns_by_position_in_an_array_and_in_a_table_without_names() -> None:
    X, y = load_iris(return_X_y=True)
    parties = {"a": [0, np.int64(3)], "b": np.array([2, 1])}
    model = VerticalClassifier(parties=parties, **FAST).fit(X, y)
    assert model.parties_ == {"a": ["x0", "x3"], "b": ["x2", "x1"]}
    same = clone(model).fit(pd.DataFrame(X), y)
    np.testing.assert_array_equal(model.predict_proba(X), same.predict_proba(X))


def test_columns_are_split_between_two_parties_unless_told() -> None:
    X, y = load_iris(return_X_y=True)
    assert VerticalClassifier(**FAST).fit(X[:, :3], y).parties_ == {
        "party_1": ["x0", "x1"],
        "party_2": ["x2"],
    }
    assert VerticalClassifier(**FAST).fit(X[:, :1], y).parties_ == {"party_1": ["x0"]}


def test_a_column_may_have_the_labels_default_name() -> None:
    X, y = load_iris(return_X_y=True)
    table = pd.DataFrame(X, columns=["label", "label_", "c", "d"])
    assert VerticalClassifier(**FAST).fit(table, y).predict(table).shape == (150,)


def test_constant_columns_are_kept() -> None:
    X, y = load_iris(return_X_y=True)
    X = np.column_stack([np.full(150, 1.1), X, np.zeros(150)])
    model = VerticalClassifier(random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9
    X[:, 0] = 1.2  # constant in training, so its scale is unknown: it must not explode
    assert np.abs(model.decision_function(X)).max() < 1e3


def test_missing_values_where_a_party_fills_them() -> None:
    X, y = load_iris(return_X_y=True)
    X[3, 0] = np.nan
    filling = {"prepare": {"missing": "mean"}}
    model = VerticalClassifier(settings={"defaults": filling}, **FAST)
    assert model.fit(X, y).predict(X).shape == (150,)
    assert model.__sklearn_tags__().input_tags.allow_nan
    VerticalClassifier(settings={"party": {"party_1": filling}}, **FAST).fit(X, y)
    with pytest.raises(
        DataError, match=says("'party_1'", "'x0'", "1 missing", 'prepare.missing = "mean"')
    ):
        VerticalClassifier(settings={"party": {"party_2": filling}}, **FAST).fit(X, y)
    with pytest.raises(DataError, match=says("'x0'", "1 missing", 'prepare.missing = "mean"')):
        VerticalClassifier(**FAST).fit(pd.DataFrame(X), y)


# Methods, settings, randomness


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_and_can_be_copied(method: str) -> None:
    X, y = load_iris(return_X_y=True)
    model = VerticalClassifier(method=method, label_holder="party_1", random_state=0).fit(X, y)
    assert model.score(X, y) > 0.75  # alone, party_1 has only the sepals
    np.testing.assert_array_equal(copy.deepcopy(model).predict_proba(X), model.predict_proba(X))


def test_a_method_with_settings_of_its_own() -> None:
    X, y = load_iris(return_X_y=True)
    model = VerticalClassifier(method={"name": "alone", "who": "party_2"}, random_state=0)
    assert model.fit(X, y).score(X, y) > 0.9  # the petals tell more
    assert model.result_.parties == ("party_2",)


def test_parameters_and_settings_reach_the_run() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = VerticalRegressor(
        hidden=[5, 4],
        embedding=3,
        fusion={"kind": "mlp", "hidden": (7,)},
        combine="mean",
        optimizer={"name": "sgd", "options": {"momentum": 0.5}},
        learning_rate=0.01,
        epochs=1,
        batch_size=200,
        dtype="float32",
        random_state=11,
        settings={
            "fabric": "simulated",
            "label_holder": {"loss": "huber"},
            "party": {"party_2": {"encoder": {"kind": "linear", "embedding": 3}}},
        },
    ).fit(X, y)
    summary = model.result_.summary
    assert (summary["fabric"], summary["seed"], summary["exchanges"]) == ("simulated", 11, 3)
    assert summary["num_samples"] == {"train": 442}
    # The mean of embeddings of three numbers, four bytes each.
    assert summary["bytes_up"] == {"party_1": 442 * 12, "party_2": 442 * 12}


def test_patience_ends_training_at_its_best() -> None:
    X, y = load_iris(return_X_y=True)
    model = VerticalClassifier(
        epochs=200, patience=3, validation_fraction=0.2, learning_rate=0.05, random_state=0
    ).fit(X, y)
    assert model.n_iter_ < 200
    assert model.result_.summary["stopped_by"] == "patience"
    assert model.result_.summary["num_samples"] == {"train": 120, "validation": 30}
    assert model.score(X, y) > 0.9


def test_randomness_comes_from_random_state_alone() -> None:
    X, y = load_iris(return_X_y=True)
    fast = {key: value for key, value in FAST.items() if key != "random_state"}

    def outputs(random_state: Any) -> Any:
        model = VerticalClassifier(**fast, random_state=random_state)
        return model.fit(X, y).decision_function(X)

    np.testing.assert_array_equal(outputs(5), outputs(np.int64(5)))
    assert not np.array_equal(outputs(5), outputs(6))
    generator = np.random.RandomState(0)
    assert not np.array_equal(outputs(generator), outputs(generator))
    before = np.random.get_state()
    first, second = outputs(None), outputs(None)
    assert not np.array_equal(first, second)
    np.random.set_state(before)
    np.testing.assert_array_equal(outputs(None), first)


def test_copies_predict_alike_and_leave_the_data_behind(tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    model = VerticalClassifier(**FAST).fit(X, y)
    expected = model.predict_proba(X)
    written = pickle.dumps(model)
    for other in (pickle.loads(written), copy.deepcopy(model)):  # noqa: S301 - written just now
        np.testing.assert_array_equal(other.predict_proba(X), expected)
        with pytest.raises(DataError, match=says("'train'", "blocks", "labels")):
            other.result_.evaluate(part="train")
    blocks = {
        party: pd.DataFrame(X[:, positions], columns=model.parties_[party])
        for party, positions in (("party_1", [0, 1]), ("party_2", [2, 3]))
    }
    loaded = Result.load(model.result_.save(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict_proba(blocks).to_numpy(), expected)
    outputs = loaded.outputs(blocks)
    assert outputs.index.tolist() == list(range(150))
    np.testing.assert_array_equal(outputs.to_numpy(), model.decision_function(X))


# What is refused

NAMED = pd.DataFrame(
    {"age": [1.0, 2.0, 3.0, 4.0], "income": [4.0, 3.0, 1.0, 2.0], "region": list("aabb")}
)
TARGET = np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("parties", "message"),
    [
        ({"a": ["age", "incom"], "b": ["region"]}, says("parties.a", "'incom'", "'income'")),
        ({"a": ["age", 3], "b": ["region"]}, says("parties.a", "position 3")),
        ({"a": ["age", -1], "b": ["region"]}, says("parties.a", "position -1")),
        ({"a": ["age", True], "b": ["region"]}, says("parties.a", "position", True)),
        ({"a": ["age", 1.0], "b": ["region"]}, says("parties.a", "position", 1.0)),
        ({"a": ["age", "income"], "b": ["region", 0]}, says("parties", "'age'", "a and b")),
        ({"a": ["age", "age"], "b": ["region", 1]}, says("parties", "'age'", "a and a")),
        ({"a": ["age"], "b": []}, says("parties.b", "columns")),
        ({"a": ["age"]}, says("parties", ["income", "region"])),
        ({"a": "age"}, says("parties.a", "list", "'age'")),
        ({"a": 1}, says("parties.a", "list", 1)),
        ({1: ["age"]}, says("parties", "name", 1)),
        ({"": ["age"]}, says("parties", "name", "''")),
        ({}, says("parties", "mapping", {})),
        ([["age"], ["income"]], says("parties", "mapping", [["age"], ["income"]])),
    ],
)
def test_refuses_columns_that_do_not_fit(parties: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VerticalClassifier(parties=parties, **FAST).fit(NAMED, TARGET)


def test_refuses_names_where_the_table_has_none() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ConfigError, match=says("parties.a", "'age'", "position")):
        VerticalClassifier(parties={"a": ["age"]}, **FAST).fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"method": "splitn"}, says("method.name", "'splitn'", "'splitnn'")),
        ({"method": "alone"}, says("method.who", "'label_holder'", "block")),
        ({"hidden": 5}, says("defaults.encoder.hidden", "list", 5)),
        ({"hidden": (0,)}, "hidden"),
        ({"embedding": 0}, "embedding"),
        ({"fusion": "mlpp"}, says("label_holder.fusion.kind", "'mlpp'", "'mlp'")),
        ({"fusion": 3}, says("fusion", "'kind'", 3)),
        ({"fusion": {"kind": "mlp", "combine": "mean"}}, says("fusion.combine", "combine=")),
        ({"combine": "sum"}, "combine"),
        ({"optimizer": "adamm"}, says("optimizer.name", "'adamm'", "'adam'")),
        ({"optimizer": {"name": "adam", "lr": 1.0}}, says("optimizer.lr", "learning_rate=")),
        ({"learning_rate": 0}, says("learning_rate", "above 0", "got 0")),
        ({"learning_rate": np.nan}, says("learning_rate", "above 0", "nan")),
        ({"learning_rate": "fast"}, says("learning_rate", "above 0", "'fast'")),
        ({"epochs": 0}, says("stop.epochs", 1, 0)),
        ({"epochs": "many"}, "epochs"),
        ({"batch_size": 0}, says("data.batch_size", 1, 0)),
        ({"batch_size": 8.5}, says("data.batch_size", "whole", 8.5)),
        ({"patience": 0, "validation_fraction": 0.5}, says("stop.patience", 1, 0)),
        ({"patience": 2, "validation_fraction": 1}, says("validation_fraction", "got 1")),
        ({"patience": 2, "validation_fraction": "a"}, says("validation_fraction", "'a'")),
        ({"dtype": "float16"}, says("dtype", "'float16'")),
        ({"label_holder": 3}, says("label_holder", None, 3)),
        ({"settings": [1]}, says("settings", "mapping", [1])),
        ({"settings": {"stop": 3}}, says("settings.stop", "table", 3)),
        ({"settings": {"stopp": {}}}, says("stopp", "'stop'")),
        ({"settings": {"defaults": {"encoders": {}}}}, says("defaults.encoders", "'encoder'")),
        ({"settings": {"stop": {"target": 0.9}}}, says("settings.stop.target", "patience")),
        (
            {"settings": {"party": {"party_3": {}}}},
            says("party.party_3", "'party_2'", "party_1, party_2"),
        ),
        ({"settings": {"party": {"party_1": 3}}}, says("party.party_1", "table", 3)),
    ],
)
def test_refuses_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VerticalClassifier(**{**FAST, **parameters}).fit(NAMED, TARGET)


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("method", ("method",)),
        ("dtype", ("dtype",)),
        ("seed", ("random_state",)),
        ("data.batch_size", ("batch_size",)),
        ("data.split", ("validation_fraction",)),
        ("stop.epochs", ("epochs",)),
        ("stop.patience", ("patience",)),
        ("defaults.encoder", ("hidden", "embedding")),
        ("defaults.optimizer", ("optimizer", "learning_rate")),
        ("label_holder.name", ("label_holder",)),
        ("label_holder.fusion", ("fusion", "combine")),
        ("label_holder.optimizer", ("optimizer", "learning_rate")),
        ("data.dataset", ("X and y",)),
        ("data.num_parties", ("X and y",)),
        ("label_holder.file", ("X and y",)),
        ("label_holder.id", ("X and y",)),
        ("label_holder.label", ("X and y",)),
        ("label_holder.task", ("X and y",)),
        ("party.party_1.file", ("X and y",)),
        ("party.party_1.id", ("X and y",)),
        ("party.party_1.columns", ("X and y",)),
    ],
)
def test_refuses_settings_that_are_said_elsewhere(path: str, remedy: str) -> None:
    settings: Any = "anything"
    for key in reversed(path.split(".")):
        settings = {key: settings}
    with pytest.raises(ConfigError, match=says(f"settings.{path}", *remedy)):
        VerticalClassifier(settings=settings, **FAST).fit(NAMED, TARGET)


@pytest.mark.parametrize(
    ("table", "target", "message"),
    [
        (NAMED, [1, 1, 1, 1], says("y", "1 class", "two")),
        (NAMED, ["a", None, "b", "a"], says("y", "1 of 4", "row 1")),
        (NAMED.head(0), [], says("X", "rows")),
        (NAMED.set_axis(["a", "a", "b"], axis=1), TARGET, says("X", ["a"])),
        (NAMED.assign(age=np.inf), TARGET, says("'party_1'", "'age'", "4 infinite")),
        (NAMED.assign(region=None), TARGET, says("'party_2'", "'region'", "4 missing")),
    ],
)
def test_refuses_data(table: pd.DataFrame, target: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        VerticalClassifier(**FAST).fit(table, target)


def test_refuses_too_few_samples_for_patience() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(DataError, match=says("validation_fraction", 0.005, 150, "patience")):
        VerticalClassifier(patience=1, validation_fraction=0.005, **FAST).fit(X, y)
    # Of every class, however rare, some samples train.
    model = VerticalClassifier(patience=1, validation_fraction=0.6, **FAST)
    assert len(model.fit(X, np.arange(150) // 3).classes_) == 50


def test_refuses_other_columns_at_prediction(people: tuple[pd.DataFrame, pd.Series]) -> None:
    table, y = people
    model = VerticalClassifier(**FAST).fit(table, y)
    with pytest.raises(ValueError, match=says("missing", "age")):
        model.predict(table.drop(columns="age"))
    with pytest.raises(DataError, match=says("'age'", "numeric")):
        model.predict(table.assign(age="old"))
    with pytest.raises(ValueError, match=says("'north'", "float")):
        VerticalClassifier(**FAST).fit(table.to_numpy(), y)


def test_refuses_a_column_that_is_the_label() -> None:
    table = NAMED.assign(copy=TARGET)
    parties = {"bank": ["age", "copy"], "telco": ["income", "region"]}
    with pytest.raises(DataError, match=says("'bank'", "'copy'", "'label'")):
        VerticalClassifier(parties=parties, label_holder="bank", **FAST).fit(table, TARGET)


def test_says_when_training_diverges() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = VerticalRegressor(optimizer="sgd", learning_rate=1e6, random_state=0)
    with pytest.raises(Diverged, match=says("'label_holder'", "gradient", "learning rate")):
        model.fit(X, y)


def test_every_refusal_is_a_colonnade_error_and_a_value_error() -> None:
    with pytest.raises(ValueError) as caught:
        VerticalClassifier(parties={"a": ["age"]}, **FAST).fit(NAMED, TARGET)
    assert isinstance(caught.value, ColonnadeError)


class TestEncodersOfOnesOwn:
    def test_a_function_makes_every_partys_network(self) -> None:
        rows = np.random.default_rng(0).normal(size=(40, 4))
        target = rows[:, 0] > 0
        seen: list[tuple[Any, int]] = []

        def linear(columns: int, width: int) -> nn.Module:
            seen.append((columns, width))
            return nn.Linear(columns, width)

        model = VerticalClassifier(encoder=linear, embedding=3, epochs=1, random_state=0)
        model.fit(rows, target)
        assert set(seen) == {(2, 3)}
        assert isinstance(model.result_.modules["party_1"].get_submodule("encoder"), nn.Linear)
        assert clone(model).fit(rows, target).predict(rows).shape == (40,)

    def test_what_does_not_fit_is_said(self) -> None:
        rows = np.random.default_rng(0).normal(size=(40, 4))
        target = rows[:, 0] > 0
        with pytest.raises(ConfigError, match=says("encoder", "hidden")):
            VerticalClassifier(encoder=nn.Linear, hidden=[4]).fit(rows, target)
        with pytest.raises(ConfigError, match=says("encoder: no party 'bank'")):
            VerticalClassifier(encoder={"bank": nn.Linear}).fit(rows, target)
