"""A thread that trains interrupts nobody where predictions are served."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
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
    os.sched_setscheduler(number, USUAL, os.sched_param(0))


def test_a_thread_and_those_that_it_starts_interrupt_nobody(own: int) -> None:
    found: list[int] = []
    assert interrupt_nobody(own)
    thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join(60)
    assert [os.sched_getscheduler(own), *found] == [POLITE, POLITE]
    assert not interrupt_nobody(own)


def test_a_class_that_somebody_else_gave_a_thread_stays(tmp_path: Path, own: int) -> None:
    os.sched_setscheduler(own, POLITE, os.sched_param(0))
    with closing(GivesWay(tmp_path)) as gives_way:
        with served_here(tmp_path):
            gives_way.look()
        gives_way.look()
    assert os.sched_getscheduler(own) == POLITE


def test_a_system_that_forbids_it_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(*arguments: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    assert not interrupt_nobody(threading.get_native_id())
    assert "can't give way to predictions here: Operation not permitted" in caplog.text


def test_a_thread_gives_way_as_long_as_somebody_serves(tmp_path: Path, own: int) -> None:
    steps: list[int] = []

    def look(gives_way: GivesWay) -> None:
        gives_way.look()
        steps.append(os.sched_getscheduler(own))

    # Another one that looks is nobody who serves.
    with closing(GivesWay(tmp_path)), closing(GivesWay(tmp_path)) as gives_way:
        look(gives_way)
        with served_here(tmp_path):
            look(gives_way)
            with served_here(tmp_path):
                look(gives_way)
            look(gives_way)
        look(gives_way)
        with served_here(tmp_path):
            look(gives_way)
    steps.append(os.sched_getscheduler(own))
    assert steps == [USUAL, POLITE, POLITE, POLITE, USUAL, POLITE, USUAL]


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
