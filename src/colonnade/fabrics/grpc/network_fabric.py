"""The fabric whose parties are elsewhere: calls leave over the hub's links.

Calls are written out together when the method begins to wait, so that a synchronous step costs one
round trip. A party of the label holder's own runs in this process.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from colonnade.core.errors import ConfigError, Deadlock, NoAnswer, ProtocolError
from colonnade.core.fabric import (
    TICKS_PER_SECOND,
    Clock,
    Cut,
    Fabric,
    not_yet,
    num_call_bytes,
    num_payload_bytes,
)
from colonnade.core.messages import Call, Reply, pack_reply, unpack_reply
from colonnade.core.parties import Patience
from colonnade.core.party import Part
from colonnade.fabrics.grpc.answer_times import AnswerTimes
from colonnade.fabrics.grpc.arrivals import Delivery
from colonnade.fabrics.grpc.link_session import Session

__all__ = ["GrpcFabric", "Pull"]


class GrpcFabric(Fabric):
    """Parties on the hub's links, as one session has them; or beside the fabric that trains."""

    answers_at_once = False
    keeps_calls = True
    # Whether replies are taken up when all that are awaited are here, or the time is over.
    gathers = False
    # Whether bytes, and who did what for how long, are counted.
    is_measured = True

    def __init__(self, session: Session, beside: GrpcFabric | None = None) -> None:
        super().__init__(session.names, local=session.local)
        self._session = session
        self._markers: list[_Marker] = []
        self._ready: deque[Reply] = deque()
        # Calls that want a reply and have none yet, by party.
        self._awaited: Counter[str] = Counter()
        self._num_told = 0
        self._asides: weakref.WeakSet[GrpcFabric] = weakref.WeakSet()
        self._confirmed: set[str] = set()
        self._times = AnswerTimes(session.names)
        self._of = beside

    @property
    def clock(self) -> Clock:
        """The machine's."""
        return self._session.clock

    @property
    def num_lost(self) -> int:
        """Calls given up because their party took none for too long."""
        return self._session.num_lost

    def send(self, call: Call) -> None:
        """Put a call on its way; it is written out at the next wait, or a moment later."""
        was_sent = self._session.send(call.party, call, self)
        if self.is_measured:
            self.meter.sent(call.party, num_call_bytes(call))
        if not was_sent:
            return
        if self.is_measured:
            self._times.call(call.party, wants_reply=call.wants_reply)
        self._awaited[call.party] += call.wants_reply
        self._num_told += not call.wants_reply

    def take(self, delivery: Delivery) -> None:
        """A reply that arrived for this fabric."""
        reply, seconds = delivery.reply, delivery.seconds
        if self._of is not None and self._of.claim(reply.party, seconds):
            seconds = 0.0
        if self.is_measured:
            self.meter.parties[reply.party].seconds_computing += seconds
        if reply.id < 0:
            self._confirmed.add(reply.party)
            self._times.done(reply.party)
            return
        self._awaited[reply.party] -= delivery.was_awaited
        self._ready.append(reply)
        if self.is_measured:
            self.meter.received(reply.party, num_payload_bytes(reply.value))
            self._note_answer(reply, seconds, delivery.was_awaited)
        if self._markers:
            for marker in self._markers:
                marker.came_before(reply)
            self._markers = [marker for marker in self._markers if marker.is_open]

    async def receive(self, deadline: int | None) -> Reply | None:
        """The next reply; suspends its coroutine until one is here."""
        self.hand_out()
        began, has_looked = self.elapsed_seconds(), False
        while not self._ready:
            if deadline is None:
                self._refuse_to_wait_in_vain()
            elif has_looked and self.now() > deadline:
                self._note_wait(began, None)
                return None
            if not self._ready:
                await not_yet(Pull(self, deadline), deadline)
                has_looked = True
        if has_looked:
            self._note_wait(began, self._ready[0].party)
        if deadline is not None and self._ready[0].tick > deadline:
            return None
        return self._ready.popleft()

    @property
    def session(self) -> Session:
        """The links that it is on."""
        return self._session

    @property
    def num_wanted(self) -> int:
        """How many replies have to be here before it goes on."""
        return max(1, self._awaited.total()) if self.gathers else 1

    def _refuse_to_wait_in_vain(self) -> None:
        if self._awaited.total() > 0:
            return
        # Something told may still have failed; nothing else can come.
        if self._num_told:
            self._confirm(None)
        if not self._ready:
            raise Deadlock("no call is in flight, so no reply will come", tick=self.now())

    def _note_wait(self, began: float, party: str | None) -> None:
        if self.timeline is not None:
            self.timeline.note(None, "waiting", began, self.elapsed_seconds(), party)

    def _note_answer(self, reply: Reply, seconds: float, was_awaited: bool) -> None:
        now = self.elapsed_seconds()
        came = now - (self.now() - reply.tick) / TICKS_PER_SECOND
        spans = self._times.answer(reply.party, came, now, seconds, was_awaited=was_awaited)
        for state, begin, end in spans:
            if self.timeline is not None:
                self.timeline.note(reply.party, state, begin, end)

    def claim(self, party: str, seconds: float) -> bool:
        """Count what a party said of its work to a fabric beside, if it was told something here."""
        if is_ours := self._times.claim(party, seconds):
            self.meter.parties[party].seconds_computing += seconds
        return is_ours

    def hand_out(self) -> None:
        """Have all calls written to the streams, those of the fabric that this is beside too."""
        for fabric in (self, self._of):
            if fabric is not None and fabric.is_measured:
                fabric._times.leave(fabric.elapsed_seconds())
        self._session.write_out()

    def do_meanwhile(self, works: Iterable[Callable[[], None]]) -> None:
        """Do it; it is no part of the label holder's update."""
        with self._session.clock.interrupted():
            super().do_meanwhile(works)

    def last_before(self, tick: int) -> int:
        """The one before: a wait for a tick lasts until that has passed."""
        return tick - 1

    def heard_since(self, party: str, tick: int) -> bool:
        """Whether anything came from a party after a tick, for any fabric of the session."""
        return self._session.signs(party).heard > tick

    def silent_since(self, party: str) -> int | None:
        """Since when it owes an answer to any fabric of the session, without a sign of it."""
        return self._session.signs(party).silent_since

    def cut(self) -> Cut:
        """Gather what comes from each party until it has answered the cut's own call."""
        marker = _Marker(self._session, self)
        self._markers.append(marker)
        return Cut(marker, marker.replies)

    async def settle(self) -> list[Reply]:
        """Ask every party whether all is done, and wait for that."""
        silent = self._confirm(self._session.timeout)
        if silent and self._session.patience.then == "stop":
            raise _silent(silent, "finish what it was told", self._session.patience)
        return [reply for reply in self._ready if reply.failure is not None]

    def _confirm(self, timeout: float | None) -> tuple[str, ...]:
        """Have every party answer that all calls before are done; those that did not."""
        self._confirmed.clear()
        self._num_told = 0
        asked = [name for name in self.names if self._session.send(name, None, self)]
        self._session.write_out()
        until = None if timeout is None else time.monotonic() + timeout
        while not self._confirmed.issuperset(asked):
            left = None if until is None else until - time.monotonic()
            if (left is not None and left <= 0) or not self._session.pull(left):
                break
        return tuple(name for name in self.names if name not in self._confirmed)

    def aside(self, parts: Mapping[str, Mapping[str, Part]] | None = None) -> GrpcFabric:
        """The same links, with a meter of its own."""
        if parts is not None:
            raise ConfigError(
                "parties elsewhere predict samples of their own tables; give ids, not blocks"
            )
        made = GrpcFabric(self._session, self._of or self)
        self._asides.add(made)
        return made

    def owing(self) -> tuple[str, ...]:
        """Who has not answered every call yet."""
        found = {name for name, number in self._awaited.items() if number > 0}
        return tuple(sorted(found.union(*(item.owing() for item in self._asides))))

    def state(self) -> dict[str, Any]:
        """Replies that nobody has waited for yet; those on their way are gathered by a cut."""
        return {"replies": [pack_reply(replace(item, tick=0)) for item in self._ready]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave; replies are as fresh as on the day they came."""
        now = self.now()
        self._ready = deque(replace(unpack_reply(item), tick=now) for item in state["replies"])

    def close(self) -> None:
        """End the session; the hub goes on listening."""
        self._session.close()


class Pull:
    """How a fabric waits for its next reply, until a tick: in a thread, or on the event loop."""

    __slots__ = ("_deadline", "_fabric")

    def __init__(self, fabric: GrpcFabric, deadline: int | None) -> None:
        self._fabric, self._deadline = fabric, deadline

    def __call__(self) -> None:
        """Wait in this thread."""
        left = None if self._deadline is None else _seconds_to(self._deadline)
        self._fabric.session.pull(left, self._fabric.num_wanted)

    async def on_loop(self) -> None:
        """Wait on the links' event loop."""
        if self._deadline is None:
            raise ProtocolError("nobody waits on the event loop without a deadline")
        await self._fabric.session.pull_on_loop(
            _seconds_to(self._deadline), self._fabric.num_wanted
        )


def _seconds_to(deadline: int) -> float:
    # A tick that has begun is not over: wait into the next one. Ticks are the monotonic clock's;
    # counted in whole ones, the wait would last for up to one more.
    return max(0.0, (deadline + 1) / TICKS_PER_SECOND - time.monotonic())


class _Marker(GrpcFabric):
    """The way aside of a cut: a party's first answer on it ends what came before."""

    def __init__(self, session: Session, beside: GrpcFabric) -> None:
        super().__init__(session, beside)
        self.replies: list[Reply] = []
        self._open = set(self.names)

    @property
    def is_open(self) -> bool:
        """Whether a party has not answered yet."""
        return bool(self._open)

    def came_before(self, reply: Reply) -> None:
        """A reply to another fabric's call."""
        if reply.party in self._open:
            self.replies.append(reply)

    def take(self, delivery: Delivery) -> None:
        """An answer to the cut's own call."""
        self._open.discard(delivery.reply.party)
        super().take(delivery)


def _silent(parties: tuple[str, ...], verb: str, patience: Patience) -> NoAnswer:
    names = ", ".join(f"'{name}'" for name in parties)
    return NoAnswer(
        f"no answer from {names} to '{verb}' within {patience.timeout} ticks; check that party, or "
        "raise patience.timeout",
        parties=parties,
    )
