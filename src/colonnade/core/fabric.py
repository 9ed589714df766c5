"""A fabric carries calls to parties and replies back; a clock counts its ticks.

A fabric implements three things: ``send``, ``receive`` and a ``clock``. Everything that methods may
do with them (ask all, tell all, arrivals, deadlines) is written once, in ``core.parties``.

One tick is one millisecond, on every fabric: measured on the real ones, exact on the simulated one.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from colonnade.core.errors import ProtocolError
from colonnade.core.messages import Call, Reply

__all__ = [
    "TICKS_PER_SECOND",
    "UNBOUNDED",
    "Clock",
    "Fabric",
    "Meter",
    "RealClock",
    "Traffic",
    "drive",
]

T = TypeVar("T")

TICKS_PER_SECOND = 1000

# So many units of work fit where work costs no time.
UNBOUNDED = 10_000


class Clock(Protocol):
    """What tells the time at one participant."""

    def now(self) -> int:
        """The current tick."""

    def begin(self) -> None:
        """Note that a unit of work begins."""

    def work(self, kind: str) -> None:
        """Note that one unit of work (``encode``, ``step`` or ``fuse``) was done.

        On a simulated clock this is what makes time pass.
        """

    def fits(self, kind: str, deadline: int) -> bool:
        """Whether to begin one more unit of work: it ends in time, as far as one can know."""

    def num_fitting(self, kind: str, timeout: int) -> int:
        """How many units of work will fit into so many ticks, as far as one can tell."""


class RealClock:
    """The machine's monotonic clock; work takes the time that it takes."""

    def __init__(self) -> None:
        self._began = 0.0
        self._seconds: dict[str, float] = {}

    def now(self) -> int:
        """Milliseconds of the monotonic clock."""
        return time.monotonic_ns() // 1_000_000

    def begin(self) -> None:
        """Remember when."""
        self._began = time.perf_counter()

    def work(self, kind: str) -> None:
        """Real time passes by itself; how much it was is remembered."""
        self._seconds[kind] = time.perf_counter() - self._began

    def fits(self, kind: str, deadline: int) -> bool:
        """Until the deadline itself."""
        return self.now() < deadline

    def num_fitting(self, kind: str, timeout: int) -> int:
        """By how long the last unit took; 1 before there was any."""
        seconds = self._seconds.get(kind)
        return 1 if not seconds else int(timeout / TICKS_PER_SECOND / seconds)


@dataclass
class Traffic:
    """What one party sent, received and computed."""

    bytes_up: int = 0
    bytes_down: int = 0
    calls: int = 0
    seconds_computing: float = 0.0


@dataclass
class Meter:
    """What crossed each link, as the fabric measured it."""

    parties: dict[str, Traffic] = field(default_factory=dict)
    # The label holder's own block is at its side: nothing crosses a link.
    local: frozenset[str] = frozenset()

    def sent(self, party: str, num_bytes: int) -> None:
        """A call went down to a party."""
        traffic = self.parties[party]
        traffic.calls += 1
        if party not in self.local:
            traffic.bytes_down += num_bytes

    def received(self, party: str, num_bytes: int) -> None:
        """A reply came up from a party."""
        if party not in self.local:
            self.parties[party].bytes_up += num_bytes

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {name: vars(traffic).copy() for name, traffic in self.parties.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        for name, values in state.items():
            self.parties[name] = Traffic(**values)


class Fabric(ABC):
    """Carries calls to parties and replies back."""

    def __init__(self, names: tuple[str, ...], *, local: frozenset[str] = frozenset()) -> None:
        # Sorted: results must not depend on the order in which parties were listed.
        self.names = tuple(sorted(names))
        self.meter = Meter({name: Traffic() for name in self.names}, local)

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """The label holder's clock."""

    def now(self) -> int:
        """The current tick at the label holder."""
        return self.clock.now()

    @abstractmethod
    def send(self, call: Call) -> None:
        """Put a call on its way. Calls to one party arrive in the order they were sent."""

    @abstractmethod
    async def receive(self, deadline: int | None) -> Reply | None:
        """The next reply, in order of arrival; None when the deadline (a tick) passed first.

        A reply that arrives exactly at the deadline is in time. Without a deadline, raises
        Deadlock when nothing is on its way.
        """

    @abstractmethod
    async def settle(self) -> list[Reply]:
        """Wait until every call that was sent is done; those that failed, left where they are."""

    @abstractmethod
    def elapsed_seconds(self) -> float:
        """Seconds since the fabric began, on its own clock."""

    @abstractmethod
    def aside(self) -> Fabric:
        """The same parties for evaluation and prediction: neither timed nor counted as training."""

    @abstractmethod
    async def keep(self, tag: str) -> None:
        """Have every party keep its own state, at its own place, under a tag."""

    @abstractmethod
    async def retain(self, newest: str, best: str) -> None:
        """Have every party let go of every kept state but these two."""

    @abstractmethod
    async def fetch(self, tag: str) -> None:
        """Have every party go back to its own state under a tag."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What is in flight and the clock, for a checkpoint between exchanges."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a method's coroutine to its end."""
        return drive(coroutine)

    def close(self) -> None:  # noqa: B027 - most fabrics hold nothing open
        """Let go of connections and threads."""


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose awaits never suspend (fabrics without an event loop)."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise ProtocolError(
        "the method awaited something other than what Parties offers; "
        "use ask, tell, start and arrival only"
    )
