"""While the parties compute, the label holder measures and keeps; orders leave before that."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from colonnade.core.fabric import not_yet
from colonnade.core.federation import Event, Federation, LoopState, Predictions, Stop
from colonnade.core.loop import Timekeeper
from colonnade.fabrics.simulated import Simulated
from colonnade.methods.flex import Flex
from colonnade.run.keeping import Keeping
from colonnade.run.records import MemoryRecords
from federations import make_federation


class SlowRecords(MemoryRecords):
    """Records whose checkpoints are whole when they are looked at for the second time."""

    def __init__(self, done: list[str]) -> None:
        super().__init__()
        self._done = done

    def keeping(self, *_: Any) -> Coroutine[Any, Any, None]:
        async def keep() -> None:
            await not_yet(lambda: None, None)
            self._done.append("kept")

        return keep()


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def federation(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> Federation:
    """Flex as between machines; it notes when orders leave and when the label holder steps."""
    monkeypatch.setattr(Simulated, "answers_at_once", False)
    made = make_federation(2, method=Flex(), fabric="simulated", num_validation=8)
    hand_out, step = made.fabric.hand_out, made.holder.step
    monkeypatch.setattr(made.fabric, "hand_out", lambda: (done.append("out"), hand_out()))
    monkeypatch.setattr(made.holder, "step", lambda: (done.append("step"), step()))
    return made


def test_an_evaluation_is_measured_while_the_parties_compute(
    federation: Federation, done: list[str]
) -> None:
    def measure(
        federation: Federation, part: str, found: Predictions | None = None
    ) -> Mapping[str, float]:
        done.append("measured")
        return {"accuracy": 0.5}

    events = list(federation.train(Stop(exchanges=4, evaluate_every=2), LoopState(), measure))
    # The second exchange is evaluated during the third, and comes out at its end; the last one is
    # evaluated when all is over.
    first = done.index("measured")
    assert done[:first].count("out") == 3
    assert (done[first - 1], done[first + 1]) == ("out", "step")
    assert [event.measured for event in events] == [0, 0, 2, 4]


def test_a_checkpoint_is_written_while_the_parties_compute(
    federation: Federation, done: list[str]
) -> None:
    loop = LoopState()
    timekeeper = Timekeeper(federation.fabric, loop)
    keeping = Keeping(federation, loop, SlowRecords(done), timekeeper, every=2, keeps_best=False)

    def nothing(
        federation: Federation, part: str, found: Predictions | None = None
    ) -> Mapping[str, float]:
        return {"accuracy": 0.5}

    stop = Stop(exchanges=4, evaluate_every=4)
    for event in federation.train(stop, loop, nothing, timekeeper):
        assert isinstance(event, Event)
        assert keeping.after(event) is None
    first = done.index("kept")
    assert done[:first].count("out") == 3
    assert (done[first - 1], done[first + 1]) == ("out", "step")
