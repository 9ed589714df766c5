"""A last training on all rows: as long as the first found best, and told apart from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import colonnade
from colonnade.core.errors import ConfigError, StorageError
from colonnade.core.federation import Event, Federation
from colonnade.estimator import VerticalClassifier
from colonnade.federate.remote_run import RemoteRun
from colonnade.report import write_report
from colonnade.run.defaults import LEAST, STOP
from colonnade.run.engine import reopen, train
from colonnade.run.refit import refits
from colonnade.run.result import Result
from colonnade.run.spec import parse_spec

SHORT = {"epochs": 4, "patience": 2, "refit": True}
WINE = {"data": {"dataset": "wine"}, "threads": 1, "stop": SHORT}


def tables(num_rows: int = 80) -> tuple[dict[str, pd.DataFrame], pd.Series[Any]]:
    draw = np.random.default_rng(0)
    values = draw.normal(size=(num_rows, 4))
    ids = [f"p{number}" for number in range(num_rows)]
    blocks = {
        "bank": pd.DataFrame(values[:, :2], index=ids, columns=["a", "b"]),
        "shop": pd.DataFrame(values[:, 2:], index=ids, columns=["c", "d"]),
    }
    return blocks, pd.Series(np.where(values.sum(1) > 0, "yes", "no"), index=ids)


def fitted(settings: dict[str, Any] | None = None, **given: Any) -> Result:
    blocks, labels = tables()
    settings = {"threads": 1, "stop": SHORT, **(settings or {})}
    return colonnade.fit(blocks, labels, label_holder="bank", settings=settings, **given)


def weights(result: Result) -> dict[str, torch.Tensor]:
    return {
        f"{owner}.{name}": value
        for owner, module in result.modules.items()
        for name, value in module.state_dict().items()
    }


class Interrupts:
    """Stops a run at its so-many-th exchange, counted over both trainings."""

    def __init__(self, after: int) -> None:
        self._left = after

    def began(self, federation: Federation, done: int, total: int) -> None:
        pass

    def exchanged(self, event: Event) -> None:
        self._left -= 1

    def wants_to_stop(self) -> bool:
        return self._left == 0


def test_it_is_a_training_on_all_rows_of_the_length_that_was_best() -> None:
    result = fitted()
    first = fitted({"stop": {**SHORT, "refit": False}})
    per_epoch = first.summary["exchanges"] / first.summary["epochs"]
    epochs = round(first.summary["best_exchange"] / per_epoch)
    whole = {"data": {"split": {"validation": 0.0}}, "stop": {"epochs": epochs}}
    by_hand = weights(fitted(whole))
    assert all(torch.equal(value, by_hand[name]) for name, value in weights(result).items())
    assert result.summary["num_samples"] == {"train": 68, "test": 12}
    assert result.summary["refit"]["num_samples"] == {"train": 56, "validation": 12, "test": 12}


def test_validation_is_the_first_trainings_and_test_the_seconds() -> None:
    result, first = fitted(), fitted({"stop": {**SHORT, "refit": False}})
    quality = result.summary["quality"]
    assert quality["validation"] == first.summary["quality"]["validation"]
    assert quality["test"] == result.evaluate()
    assert result.summary["refit"]["quality"] == first.summary["quality"]
    assert (result.history["loss"] == first.history["loss"]).all()
    card = result.card()
    assert card is not None
    assert card.part == "test"
    assert [row.who for row in card.rows][1:] == ["bank alone", "together (splitnn)"]
    assert card.rows[2].value == pytest.approx(quality["test"][card.metric])


def test_without_a_test_part_the_card_is_the_first_trainings() -> None:
    result = fitted({"data": {"split": {"test": 0.0}}})
    card = result.card(alone=False)
    assert card is not None
    assert card.part == "validation"
    assert card.rows[-1].value == pytest.approx(result.summary["quality"]["validation"]["accuracy"])


def test_schedules_fall_as_in_the_first_training() -> None:
    cosine = {"name": "adam", "lr": 0.01, "schedule": "cosine"}
    result = fitted({"defaults": {"optimizer": cosine}, "label_holder": {"optimizer": cosine}})
    spec = result._blueprint.spec
    # 4 epochs of 56 rows in batches of 64 are 4 exchanges; with 12 more rows it is a fifth more.
    assert spec.defaults.optimizer.schedule.exchanges == round(4 * 68 / 56)  # type: ignore[attr-defined]
    assert spec.label_holder.optimizer.schedule == spec.defaults.optimizer.schedule


def test_a_directory_has_both_and_reports_the_curve(tmp_path: Path) -> None:
    root = tmp_path / "run"
    result = train(parse_spec(WINE), directory=root)
    again = reopen(root)
    assert again.evaluate() == result.summary["quality"]["test"]
    assert again.summary["quality"] == result.summary["quality"]
    assert list(again.history.index) == list(result.history.index)
    assert len(again.history)
    assert (
        reopen(root / "first").summary["quality"]["validation"]
        == result.summary["quality"]["validation"]
    )
    assert "No evaluation is recorded" not in write_report(root).read_text(encoding="utf-8")
    with pytest.raises(StorageError, match="holds a run already"):
        train(parse_spec(WINE), directory=root)


@pytest.mark.parametrize("after", [2, 9])
def test_an_interrupted_one_goes_on(tmp_path: Path, after: int) -> None:
    spec = parse_spec(WINE)
    whole = train(spec)
    cut = train(spec, directory=tmp_path / "run", watcher=Interrupts(after))
    assert cut.summary["stopped_by"] == "interrupted"
    resumed = train(spec, directory=tmp_path / "run", resume=True)
    expected = weights(whole)
    assert all(torch.equal(value, expected[name]) for name, value in weights(resumed).items())
    assert resumed.summary["quality"] == whole.summary["quality"]


def test_in_memory_an_interruption_leaves_the_first_trainings_model() -> None:
    cut = train(parse_spec(WINE), watcher=Interrupts(9))
    assert cut.summary["stopped_by"] != "interrupted"
    assert cut.summary["refit"] is None


def test_estimators_have_it() -> None:
    blocks, labels = tables()
    joined = pd.concat(list(blocks.values()), axis=1)
    model = VerticalClassifier(refit=True, epochs=4, patience=2, random_state=0)
    model.fit(joined, labels)
    assert model.result_.summary["num_samples"] == {"train": 80}
    assert model.result_.summary["refit"]["num_samples"] == {"train": 68, "validation": 12}
    off = VerticalClassifier(refit=False, epochs=4, patience=2, random_state=0).fit(joined, labels)
    assert off.result_.summary["refit"] is None
    with pytest.raises(ConfigError, match=r"settings.stop.refit: pass it as the parameter refit"):
        VerticalClassifier(settings={"stop": {"refit": True}}).fit(joined, labels)


class TestWhere:
    def test_by_default_where_it_is_quick_and_free(self) -> None:
        assert STOP.refit == "auto"
        assert refits(parse_spec({}), 1000, None, starts_anew=True)
        assert not refits(parse_spec({}), 100_000, None, starts_anew=True)
        assert not refits(parse_spec({}), 3, None, starts_anew=True)
        assert not refits(parse_spec({}), 1000, None, starts_anew=False)
        assert not refits(parse_spec({"fabric": "simulated"}), 1000, None, starts_anew=True)
        assert not refits(parse_spec({"stop": {"seconds": 9}}), 1000, None, starts_anew=True)

    def test_settings_of_ones_own_are_as_they_were(self) -> None:
        assert parse_spec({"stop": {"epochs": 9, "patience": 3}}).stop.refit is False

    @pytest.mark.parametrize(
        "settings",
        [
            {"defaults": {"protect": [{"kind": "quantize", "bits": 8}]}},
            {"party": {"bank": {"protect": [{"kind": "quantize", "bits": 8}]}}},
            {"label_holder": {"protect": [{"kind": "quantize", "bits": 8}]}},
            {"party": {"bank": {"policy": "policy.toml"}}},
        ],
    )
    def test_never_where_it_would_spend_privacy_twice(self, settings: dict[str, Any]) -> None:
        assert not refits(parse_spec(settings), 1000, None, starts_anew=True)
        asked = parse_spec({**settings, "stop": {"refit": True}})
        with pytest.raises(ConfigError, match=r"stop.refit: .* released by two trainings"):
            refits(asked, 1000, None, starts_anew=True)

    def test_not_between_organisations(self) -> None:
        asked: Any = parse_spec({"stop": {"refit": True}})
        nothing: Any = None
        with pytest.raises(ConfigError, match=r"stop.refit: between organisations"):
            RemoteRun.prepare(asked, nothing, (), nothing, "run")

    def test_not_without_what_it_needs(self) -> None:
        with pytest.raises(ConfigError, match=r"stop.refit: needs patience"):
            parse_spec({"stop": {"epochs": 3, "refit": True}})
        with pytest.raises(ConfigError, match=r"stop.refit: trains twice"):
            parse_spec({"stop": {"refit": True, "seconds": 3.0}})
        with pytest.raises(ConfigError, match=r"stop.refit: there is no validation part"):
            fitted({"data": {"split": {"validation": 0.0}}})
        with pytest.raises(ConfigError, match=r"stop.refit: an earlier run's weights"):
            fitted(warm_start=fitted({"stop": {"epochs": 1}}))

    def test_small_tables_have_their_steps_again(self) -> None:
        result = fitted({"stop": {"least_exchanges": 5, **SHORT}})
        assert result.summary["exchanges"] >= 5
        assert (STOP.least_exchanges or 0) > LEAST
