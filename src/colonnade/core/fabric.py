"""A fabric carries calls to parties and replies back; a clock counts its ticks.

A fabric implements four things: ``clock``, ``send``, ``receive`` and ``aside``. Everything that
methods may do with them (ask all, tell all, arrivals, deadlines) is written once, in
``core.parties``. The rest has defaults for a fabric on which a call is done once it is sent.

One tick is one millisecond, on every fabric: measured on the real ones, exact on the simulated one.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import coroutine as awaitable_generator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from torch import Tensor

from colonnade.core.errors import ProtocolError
from colonnade.core.messages import Batch, Call, Reply, Value
from colonnade.core.timeline import Timeline

if TYPE_CHECKING:
    from colonnade.core.party import Part

__all__ = [
    "TICKS_PER_SECOND",
    "UNBOUNDED",
    "Clock",
    "Cut",
    "EngineWork",
    "Fabric",
    "Meter",
    "NotYet",
    "RealClock",
    "Traffic",
    "drive",
    "isolated",
    "not_yet",
    "num_call_bytes",
    "num_payload_bytes",
]

T = TypeVar("T")

# What a run does besides the work of its method.
EngineWork = Literal["exchange", "evaluation", "checkpoint"]

TICKS_PER_SECOND = 1000

# By so many units of a kind a real clock tells how long the next one takes: at least some, however
# old they are, and more of the last moments. On a machine that others use too, a few of those were
# interrupted, and the next one may be.
_LEAST_REMEMBERED = 5
_MOST_REMEMBERED = 20
_REMEMBERED_SECONDS = 0.1

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
        # By kind, when the last units ended and how long they took, newest first.
        self._last: dict[str, deque[tuple[float, float]]] = {}
        # By kind, how many units were done and how long they took together.
        self.num_units: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}

    def now(self) -> int:
        """Milliseconds of the monotonic clock."""
        return time.monotonic_ns() // 1_000_000

    def begin(self) -> None:
        """Remember when."""
        self._began = time.perf_counter()

    def work(self, kind: str) -> None:
        """Real time passes by itself; how much it was is remembered."""
        now = time.perf_counter()
        took = now - self._began
        self._last.setdefault(kind, deque(maxlen=_MOST_REMEMBERED)).appendleft((now, took))
        self.num_units[kind] += 1
        self.seconds[kind] = self.seconds.get(kind, 0.0) + took

    def fits(self, kind: str, deadline: int) -> bool:
        """By how long the last units took; before there was any, until the deadline itself."""
        needed = self._at_most(kind)
        if kind == "step" and needed:
            needed += self._at_most("encode")  # which every local step begins with
        return deadline * 1_000_000 - time.monotonic_ns() >= needed * 1e9

    def num_fitting(self, kind: str, timeout: int) -> int:
        """By how long the last units took; 1 before there was any."""
        # The shorter of the last two: one that was interrupted says nothing of the next.
        seconds = min([took for _, took in self._last.get(kind, ())][:2], default=0.0)
        return 1 if not seconds else int(timeout / TICKS_PER_SECOND / seconds)

    def _at_most(self, kind: str) -> float:
        """Seconds that the next unit hardly exceeds: all but one of the last took no longer.

        Whoever goes on after the deadline holds everybody up, so this rather errs upwards.
        """
        since = time.perf_counter() - _REMEMBERED_SECONDS
        last = enumerate(self._last.get(kind, ()))
        known = [took for at, (end, took) in last if at < _LEAST_REMEMBERED or end >= since]
        return sorted(known or (0.0,))[-2:][0]

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Do something else inside that is no part of the unit of work under way."""
        worked = time.perf_counter() - self._began
        try:
            yield
        finally:
            self._began = time.perf_counter() - worked


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


def isolated(value: Value) -> Value:
    """A copy without autograd graph that shares no memory with the original."""
    if isinstance(value, Tensor):
        return (value.detach() if value.requires_grad else value).clone()
    # Before tables: whether something is a Mapping takes longer to find out than all else here.
    if value is None or isinstance(value, Batch | int | float | str):
        return value
    if isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(item, Tensor | float | int | str)
        for key, item in value.items()
    ):
        return {key: isolated(item) for key, item in value.items()}  # type: ignore[return-value]
    raise ProtocolError(
        f"a {type(value).__name__} can't cross a link; tensors, batches, numbers, texts and "
        "tables of tensors or numbers can"
    )


def num_payload_bytes(value: Value) -> int:
    """Bytes of the value itself: tensors in full, a batch or a number as 8, a text as UTF-8."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if value is None:
        return 0
    if type(value) is Batch or type(value) is int:
        return 8
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, Mapping):
        return sum(len(key.encode()) + num_payload_bytes(item) for key, item in value.items())
    return 8


def num_call_bytes(call: Call) -> int:
    """Bytes of all that a call carries: its arguments, and the sum that its answer is part of."""
    num_bytes = sum(map(num_payload_bytes, call.arguments))
    if call.summand is not None:
        num_bytes += 8 + sum(len(name.encode()) for name in call.summand.names)
    return num_bytes


@dataclass(frozen=True)
class Cut:
    """A moment of a run on every link: before it is what the label holder had sent by then.

    A party answers in order. So the replies to calls before the cut are those that come before the
    party's first answer to a call through ``aside``; they are gathered in ``replies``.
    """

    aside: Fabric
    replies: list[Reply]


class Fabric(ABC):
    """Carries calls to parties and replies back."""

    def __init__(self, names: tuple[str, ...], *, local: frozenset[str] = frozenset()) -> None:
        # Sorted: results must not depend on the order in which parties were listed.
        self.names = tuple(sorted(names))
        self.meter = Meter({name: Traffic() for name in self.names}, local)
        # Where it notes what everybody did when, if somebody wants to know.
        self.timeline: Timeline | None = None
        self._began = time.perf_counter()

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """The label holder's clock."""

    @property
    def work_clock(self) -> Clock:
        """What the label holder's own work is measured by: its clock, unless work is declared."""
        return self.clock

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
    def aside(self, parts: Mapping[str, Mapping[str, Part]] | None = None) -> Fabric:
        """The same parties for evaluation and prediction: neither timed nor counted as training.

        Args:
            parts: By party, the samples to predict in place of its own parts.
        """

    # Whether every call is done as soon as it is sent, so that nobody ever waits for real.
    answers_at_once: ClassVar[bool] = True
    # Whether a call is answered some day, however late: then nobody who is away is asked anew.
    keeps_calls: ClassVar[bool] = False
    # Whether a call is done when ``send`` returns: then nothing is gained by several at once.
    is_immediate: ClassVar[bool] = False
    # Whether its seconds are the machine's, or those of a virtual clock.
    has_real_time: ClassVar[bool] = True

    async def settle(self) -> list[Reply]:
        """Wait until every call that was sent is done; those that failed, left where they are."""
        return []

    def hand_out(self) -> None:  # noqa: B027
        """Have all calls leave now: whoever sent them will compute before it waits."""

    def do_meanwhile(self, works: Iterable[Callable[[], None]]) -> None:
        """Do what there is to do besides the method's own work, while parties compute."""
        for work in works:
            work()

    def last_before(self, tick: int) -> int:
        """The last tick that ``receive`` waits for so that it is this one afterwards."""
        return tick

    def pass_time(self, on: EngineWork) -> None:  # noqa: B027
        """Let pass what the run's own work takes; on a real clock it passes by itself."""

    def heard_since(self, party: str, tick: int) -> bool:
        """Whether anything came from a party after a tick, for whomever it was."""
        return False

    def silent_since(self, party: str) -> int | None:
        """The tick since which a party owes an answer without a sign of it; None if it owes none.

        Its answers count from their arrival, whether anybody has looked at them or not.
        """
        return None

    def owing(self) -> tuple[str, ...]:
        """Who owes an answer to a call through this fabric, or through one aside of it."""
        return ()

    def cut(self) -> Cut:
        """Begin a cut through all links, for a checkpoint while calls are under way."""
        return Cut(self.aside(), [])

    def elapsed_seconds(self) -> float:
        """Seconds since the fabric began, on its own clock."""
        return time.perf_counter() - self._began

    def state(self) -> dict[str, Any]:
        """What is in flight and the clock, for a checkpoint between exchanges."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Put back what ``state`` gave."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a method's coroutine to its end."""
        return drive(coroutine)

    def close(self) -> None:  # noqa: B027 - most fabrics hold nothing open
        """Let go of connections and threads."""


class NotYet:
    """No answer is here: how to wait for one, and until which tick (None: for ever)."""

    __slots__ = ("limit", "wait")

    def __init__(self, wait: Callable[[], object], limit: int | None) -> None:
        self.wait = wait
        self.limit = limit


@awaitable_generator
def not_yet(wait: Callable[[], object], limit: int | None) -> Generator[NotYet, None, None]:
    """Suspend until somebody has waited, or has looked in again."""
    yield NotYet(wait, limit)


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, waiting for answers where it needs them."""
    failure: BaseException | None = None
    while True:
        try:
            waiting = coroutine.send(None) if failure is None else coroutine.throw(failure)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if not isinstance(waiting, NotYet):
            coroutine.close()
            raise ProtocolError(
                "the method awaited something other than what Parties offers; "
                "use ask, tell, start and arrival only"
            )
        failure = None
        try:
            waiting.wait()
        except BaseException as error:
            failure = error  # raised where the coroutine waits
