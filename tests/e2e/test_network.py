"""Real processes over mutual TLS: the same bits as in one process, whatever dies."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from colonnade.run.storage import read_json
from e2e.organisations import Organisations
from federations import assert_bitwise_equal

SECONDS = 120


@pytest.fixture
def organisations(tmp_path: Path) -> Iterator[Organisations]:
    made = Organisations(tmp_path)
    yield made
    made.close()


def finish(organisations: Organisations, hub) -> None:
    assert hub.wait(SECONDS) == 0, organisations.logs()


def test_separate_processes_give_the_bits_of_one(organisations: Organisations) -> None:
    for name in ("shop", "telco"):
        organisations.start_party(name)
    finish(organisations, organisations.start_hub())

    local, summary = organisations.in_process()
    assert_bitwise_equal(organisations.weights(), local)
    remote = read_json(organisations.run / "summary.json")
    for key in ("quality", "exchanges", "local_steps", "bytes_up", "bytes_down", "num_samples"):
        assert remote[key] == summary[key], key
    assert remote["fabric"] == "grpc"


def test_whoever_is_killed_the_bits_stay_the_same(organisations: Organisations) -> None:
    """A party dies in an exchange, then the hub, then the other party; each comes back."""
    telco = organisations.start_party("telco", die=40)
    shop = organisations.start_party("shop", die=75)
    hub = organisations.start_hub(die=160)
    assert telco.wait(SECONDS) == -signal.SIGKILL, organisations.logs()
    organisations.start_party("telco")
    assert hub.wait(SECONDS) == -signal.SIGKILL, organisations.logs()
    hub = organisations.start_hub()
    assert shop.wait(SECONDS) == -signal.SIGKILL, organisations.logs()
    organisations.start_party("shop")
    finish(organisations, hub)

    local, summary = organisations.in_process()
    assert_bitwise_equal(organisations.weights(), local)
    assert read_json(organisations.run / "summary.json")["quality"] == summary["quality"]
