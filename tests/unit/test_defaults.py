"""Plain defaults: as good as scikit-learn's models, and one set of them for every way to train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import colonnade
from colonnade.core.errors import ConfigError
from colonnade.core.loop import LoopState, Stop
from colonnade.core.optimizers import OptimizerSpec
from colonnade.data.datasets import load_dataset
from colonnade.data.splits import SplitSpec, split_samples
from colonnade.estimator import VerticalClassifier
from colonnade.federate.party_policy import PartyPolicy
from colonnade.run.defaults import (
    ENCODER,
    ENCODERS_BY_METHOD,
    FUSION,
    HEADS,
    OPTIMIZER,
    STOP,
    without_validation,
)
from colonnade.run.result import Result
from colonnade.run.spec import as_begun, parse_spec, plain_spec, stored_spec


def settings_of(result: Result) -> dict[str, Any]:
    return plain_spec(result._blueprint.spec)


def tables_of(name: str) -> tuple[dict[str, pd.DataFrame], pd.Series[Any]]:
    loaded = load_dataset(name)
    blocks = {
        party: pd.DataFrame(block.values).set_axis(block.ids, axis=0).rename(columns=str)
        for party, block in loaded.blocks.items()
    }
    return blocks, pd.Series(loaded.labels.values, index=loaded.labels.ids)


@pytest.mark.parametrize(
    ("name", "margin"),
    [("breast_cancer", 0.02), ("wine", 0.03), ("diabetes", 0.05), ("digits", 0.01)],
)
def test_close_to_the_better_of_scikit_learns_models(name: str, margin: float) -> None:
    blocks, labels = tables_of(name)
    holder, classifies = load_dataset(name).label_holder, name != "diabetes"
    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=0.3,
        random_state=1,
        stratify=labels if classifies else None,
    )
    result = colonnade.fit(
        {party: block.iloc[train] for party, block in blocks.items()},
        labels.iloc[train],
        label_holder=holder,
        task=load_dataset(name).task,
        settings={"threads": 1, "data": {"split": {"test": 0.0}}},
    )
    joined = pd.concat([block.add_prefix(party) for party, block in blocks.items()], axis=1)
    measure = accuracy_score if classifies else r2_score
    others = [LogisticRegression(), MLPClassifier((32,), random_state=0, max_iter=400)]
    better = max(
        measure(
            labels.iloc[test],
            make_pipeline(StandardScaler(), model)
            .fit(joined.iloc[train], labels.iloc[train])
            .predict(joined.iloc[test]),
        )
        for model in (others if classifies else [Ridge()])
    )
    own = result.evaluate(
        {party: block.iloc[test] for party, block in blocks.items()}, labels.iloc[test]
    )
    assert own["accuracy" if classifies else "r2"] >= better - margin
    assert result.summary["stopped_by"] in ("patience", "length")


def of_two_parties(rows: Any) -> dict[str, pd.DataFrame]:
    return {
        "bank": pd.DataFrame(rows[:, :2], columns=["a", "b"]),
        "shop": pd.DataFrame(rows[:, 2:], columns=["c", "d"]),
    }


def test_laser_is_no_worse_than_splitnn_where_columns_of_two_parties_act_together() -> None:
    """Linear heads over an average add up what blocks say one by one: R² was 0.43 here."""
    draw = np.random.default_rng(5)
    rows, new = draw.normal(size=(400, 4)), draw.normal(size=(200, 4))

    def labels_of(rows: Any) -> pd.Series[Any]:
        return pd.Series(rows[:, 0] * rows[:, 2] + rows[:, 3])

    found = {
        method: colonnade.fit(
            of_two_parties(rows),
            labels_of(rows),
            method=method,
            label_holder="bank",
            ids="row order",
            settings={"threads": 1, "data": {"split": {"test": 0.0}}},
        ).evaluate(of_two_parties(new), labels_of(new))["r2"]
        for method in ("splitnn", "laser")
    }
    assert found["laser"] >= found["splitnn"] - 0.05, found


@pytest.mark.parametrize(
    ("name", "margin"), [("breast_cancer", 0.01), ("wine", 0.02), ("digits", 0.01)]
)
def test_laser_is_no_worse_than_splitnn_with_all_blocks_there(name: str, margin: float) -> None:
    """At most one or two samples of the test part fewer are right."""
    blocks, labels = tables_of(name)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.3, random_state=1, stratify=labels
    )
    found = {
        method: colonnade.fit(
            {party: block.iloc[train] for party, block in blocks.items()},
            labels.iloc[train],
            method=method,
            label_holder=load_dataset(name).label_holder,
            settings={"threads": 1, "data": {"split": {"test": 0.0}}},
        ).evaluate({party: block.iloc[test] for party, block in blocks.items()}, labels.iloc[test])[
            "accuracy"
        ]
        for method in ("splitnn", "laser")
    }
    assert found["laser"] >= found["splitnn"] - margin, found


def test_lasers_embeddings_may_be_negative_unless_an_encoder_is_given() -> None:
    own = ENCODERS_BY_METHOD["laser"]
    assert own == replace(ENCODER, activate_output=False)
    assert parse_spec({"method": "laser"}).encoder_of("anybody") == own
    assert parse_spec({"method": "splitnn"}).encoder_of("anybody") == ENCODER
    given = {"method": "laser", "defaults": {"encoder": "mlp"}}
    assert parse_spec(given).encoder_of("anybody") == ENCODER
    rows = np.random.default_rng(0).normal(size=(40, 4))
    model = VerticalClassifier(method="laser", embedding=8, epochs=1, random_state=0)
    spec = model.fit(rows, rows[:, 0] > 0).result_._blueprint.spec
    assert spec.defaults.encoder == replace(own, embedding=8)


def test_fit_files_and_estimators_have_one_set() -> None:
    file = parse_spec({})
    blocks, labels = tables_of("wine")
    quick = {"stop": {"epochs": 1}, "data": {"split": {"test": 0.0, "validation": 0.0}}}
    by_fit = colonnade.fit(blocks, labels, label_holder="winery", settings=quick)
    model = VerticalClassifier(random_state=0, epochs=1)
    joined = pd.concat([block.add_prefix(party) for party, block in blocks.items()], axis=1)
    by_estimator = model.fit(joined.to_numpy(), labels.to_numpy()).result_
    for found in (settings_of(by_fit), settings_of(by_estimator)):
        for section, keys in (
            ("defaults", ("encoder", "optimizer")),
            ("label_holder", ("fusion", "optimizer")),
        ):
            for key in keys:
                assert found[section][key] == plain_spec(file)[section][key]
        assert found["data"]["batch_size"] == file.data.batch_size
    assert file.encoder_of("anybody") == ENCODER
    assert file.label_holder.fusion == FUSION


def test_estimators_end_by_patience_too_unless_there_are_too_few_samples() -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(8, 3))
    model = VerticalClassifier(random_state=0).fit(rows, rows[:, 0] > 0)
    stop = settings_of(model.result_)["stop"]
    assert stop["patience"] is None
    assert stop["least_exchanges"] == without_validation(STOP).least_exchanges
    with pytest.raises(ConfigError, match="patience"):
        VerticalClassifier(epochs=2, settings={"stop": {"patience": 3}}).fit(rows, rows[:, 0] > 0)


def test_a_partys_strict_policy_lets_the_default_optimizer_pass() -> None:
    policy = PartyPolicy()
    assert OPTIMIZER.shrinkage <= policy.largest_shrinkage
    assert OPTIMIZER.lr <= policy.largest_lr


class TestStop:
    def test_a_table_without_a_length_changes_single_keys(self) -> None:
        assert parse_spec({"stop": {"patience": 3}}).stop == replace(STOP, patience=3)
        assert parse_spec({"stop": {"epochs": 3}}).stop == Stop(epochs=3)
        assert parse_spec({"stop": {"exchanges": 3}}).stop == Stop(exchanges=3)

    def test_small_tables_have_their_steps(self) -> None:
        stop = Stop(epochs=10, least_exchanges=100, patience=2)
        assert stop.num_exchanges(per_epoch=3) == 100
        assert stop.num_exchanges(per_epoch=30) == 300
        assert replace(stop, exchanges=50).num_exchanges(per_epoch=3) == 50
        assert not stop.is_out_of_patience(LoopState(exchange=99, num_without_best=5))
        assert stop.is_out_of_patience(LoopState(exchange=100, num_without_best=2))


class TestRunsThatBeganBefore:
    def test_what_was_no_key_then_is_as_it_was(self) -> None:
        stored = plain_spec(parse_spec({}))
        del stored["data"]["split"]["stratified"]
        del stored["stop"]["least_exchanges"]
        assert stored_spec(stored).data.split.stratified is False
        assert stored_spec(stored).stop.least_exchanges is None

    def test_earlier_defaults_stay_and_what_was_said_does_too(self) -> None:
        earlier = {
            "data": {"split": {"stratified": False}},
            "defaults": {"optimizer": {"name": "adam", "lr": 1e-3}},
            "label_holder": {"optimizer": {"name": "adam", "lr": 1e-3}},
            "stop": {"epochs": 20},
        }
        begun = parse_spec(earlier)
        assert as_begun(parse_spec({}), begun) == begun
        said = parse_spec({**earlier, "defaults": {"optimizer": {"name": "sgd", "lr": 0.1}}})
        assert as_begun(parse_spec({}), said).defaults.optimizer == OPTIMIZER
        assert as_begun(said, begun).defaults.optimizer == OptimizerSpec(name="sgd", lr=0.1)

    def test_lasers_earlier_defaults_stay_too(self) -> None:
        said = {
            "method": {"name": "laser", "weights": "normalised"},
            "defaults": {"head": {}, "encoder": "mlp"},
        }
        begun = stored_spec(plain_spec(parse_spec(said)))
        assert begun.head_of("anybody").hidden == ()
        today = parse_spec({"method": "laser"})
        assert today.head_of("anybody") == HEADS["laser"] != begun.head_of("anybody")
        assert as_begun(today, begun).method == begun.method
        assert as_begun(today, begun).defaults.head == begun.defaults.head
        assert as_begun(today, begun).defaults.encoder == ENCODER != today.defaults.encoder
        paper = parse_spec({"method": {"name": "laser", "weights": "paper"}})
        assert as_begun(paper, begun).method == paper.method
        without_key = plain_spec(begun)
        del without_key["defaults"]["head"]
        assert stored_spec(without_key).defaults.head == begun.defaults.head

    def test_such_a_run_is_resumed(self, tmp_path: Path) -> None:
        from colonnade.run.engine import train

        wine = {"data": {"dataset": "wine"}, "threads": 1}
        optimizer = {"optimizer": {"name": "adam", "lr": 1e-3}}
        before = {
            **wine,
            "data": {"dataset": "wine", "split": {"stratified": False}},
            "defaults": optimizer,
            "label_holder": optimizer,
        }
        train(parse_spec({**before, "stop": {"exchanges": 3}}), directory=tmp_path / "run")
        longer = {"stop": {"exchanges": 6}}
        resumed = train(parse_spec({**wine, **longer}), directory=tmp_path / "run", resume=True)
        whole = train(parse_spec({**before, **longer}))
        assert resumed.summary["quality"] == whole.summary["quality"]


class TestStratified:
    CLASSES = np.repeat([0, 1, 2, 3], [600, 300, 99, 1])

    @pytest.mark.parametrize("seed", range(5))
    def test_every_part_has_its_share_of_every_class(self, seed: int) -> None:
        parts = split_samples(1000, SplitSpec(), seed=seed, classes=self.CLASSES)
        assert {name: len(own) for name, own in parts.items()} == {
            "train": 700,
            "validation": 150,
            "test": 150,
        }
        assert sorted(np.concatenate(list(parts.values()))) == list(range(1000))
        for own in (parts["validation"], parts["test"]):
            counts = np.bincount(self.CLASSES[own], minlength=4)
            assert np.abs(counts - [90, 45, 15, 0]).max() <= 1
        assert 999 in parts["train"]

    def test_the_test_part_does_not_depend_on_the_validation_share(self) -> None:
        first, other = (
            split_samples(1000, SplitSpec(validation=share), seed=3, classes=self.CLASSES)["test"]
            for share in (0.0, 0.3)
        )
        assert (first == other).all()

    def test_parts_have_their_sizes_where_every_sample_is_a_class(self) -> None:
        parts = split_samples(20, SplitSpec(), seed=0, classes=np.arange(20))
        assert [len(parts[name]) for name in ("train", "validation", "test")] == [14, 3, 3]

    def test_off_is_as_without_classes(self) -> None:
        plain = split_samples(1000, SplitSpec(), seed=1)
        off = split_samples(1000, SplitSpec(stratified=False), seed=1, classes=self.CLASSES)
        assert all((plain[name] == off[name]).all() for name in plain)
