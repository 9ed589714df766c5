"""Trackers get the numbers of metrics.jsonl, read back from their own files; a bar shows them."""

from __future__ import annotations

import gc
import importlib.util
import io
import os
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from colonnade import ProgressBar, fit
from colonnade.core.errors import ConfigError
from colonnade.run.trackers import Trackers, numbers_in, require_trackers
from live_runs import lines_of
from messages import says


@pytest.fixture
def collected() -> Iterator[None]:
    """What a tracker's package left unclosed warns here, not in the next test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


def trained(out: Path | None, *trackers: str, watcher: Any = None) -> Any:
    generator = np.random.default_rng(0)
    blocks = {
        name: pd.DataFrame(generator.normal(size=(90, 2)), columns=[f"{name}0", f"{name}1"])
        for name in ("bank", "shop")
    }
    labels = (blocks["bank"]["bank0"] + blocks["shop"]["shop0"] > 0).rename("late")
    return fit(
        blocks,
        labels,
        ids="row order",
        label_holder="bank",
        epochs=2,
        batch_size=16,
        settings={"record": {"log_every": 2, "trackers": list(trackers)}},
        out=out,
        watcher=watcher,
    )


def expected(run: Path) -> dict[tuple[str, int], float]:
    lines = [*lines_of(run, "exchange"), *lines_of(run, "evaluation")]
    found = {}
    for line in lines:
        for name, value in numbers_in(line).items():
            found[name, line["exchange"]] = value
    assert ("train/loss", 2) in found
    return found


def events(folder: Path) -> Iterator[Any]:
    """TensorBoard's own records: a length, its checksum, an event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.glob("events.out.tfevents.*")
    content = file.read_bytes()
    place = 0
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        yield Event.FromString(content[place + 12 : place + 12 + length])
        place += 12 + length + 4


def test_tensorboard_has_every_number(tmp_path: Path) -> None:
    trained(tmp_path / "run", "tensorboard")
    found = {
        (value.tag, event.step): value.simple_value
        for event in events(tmp_path / "run" / "tensorboard")
        for value in event.summary.value
        if value.WhichOneof("value") == "simple_value"
    }
    wanted = expected(tmp_path / "run")
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] == pytest.approx(value, rel=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("collected")
def test_mlflow_has_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    trained(tmp_path / "run", "mlflow")
    client = MlflowClient(tracking_uri=(tmp_path / "run" / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("colonnade")
    assert experiment is not None
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.data.tags["parties"] == "bank, shop"
    history = client.get_metric_history(kept.info.run_id, "train/loss")
    wanted = expected(tmp_path / "run")
    assert {("train/loss", item.step): item.value for item in history} == {
        key: value for key, value in wanted.items() if key[0] == "train/loss"
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("collected")
def test_wandb_writes_offline_into_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    trained(tmp_path / "run", "wandb")
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    (file,) = folder.glob("run-*.wandb")
    content = file.read_bytes()
    assert b"train/loss" in content
    assert b"bytes_up/shop" in content
    assert os.fsencode(str(tmp_path)) not in content.replace(b"run/wandb", b"")


def test_a_tracker_without_its_package_is_refused_before_there_is_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=says("record.trackers", "'tensorboard'", "tensorboardX")):
        trained(tmp_path / "run", "tensorboard")
    assert not (tmp_path / "run").exists()
    require_trackers(())


def test_a_run_in_memory_tracks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained(None, "tensorboard")
    assert list(tmp_path.iterdir()) == []
    Trackers(["tensorboard"], None, {}).close()


def test_numbers_that_are_not_finite_stay_out() -> None:
    line = {"kind": "evaluation", "part": "validation", "exchange": 3}
    assert numbers_in({**line, "metrics": {"auc": None, "loss": float("nan"), "f1": 1}}) == {
        "validation/f1": 1.0
    }
    assert numbers_in({"kind": "skipped", "exchange": 3}) == {}


def test_a_bar_shows_how_far_it_is() -> None:
    shown = io.StringIO()
    bar = ProgressBar(Console(file=shown, force_terminal=True, width=120))
    trained(None, watcher=bar)
    assert "splitnn" in shown.getvalue()
    assert "8/8" in shown.getvalue()
    assert "accuracy " in shown.getvalue()
    assert not bar.wants_to_stop()
    assert '<progress value="8" max="8">' in bar._repr_html_()
