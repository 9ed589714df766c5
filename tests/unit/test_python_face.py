"""What Python users meet: public names, numbers of numpy, history, networks, repeatable runs."""

from __future__ import annotations

import inspect
import typing
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import colonnade
from colonnade.core.errors import ConfigError, DataError, MissingBlock, StorageError
from colonnade.core.loop import LoopState, Stop
from colonnade.fabrics.in_process import CountedClock
from colonnade.run.directory import RunDirectory
from colonnade.run.result import Result
from federations import assert_bitwise_equal, weights
from messages import says

COUNT = 60
DRAW = np.random.default_rng(9)
IDS = [f"u{number}" for number in range(COUNT)]
BANK = pd.DataFrame(DRAW.normal(size=(COUNT, 2)), index=IDS, columns=["age", "pay"])
TELCO = pd.DataFrame(DRAW.normal(size=(COUNT, 1)), index=IDS, columns=["calls"])
LABELS = (BANK["age"] + TELCO["calls"] > 0).rename("left")
SMALL: dict[str, Any] = {
    "defaults": {"encoder": {"kind": "mlp", "hidden": [4], "embedding": 3}},
    "label_holder": {"fusion": {"kind": "mlp", "hidden": [4]}},
}


def quick(**arguments: Any) -> Result:
    settings = {**SMALL, **arguments.pop("settings", {})}
    blocks = {"bank": BANK, "telco": TELCO}
    arguments = {"label_holder": "bank", "epochs": 3, "batch_size": 16, **arguments}
    return colonnade.fit(blocks, LABELS, settings=settings, **arguments)


def test_public_names() -> None:
    assert colonnade.__version__ == version("colonnade")
    assert colonnade.errors.ConfigError is ConfigError
    assert colonnade.Block.__name__ == "Block"
    assert set(colonnade.__all__) <= set(dir(colonnade))
    assert import_module("colonnade.errors").ConfigError is ConfigError
    assert typing.get_type_hints(colonnade.fit)["return"] is Result
    for name in colonnade.__all__:
        item = getattr(colonnade, name)
        own = [value for key, value in vars(item).items() if not key.startswith("_")]
        for function in [item, *filter(inspect.isfunction, own)] if callable(item) else []:
            assert isinstance(typing.get_type_hints(function), dict)


def test_numbers_of_numpy_are_numbers() -> None:
    options = {"weight_decay": np.float64(0.1)}
    optimizer = {"name": "adamw", "lr": np.float64(0.001), "options": options}
    defaults = {**SMALL["defaults"], "optimizer": optimizer}
    numpys = quick(epochs=np.int64(2), batch_size=np.int32(16), settings={"defaults": defaults})
    plain = quick(epochs=2)
    assert_bitwise_equal(weights(numpys._federation), weights(plain._federation))
    with pytest.raises(ConfigError, match=says("stop.epochs", "whole number")):
        quick(epochs=np.float64(2.5))


def test_history_and_networks(tmp_path: Path) -> None:
    in_memory, kept = quick(), quick(out=tmp_path / "run")
    assert len(in_memory.history) == 3
    assert {"elapsed", "loss", "accuracy"} <= set(in_memory.history.columns)
    metrics = in_memory.history.drop(columns="elapsed")
    for other in (kept, Result.load(tmp_path / "run")):
        pd.testing.assert_frame_equal(other.history.drop(columns="elapsed"), metrics)
    assert Result.load(in_memory.save(tmp_path / "model")).history.empty
    assert set(in_memory.modules) == {"fusion", "bank", "telco"}
    assert all(isinstance(item, nn.Module) for item in in_memory.modules.values())


@pytest.mark.parametrize("method", ["flex", "adaptive_flex"])
def test_the_same_seed_gives_the_same_model_however_fast_the_machine_is(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = quick(method=method)
    # A machine whose clock stands still, on which real time would let every step fit.
    monkeypatch.setattr("colonnade.core.fabric.RealClock.fits", lambda *_: True)
    monkeypatch.setattr("colonnade.core.fabric.RealClock.num_fitting", lambda *_: 50)
    again = quick(method=method)
    assert_bitwise_equal(weights(first._federation), weights(again._federation))
    assert first.summary["local_steps"] == again.summary["local_steps"]
    fewer = quick(method=method, settings={"fabric": {"name": "in_process", "step": 10}})
    assert fewer.summary["local_steps"]["telco"] < first.summary["local_steps"]["telco"]


def test_declared_work() -> None:
    clock = CountedClock(4)
    assert clock.num_fitting("step", 20) == 5
    for _ in range(5):
        assert clock.fits("step", 20)
        clock.work("step")
    assert not clock.fits("step", 20)
    with pytest.raises(ConfigError, match=says("fabric.step", 0)):
        quick(settings={"fabric": {"name": "in_process", "step": 0}})


class Stumbles:
    """A watcher that fails: before the first exchange, or after it."""

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once

    def began(self, *_: Any) -> None:
        if self.at_once:
            raise StorageError("stumbled")

    def exchanged(self, *_: Any) -> None:
        raise StorageError("stumbled")

    def wants_to_stop(self) -> bool:
        return False


def test_a_run_that_failed_before_its_first_exchange_leaves_its_directory_free(
    tmp_path: Path,
) -> None:
    with pytest.raises(StorageError, match="stumbled"):
        quick(out=tmp_path / "run", watcher=Stumbles(at_once=True))
    again = quick(out=tmp_path / "run")
    assert_bitwise_equal(weights(again._federation), weights(quick()._federation))
    with pytest.raises(StorageError, match="holds a run already"):
        quick(out=tmp_path / "run")
    every = {"record": {"log_every": 1}}
    with pytest.raises(StorageError, match="stumbled"):
        quick(out=tmp_path / "begun", watcher=Stumbles(at_once=False), settings=every)
    with pytest.raises(StorageError, match="holds a run already"):
        RunDirectory(tmp_path / "begun", resume=False)


def test_a_callback_gets_every_exchange_and_ends_training(tmp_path: Path) -> None:
    events: list[Any] = []
    plain = quick()
    watched = quick(callback=lambda event: events.append(event))
    assert_bitwise_equal(weights(plain._federation), weights(watched._federation))
    assert [event.exchange for event in events] == list(range(1, 10))
    assert [event.metrics is not None for event in events] == [False, False, True] * 3

    cut = quick(out=tmp_path / "run", callback=lambda event: event.exchange == 4)
    assert (cut.summary["stopped_by"], cut.summary["exchanges"]) == ("callback", 4)
    with pytest.raises(ZeroDivisionError):
        quick(callback=lambda event: 1 // (event.exchange - 1) > 9)


def test_a_callback_ends_with_the_best_weights() -> None:
    patient = {"stop": {"epochs": 8, "patience": 20, "metric": "loss"}}
    losses: list[float] = []

    def stop(event: Any) -> bool:
        if event.metrics is not None:
            losses.append(event.metrics["loss"])
        return losses[-1:] > [min(losses, default=0.0)]

    hot = {"label_holder": {**SMALL["label_holder"], "optimizer": {"name": "sgd", "lr": 5.0}}}
    found = quick(callback=stop, epochs=20, settings={**patient, **hot})
    assert found.summary["stopped_by"] == "callback"
    assert found.evaluate(part="validation")["loss"] == min(losses) < losses[-1]


def test_a_time_limit_counts_by_the_fabrics_clock(tmp_path: Path) -> None:
    simulated = {"fabric": {"name": "simulated"}, "record": {"log_every": 1}}
    # An exchange takes a tick, and the first ends at once.
    limit = {"epochs": 3, "seconds": 0.0025}
    cut = quick(settings={**simulated, "stop": limit}, epochs=None, out=tmp_path / "run")
    assert (cut.summary["stopped_by"], cut.summary["exchanges"]) == ("time", 4)
    # The last exchange is measured, and a loop that is out of time already does nothing more.
    assert cut.history.index[-1] == 4
    state = LoopState(exchange=4, elapsed=9.0, outages=2.0)
    assert state.is_out_of_time(Stop(epochs=1, seconds=7.0))
    assert not state.is_out_of_time(Stop(epochs=1, seconds=7.5))
    with pytest.raises(ConfigError, match=says("stop.seconds", "above 0")):
        quick(settings={"stop": {"seconds": 0}})


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_has_gradients_whatever_the_callers_mode_is(mode: Any) -> None:
    plain = quick()
    with mode():
        again = quick()
        assert again.card() is not None
    assert_bitwise_equal(weights(plain._federation), weights(again._federation))


def test_a_refit_that_fails_leaves_the_model_before_it() -> None:
    table = pd.concat([BANK, TELCO], axis=1)
    model = colonnade.VerticalClassifier(epochs=1, random_state=0).fit(table, LABELS)
    before = model.predict_proba(table)
    with pytest.raises(ConfigError, match=says("stop.epochs")):
        model.set_params(epochs=-1).fit(table[["age"]], LABELS)
    assert np.array_equal(model.predict_proba(table), before)
    assert list(model.feature_names_in_) == ["age", "pay", "calls"]
    new = colonnade.VerticalClassifier(epochs=-1)
    with pytest.raises(ConfigError, match=says("stop.epochs")):
        new.fit(table, LABELS)
    assert not hasattr(new, "result_")


@pytest.mark.parametrize("method", ["splitnn", "laser"])
def test_a_typing_mistake_in_a_partys_name_is_told_where_it_could_be_done_without(
    method: str,
) -> None:
    result = quick(method=method)
    for ask in (result.predict, lambda blocks: result.evaluate(blocks, LABELS)):
        with pytest.raises(MissingBlock, match=says("no party 'bnk'", "did you mean 'bank'?")):
            ask({"bnk": BANK, "telco": TELCO})
    # Somebody else's block is left aside.
    result.predict({"bank": BANK, "telco": TELCO, "harbour": TELCO})


def test_what_to_do_about_values_that_only_new_samples_lack() -> None:
    new = {"bank": BANK.mask(BANK["age"] > 1), "telco": TELCO}
    with pytest.raises(DataError, match=says("which training had not", "train again with")):
        quick().predict(new)
    filled = {"defaults": {**SMALL["defaults"], "prepare": {"missing": "mean"}}}
    assert quick(settings=filled).predict(new).notna().all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prepare": {"missing": "mean"}}, "party.NAME.prepare or defaults.prepare"),
        ({"party": {"bank": {"missing": "mean"}}}, "party.bank.prepare.missing"),
        ({"defaults": {"missing": "mean"}}, "defaults.prepare.missing"),
        ({"epochs": 3}, "it goes to stop.epochs"),
        ({"stop": 5}, "settings.stop: expected a table, got 5"),
        ([3], "settings: expected a mapping, got list"),
    ],
)
def test_settings_in_the_wrong_place_are_told_the_right_one(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=says(message)):
        colonnade.fit({"bank": BANK}, LABELS, settings=settings, epochs=2)


def test_warm_start_begins_with_earlier_weights(tmp_path: Path) -> None:
    first = quick(out=tmp_path / "run")
    kept = {name: item.clone() for name, item in weights(first._federation).items()}
    still = {
        "defaults": {**SMALL["defaults"], "optimizer": {"name": "sgd", "lr": 1e-30}},
        "label_holder": {**SMALL["label_holder"], "optimizer": {"name": "sgd", "lr": 1e-30}},
    }
    same = quick(warm_start=first, epochs=1, settings=still)
    assert_bitwise_equal(weights(same._federation), kept)
    # From memory as from disk, and the earlier result stays as it was.
    memory = quick(warm_start=first)
    disk = quick(settings={"start": {"run": str(tmp_path / "run")}})
    assert_bitwise_equal(weights(memory._federation), weights(disk._federation))
    assert_bitwise_equal(weights(first._federation), kept)
    with pytest.raises(ConfigError, match=says("warm_start: trained with 'splitnn'")):
        quick(warm_start=first, method="fedbcd")
    wider = {"defaults": {"encoder": {"kind": "mlp", "hidden": [5], "embedding": 3}}}
    with pytest.raises(ConfigError, match=says("warm_start: the weights of", "don't fit")):
        quick(warm_start=first, settings=wider)
    with pytest.raises(ConfigError, match=says("warm_start", "leave one out")):
        quick(warm_start=first, settings={"start": {"run": str(tmp_path / "run")}})


def test_the_guessed_task_is_told_with_how_to_change_it(caplog: pytest.LogCaptureFixture) -> None:
    counts = pd.Series(np.arange(COUNT) % 25, index=IDS, name="visits")
    found = colonnade.fit({"bank": BANK}, counts, label_holder="bank", epochs=1, settings=SMALL)
    assert found.summary["task"] == "regression"
    assert "'visits' has 25 whole numbers and is taken as a regression" in caplog.text
    assert 'set label_holder.task = "multiclass" (task= in Python)' in caplog.text
    caplog.clear()
    quick()
    assert "is taken as" not in caplog.text


def test_the_home_directory_by_its_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    TELCO.rename_axis("id").to_csv(tmp_path / "telco.csv")
    bank = BANK.rename_axis("id").reset_index()
    blocks = {"bank": bank, "telco": "~/telco.csv"}
    found = colonnade.fit(
        blocks, LABELS, label_holder="bank", id_column="id", epochs=1, settings=SMALL, out="~/run"
    )
    assert (tmp_path / "run" / "checkpoint.json").exists()
    assert Result.load("~/run").predict(blocks).tolist() == found.predict(blocks).tolist()
    assert (Path(found.save("~/model")) / "config.json").exists()


def test_what_is_no_result_no_function_and_nearly_a_party_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigError, match=says("warm_start: expected a Result, got dict")):
        quick(warm_start={})
    with pytest.raises(ConfigError, match=says("callback: expected a function, got int")):
        quick(callback=3)
    quick(label_holder="registry")
    assert "did you mean" not in caplog.text
    quick(label_holder="Bnk")
    assert "the label holder 'Bnk' has no block of its own; did you mean 'bank'?" in caplog.text


def test_estimators_warm_start() -> None:
    table = pd.concat([BANK, TELCO], axis=1)
    model = colonnade.VerticalClassifier(epochs=2, random_state=0, warm_start=True)
    first = model.fit(table, LABELS).result_.evaluate({"party_1": BANK, "party_2": TELCO}, LABELS)
    for _ in range(3):
        last = model.fit(table, LABELS).result_.evaluate(
            {"party_1": BANK, "party_2": TELCO}, LABELS
        )
    assert last["loss"] < first["loss"]
    cold = colonnade.VerticalClassifier(epochs=2, random_state=0)
    once = cold.fit(table, LABELS).predict_proba(table)
    assert np.array_equal(cold.fit(table, LABELS).predict_proba(table), once)
