"""A thread that trains interrupts nobody where predictions are served."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colonnade.core.errors import StorageError
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.precedence import GivesWay, interrupt_nobody, served_here
from e2e.organisations import Organisations
from networks import QUICK

USUAL, POLITE = os.SCHED_OTHER, os.SCHED_BATCH


@pytest.fixture
def own() -> Iterator[int]:
    """This thread, which leaves the test as it came."""
    number = threading.get_native_id()
    yield number
    interrupt_nobody(number, False)
    assert os.sched_getscheduler(number) == USUAL


def started_class() -> int:
    """The scheduling class of a thread that is started now."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join(60)
    return found[0]


def test_a_thread_and_those_that_it_starts_interrupt_nobody(own: int) -> None:
    interrupt_nobody(own)
    assert [os.sched_getscheduler(own), started_class()] == [POLITE, POLITE]
    interrupt_nobody(own, False)
    assert [os.sched_getscheduler(own), started_class()] == [USUAL, USUAL]


@pytest.mark.parametrize("is_so", [True, False])
def test_a_class_that_somebody_else_gave_a_thread_stays(
    monkeypatch: pytest.MonkeyPatch, is_so: bool
) -> None:
    set_to: list[int] = []
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: os.SCHED_IDLE)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *to: set_to.append(to[1]))
    interrupt_nobody(1, is_so)
    assert set_to == []


def test_a_system_that_forbids_it_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(*arguments: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    interrupt_nobody(threading.get_native_id())
    assert "can't give way to predictions here: Operation not permitted" in caplog.text


def test_a_thread_gives_way_as_long_as_somebody_serves(tmp_path: Path, own: int) -> None:
    gives_way = GivesWay(tmp_path)
    another = GivesWay(tmp_path)
    steps: list[int] = []

    def look() -> None:
        gives_way.look()
        steps.append(os.sched_getscheduler(own))

    look()
    with served_here(tmp_path):
        look()
        with served_here(tmp_path):
            look()
        look()
    look()
    assert steps == [USUAL, POLITE, POLITE, POLITE, USUAL]
    with served_here(tmp_path):
        look()
        gives_way.close()
        assert os.sched_getscheduler(own) == USUAL
    another.close()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"serving\.lock: can't be written"):
        GivesWay(tmp_path / "nowhere")


def test_a_hub_that_trains_gives_way_to_one_that_serves(tmp_path: Path, own: int) -> None:
    organisations = Organisations(tmp_path, nursery=None, serves=True)
    federation = organisations.federation
    with open_hub(federation, links=QUICK, serves=True, enrols=False):
        assert os.sched_getscheduler(own) == USUAL
        with open_hub(federation, links=QUICK, enrols=False):
            assert os.sched_getscheduler(own) == POLITE
        assert os.sched_getscheduler(own) == USUAL
