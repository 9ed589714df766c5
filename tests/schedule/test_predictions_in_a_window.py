"""Batches of a prediction are in flight together: round trips are counted on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from colonnade.core import window
from colonnade.core.errors import NoAnswer
from colonnade.core.fabric import Fabric
from colonnade.core.federation import Federation
from colonnade.core.messages import Reply
from colonnade.core.parties import Parties, Patience
from colonnade.core.window import Question, ask_in_window
from colonnade.fabrics.durations import Constant
from colonnade.fabrics.in_process import InProcess
from colonnade.fabrics.simulated import Profile, Simulated
from colonnade.methods import METHODS
from federations import make_federation

LATENCY = 100
ROUND_TRIP = 2 * LATENCY
NUM_BATCHES = 32


class _Timed(Simulated):
    """A simulated fabric on which predictions take time too."""

    def aside(self, parts: Any = None) -> Fabric:
        assert parts is None
        return self


def timed(
    method: str, *, bandwidth: int | None = None, latency: int = LATENCY, **settings: Any
) -> Federation:
    federation = make_federation(
        2,
        method=METHODS[method](),
        combine="mean" if method in ("laser", "easter") else "concat",
        num_samples=8,
        num_validation=8 * NUM_BATCHES,
        fabric="simulated",
        **settings,
    )
    profile = Profile(latency=Constant(value=latency), bandwidth=bandwidth)
    federation.fabric = _Timed(federation.fabric.parties, default=profile)
    federation.parties = federation._parties(federation.fabric, federation.patience)
    return federation


def predicted(federation: Federation, **settings: Any) -> torch.Tensor:
    plan = federation.holder.parts["validation"].plan
    assert plan.num_batches == NUM_BATCHES
    return federation.predictions("validation", plan, **settings).outputs


@pytest.mark.parametrize(
    ("method", "num_trips"), [("splitnn", 1), ("aggvfl", 1), ("laser", 2), ("easter", 2)]
)
def test_all_batches_take_the_round_trips_of_one(method: str, num_trips: int) -> None:
    federation = timed(method)
    predicted(federation)
    assert federation.fabric.now() == num_trips * ROUND_TRIP


def test_beyond_the_round_trip_the_link_is_full() -> None:
    federation = timed("splitnn", bandwidth=64)
    # Eight rows of four floats: two ticks a batch.
    predicted(federation)
    transfer = 2 * NUM_BATCHES
    assert federation.fabric.now() <= ROUND_TRIP + transfer + NUM_BATCHES


@pytest.mark.parametrize(("fits", "num_trips"), [(NUM_BATCHES, 1), (NUM_BATCHES // 2, 2), (1, 32)])
def test_no_more_is_in_flight_than_the_window_holds(
    fits: int, num_trips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = timed("splitnn")
    in_a_window_of(fits, monkeypatch)
    predicted(federation)
    assert federation.fabric.now() == num_trips * ROUND_TRIP


def test_beyond_the_window_the_link_is_four_fifths_full(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two ticks an answer: a window of 25 batches is what the link holds in 50 ticks.
    federation = timed("splitnn", bandwidth=64, latency=20)
    in_a_window_of(25, monkeypatch)
    predicted(federation)
    transfer = 2 * NUM_BATCHES
    assert federation.fabric.now() <= 40 + transfer / 0.8


def in_a_window_of(num_batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a window hold so many batches: eight rows of four floats from each of two parties."""
    monkeypatch.setattr(window, "_GUESSED_BYTES_PER_ROW", 32.0)
    limited = partial(ask_in_window, window_bytes=num_batches * 8 * 32)
    monkeypatch.setattr("colonnade.core.federation.ask_in_window", limited)


@pytest.mark.parametrize("method", ["splitnn", "laser", "easter", "ensemble", "aggvfl"])
def test_answers_are_those_of_one_batch_after_the_other(method: str) -> None:
    federation = timed(method)
    plan = federation.holder.parts["validation"].plan
    at_once = federation.predictions("validation", plan, each=True)
    beside = make_federation(
        2,
        method=METHODS[method](),
        combine="mean" if method in ("laser", "easter") else "concat",
        num_samples=8,
        num_validation=8 * NUM_BATCHES,
    )
    answers: dict[int, Any] = {}
    for number in range(NUM_BATCHES):
        # All others are known: each batch is asked for alone.
        others = {other: None for other in range(NUM_BATCHES) if other != number}
        with pytest.raises(AttributeError):
            beside.predictions(
                "validation", plan, each=True, known=others, finished=answers.__setitem__
            )
    alone = beside.predictions("validation", plan, each=True, known=answers)
    assert torch.equal(at_once.outputs, alone.outputs)
    assert at_once.used == alone.used
    assert at_once.each.keys() == alone.each.keys()
    for name, item in at_once.each.items():
        assert torch.equal(item.outputs, alone.each[name].outputs)


def test_known_batches_are_not_asked_for_again() -> None:
    federation = timed("splitnn")
    found: dict[int, Any] = {}
    whole = predicted(federation, finished=found.__setitem__)
    assert sorted(found) == list(range(NUM_BATCHES))
    calls = federation.fabric.meter.parties["p0"].calls
    del found[5], found[9]
    again: dict[int, Any] = {}
    assert torch.equal(predicted(federation, known=found, finished=again.__setitem__), whole)
    assert sorted(again) == [5, 9]
    assert federation.fabric.meter.parties["p0"].calls == calls + 2


def test_a_window_holds_what_fits() -> None:
    federation = timed("splitnn")
    fabric, num_begun, seen = federation.fabric, 0, []

    def question(number: int) -> Question[int]:
        async def asked(lane: Fabric) -> int:
            nonlocal num_begun
            num_begun += 1
            await Parties(lane).ask("local_steps")
            return number

        return Question(num_rows=100, begin=asked)

    answers = fabric.run(
        ask_in_window(
            fabric,
            [question(number) for number in range(9)],
            window_bytes=4 * 102_400,
            finished=lambda place, answer: seen.append(num_begun),
        )
    )
    assert answers == list(range(9))
    # Four as long as the size of an answer is a guess; then it is known to be small.
    assert seen == [4, *[9] * 8]


class _Silent(InProcess):
    """One party answers nothing from its third call on; time passes while one waits."""

    is_immediate = False
    tick = 0

    def now(self) -> int:
        return self.tick

    async def receive(self, deadline: int | None) -> Reply | None:
        while self._replies and self._replies[0].party == "p1" and self._replies[0].id > 4:
            self._replies.popleft()
        if self._replies:
            # Every reply takes longer than half the patience.
            self.tick += 60
            return replace(self._replies.popleft(), tick=self.tick)
        assert deadline is not None
        self.tick = deadline + 1
        return None

    def aside(self, parts: Any = None) -> Fabric:
        return self


@pytest.mark.parametrize("then", ["stop", "continue"])
def test_silence_counts_from_the_last_reply(then: Any) -> None:
    federation = make_federation(
        2,
        method=METHODS["laser"](heads="label_holder"),
        combine="mean",
        num_samples=8,
        num_validation=32,
        patience=Patience(timeout=100, then=then),
    )
    federation.fabric = _Silent(federation.fabric.parties)
    plan = federation.holder.parts["validation"].plan
    if then == "stop":
        with pytest.raises(NoAnswer, match="p1"):
            federation.predictions("validation", plan)
        return
    # Six replies at 60 ticks each: without new patience the last ones would be late.
    used = federation.predictions("validation", plan).used
    assert [used[batch * 8] for batch in range(4)] == [("p0", "p1")] * 2 + [("p0",)] * 2


def test_what_one_question_raises_ends_them_all() -> None:
    federation = timed("splitnn")

    def question(is_bad: bool) -> Question[None]:
        async def asked(lane: Fabric) -> None:
            await Parties(lane).ask("local_steps")
            if is_bad:
                raise RuntimeError("this one")

        return Question(num_rows=1, begin=asked)

    run: Callable[..., Any] = federation.fabric.run
    with pytest.raises(RuntimeError, match="this one"):
        run(ask_in_window(federation.fabric, [question(k == 1) for k in range(3)]))
