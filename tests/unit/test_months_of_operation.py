"""Logs that rotate and stay JSON, waits that leave a trace, room that is bounded."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.core.errors import ConfigError, Refused
from colonnade.fabrics.grpc.front import FrontStatus
from colonnade.federate import logs
from colonnade.federate.hub_service import HubService
from colonnade.federate.hub_waits import HubWaits
from colonnade.federate.logs import log_to
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.party_limits import Limits, kept_megabytes
from colonnade.run.run_shelf import check_room
from membership import SetClock, make_federation
from networks import QUICK

PAGE = (Path(__file__).parents[2] / "docs" / "life-of-a-model.md").read_text("utf-8")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    monkeypatch.setattr(logs, "_FILE_BYTES", 2000)
    path = tmp_path / "logs" / "agent.log"
    handler = log_to(path, party="telco")
    yield path
    logging.captureWarnings(False)
    logging.getLogger().removeHandler(handler)
    handler.close()
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("colonnade").setLevel(logging.NOTSET)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_log_in_a_file_rotates_and_is_bounded(log: Path) -> None:
    for number in range(200):
        logging.getLogger("colonnade.agent").info("call %d", number)
    files = sorted(log.parent.iterdir())
    assert [file.name for file in files] == ["agent.log", *(f"agent.log.{n}" for n in range(1, 6))]
    assert all(file.stat().st_size <= 2000 for file in files)
    assert lines(log)[-1]["event"] == "call 199"
    assert log.stat().st_mode & 0o077 == 0


def test_warnings_and_errors_that_nobody_caught_are_lines(log: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(True)
        warnings.warn("the row of person 4711 has value 3.25", stacklevel=1)

    def fail() -> None:
        raise ValueError("the row of person 4711")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    try:
        fail()
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    warned, *failed = lines(log)
    assert (warned["level"], warned["where"]) == ("warning", "py.warnings")
    assert [line["error"] for line in failed] == ["ValueError", "ValueError"]
    assert [line["level"] for line in failed] == ["critical", "critical"]
    assert "4711" not in log.read_text()


def test_what_ends_a_hub_is_an_error_in_its_log(log: Path, tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    hub = open_hub(federation.directory, links=QUICK, address="127.0.0.1:0", enrols=False)
    with pytest.raises(ConfigError), hub:
        raise ConfigError("stop.epochs: no")
    (line,) = [line for line in lines(log) if line["level"] == "error"]
    assert line["message"] == "stop.epochs: no"
    assert "the hub ends" in line["event"]


def test_a_wait_is_told_when_it_gets_long_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "colonnade")
    waits = HubWaits()
    for second in range(45):
        waits.look({"telco": float(second), "shop": 0.0})
    waits.look({"telco": 0.0, "shop": 0.0})
    waits.look({"telco": 5.0, "shop": 0.0})
    told = [(record.message, record.fields["seconds"]) for record in caplog.records]  # type: ignore[attr-defined]
    assert told == [
        ("waiting for a party", 10.0),
        ("waiting for a party", 20.0),
        ("waiting for a party", 40.0),
        ("an answer came after a wait", 44.0),
    ]
    assert (waits.counts, waits.totals, waits.present) == ({"telco": 1}, {"telco": 44.0}, {})
    waits.look({"telco": 30.0})
    assert (waits.counts, waits.present) == ({"telco": 2}, {"telco": 30.0})


def test_every_metric_of_a_hub_is_documented(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    with open_hub(federation.directory, links=QUICK, address="127.0.0.1:0", enrols=False) as hub:
        service = HubService(hub, {"hub": FrontStatus()})
        names = {
            family.name + ("_total" if family.type == "counter" else "")
            for family in service.collect()
        }
    assert set(re.findall(r"`(colonnade_hub_\w+)`", PAGE)) == names


def test_room_for_weights_is_bounded(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "0123456789abcdef"
    place.mkdir(parents=True)
    (place / "exchange-000000001.safetensors").write_bytes(bytes(3_000_000))
    assert kept_megabytes(tmp_path) == 3
    Limits(max_kept_megabytes=3).check("telco", {"max_kept_megabytes": 3})
    with pytest.raises(Refused, match="max_kept_megabytes"):
        Limits(max_kept_megabytes=2).check("telco", {"max_kept_megabytes": 3})


def test_room_for_checkpoints_of_the_label_holder_is_bounded(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    check_room(runs, 1)
    for name in ("first", "second"):
        place = runs / name / "label_holder"
        place.mkdir(parents=True)
        (runs / name / "config.json").write_text("{}")
        (place / "exchange-000000001.safetensors").write_bytes(bytes(1_500_000))
    # Whatever else lies there is not a run's.
    (runs / "others").mkdir()
    (runs / "others" / "weights.safetensors").write_bytes(bytes(1_500_000))
    for most in (None, 3):
        check_room(runs, most)
    with pytest.raises(ConfigError, match=r"3\.0 MB, 2 are allowed"):
        check_room(runs, 2)


def test_a_training_begins_only_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    with (federation.directory / "federation.toml").open("a") as file:
        file.write("max_kept_megabytes = 1\n")
    config = tmp_path / "credit.toml"
    config.write_text(
        'method = "splitnn"\n[label_holder]\nfile = "bank.csv"\nid = "id"\nlabel = "defaulted"\n'
        "[party.bank]\n[party.shop]\n[stop]\nepochs = 1\n"
    )
    place = tmp_path / "runs" / "before"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    (place / "exchange-000000001.safetensors").write_bytes(bytes(1_500_000))
    out = tmp_path / "runs" / "credit"
    words = ["federation", "train", str(federation.directory), str(config), "--out", str(out)]
    monkeypatch.setattr("colonnade.federate.opened_hub.open_hub", None)
    with pytest.raises(ConfigError, match="max_kept_megabytes"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not out.exists()
