"""A window: many questions of one kind in flight at once, each written as if it were alone.

A method's ``predict`` asks for one batch and waits. Run one after the other, 32 batches take 32
round trips. In a window every batch has a lane: a fabric of its own over the one fabric. When a
batch waits on its lane, the next one begins; a reply goes to the lane whose call it answers. The
method's text stays the same, on every fabric.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from colonnade.core.errors import ProtocolError
from colonnade.core.fabric import Clock, Fabric, num_payload_bytes
from colonnade.core.messages import Call, Reply

if TYPE_CHECKING:
    from colonnade.core.party import Part

__all__ = ["WINDOW_BYTES", "Question", "ask_in_window"]

T = TypeVar("T")

# So many bytes of answers are in flight, as far as one can tell before they come.
WINDOW_BYTES = 64 * 2**20
# Of all parties together, for one sample, until the first answer tells.
_GUESSED_BYTES_PER_ROW = 1024.0


@dataclass(frozen=True, kw_only=True)
class Question(Generic[T]):
    """One unit of work in a window: how many rows its answers have, and what asks for them."""

    num_rows: int
    begin: Callable[[Fabric], Coroutine[Any, Any, T]]


async def ask_in_window(
    fabric: Fabric,
    questions: Sequence[Question[T]],
    *,
    window_bytes: int = WINDOW_BYTES,
    finished: Callable[[int, T], None] | None = None,
) -> list[T]:
    """Have all questions answered, as many at once as fit into the window.

    Args:
        fabric: What carries the calls of all of them.
        questions: In the order in which they begin.
        window_bytes: How many bytes of answers may be in flight. One question always may.
        finished: Told the place and the answer of each question, as it ends.

    Returns:
        The answers, in the order of the questions.

    Raises:
        ColonnadeError: What a question raised; those still under way are given up.
    """
    window = _Window(fabric, questions, window_bytes, finished)
    try:
        return await window.run()
    finally:
        window.close()


class _Waiting:
    """Awaited on a lane: hands its deadline to the window, gets the reply or None."""

    def __init__(self, deadline: int | None) -> None:
        self.deadline = deadline

    def __await__(self) -> Generator[int | None, Reply | None, Reply | None]:
        return (yield self.deadline)


class _Lane(Fabric):
    """The fabric as one question sees it."""

    def __init__(self, window: _Window[Any], place: int, num_rows: int) -> None:
        super().__init__(window.fabric.names, local=window.fabric.meter.local)
        self.meter = window.fabric.meter
        self.place, self.num_rows, self.num_bytes = place, num_rows, 0
        # The tick until which it waits, and since when.
        self.deadline: int | None = None
        self.since = 0
        self._window = window

    @property
    def clock(self) -> Clock:
        """The fabric's own."""
        return self._window.fabric.clock

    def send(self, call: Call) -> None:
        """Send under a number that no other lane uses."""
        self._window.send(call, self)

    async def receive(self, deadline: int | None) -> Reply | None:
        """Let the others go on until a reply is there, or the deadline has passed."""
        return await _Waiting(deadline)

    def heard_since(self, party: str, tick: int) -> bool:
        """As the fabric knows it."""
        return self._window.fabric.heard_since(party, tick)

    def aside(self, parts: Mapping[str, Mapping[str, Part]] | None = None) -> Fabric:
        """There is nothing beside a lane."""
        raise ProtocolError("a question in a window asks the parties it was given")


class _Window(Generic[T]):
    def __init__(
        self,
        fabric: Fabric,
        questions: Sequence[Question[T]],
        window_bytes: int,
        finished: Callable[[int, T], None] | None,
    ) -> None:
        self.fabric = fabric
        self._window_bytes = window_bytes
        self._finished = finished
        self._unbegun = deque(enumerate(questions))
        self._under_way: dict[_Lane, Coroutine[Any, Any, T]] = {}
        self._answers: dict[int, T] = {}
        # By the number of a call: whose it is, and its number there.
        self._calls: dict[int, tuple[_Lane, int]] = {}
        self._num_calls = 0
        self._bytes_per_row = _GUESSED_BYTES_PER_ROW
        self._last_arrival = 0

    def send(self, call: Call, lane: _Lane) -> None:
        number = self._num_calls
        self._num_calls += 1
        self._calls[number] = (lane, call.id)
        self.fabric.send(replace(call, id=number))

    async def run(self) -> list[T]:
        while self._unbegun or self._under_way:
            while self._unbegun and self._has_room(self._unbegun[0][1].num_rows):
                self._begin(*self._unbegun.popleft())
            if not self._under_way:
                continue
            until = self._earliest()
            reply = await self.fabric.receive(until)
            if reply is None:
                self._let_go(until)
            else:
                self._pass_on(reply)
        return [self._answers[place] for place in range(len(self._answers))]

    def close(self) -> None:
        for coroutine in self._under_way.values():
            coroutine.close()
        self._under_way.clear()

    def _has_room(self, num_rows: int) -> bool:
        rows = num_rows + sum(lane.num_rows for lane in self._under_way)
        return not self._under_way or rows * self._bytes_per_row <= self._window_bytes

    def _begin(self, place: int, question: Question[T]) -> None:
        lane = _Lane(self, place, question.num_rows)
        self._under_way[lane] = question.begin(lane)
        self._go_on(lane, None)

    def _go_on(self, lane: _Lane, reply: Reply | None) -> None:
        """Run a question until it waits again, or ends."""
        try:
            deadline = self._under_way[lane].send(reply)
        except StopIteration as stop:
            del self._under_way[lane]
            self._answers[lane.place] = stop.value
            if lane.num_bytes:
                self._bytes_per_row = lane.num_bytes / max(lane.num_rows, 1)
            if self._finished is not None:
                self._finished(lane.place, stop.value)
            return
        except BaseException:
            del self._under_way[lane]
            raise
        if deadline != lane.deadline:
            lane.deadline, lane.since = deadline, self.fabric.now()

    def _pass_on(self, reply: Reply) -> None:
        self._last_arrival = max(self._last_arrival, reply.tick)
        lane, number = self._calls.pop(reply.id, (None, 0))
        # A reply to a question that went on without it is late: nobody waits for it.
        if lane is None or lane not in self._under_way:
            return
        lane.num_bytes += num_payload_bytes(reply.value)
        self._go_on(lane, replace(reply, id=number))

    def _until(self, lane: _Lane) -> int | None:
        """When a lane's patience ends: it counts from the last reply that came for anybody.

        In a window a reply waits for those before it. That is no silence of its party.
        """
        if lane.deadline is None:
            return None
        return lane.deadline + max(0, self._last_arrival - lane.since)

    def _earliest(self) -> int | None:
        ends = [until for lane in self._under_way if (until := self._until(lane)) is not None]
        return min(ends, default=None)

    def _let_go(self, until: int | None) -> None:
        """Tell those whose patience ended that nothing came."""
        assert until is not None
        for lane in list(self._under_way):
            own = self._until(lane)
            if own is not None and own <= until and lane in self._under_way:
                self._go_on(lane, None)
