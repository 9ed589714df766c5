"""The fabric whose parties are elsewhere: calls leave over the hub's links.

What is told and asked next is written out together when the method begins to wait, so that a
synchronous step costs one round trip. The label holder's own block, where it has one, is worked on
at its side, in a thread of its own.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from colonnade.core.errors import Deadlock, Diverged, NoAnswer, PartyFailed
from colonnade.core.fabric import TICKS_PER_SECOND, Clock, Fabric, RealClock
from colonnade.core.messages import (
    Call,
    Reply,
    num_call_bytes,
    num_payload_bytes,
    pack_reply,
    unpack_reply,
)
from colonnade.core.parties import Patience
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.posts import Arrivals, Delivery, Lost, Post
from colonnade.fabrics.local import isolated_call

__all__ = ["GrpcFabric", "Session"]


class _Desk:
    """The label holder's own party: same verbs, a link of no length, calls in order."""

    def __init__(self, respondent: Respondent, arrivals: Arrivals, clock: Clock) -> None:
        self._respondent = respondent
        self._arrivals = arrivals
        self._clock = clock
        self._work: queue.SimpleQueue[tuple[Call | None, Any] | None] = queue.SimpleQueue()
        name = f"colonnade {respondent.name}"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def send(self, call: Call | None, to: Any) -> None:
        self._work.put((None if call is None else isolated_call(call), to))

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _serve(self) -> None:
        seconds = 0.0
        while (item := self._work.get()) is not None:
            call, to = item
            if call is None:
                reply = Reply(-1, self._respondent.name, 0)
            else:
                began = time.perf_counter()
                reply = self._respondent.execute(call)
                seconds += time.perf_counter() - began
            if call is None or call.wants_reply or reply.failure is not None:
                tick = self._clock.now()
                awaited = call is None or call.wants_reply
                delivery = Delivery(to, replace(reply, tick=tick), seconds, awaited)
                self._arrivals.put(delivery)
                seconds = 0.0


class Session:
    """One use of the links, shared by a fabric and those beside it.

    ``purpose`` says what for: a party's agent decides by it who answers. ``at_side`` are
    respondents in this process. Patience bounds what the fabric does by itself (checkpoints,
    settling); a method's waits have their own deadlines.
    """

    def __init__(
        self,
        hub: Hub,
        parties: Iterable[str],
        *,
        purpose: str,
        at_side: Mapping[str, Respondent] | None = None,
        patience: Patience | None = None,
    ) -> None:
        own = dict(at_side or {})
        elsewhere = sorted(set(parties) - own.keys())
        self.names = (*elsewhere, *own)
        self.local = frozenset(own)
        self.clock = RealClock()
        self.patience = patience or Patience()
        self.num_lost = 0
        self._hub = hub
        self._arrivals: Arrivals = queue.SimpleQueue()
        self._posts: dict[str, Post] = hub.open(
            elsewhere, purpose=purpose, arrivals=self._arrivals, clock=self.clock
        )
        self._desks = {name: _Desk(item, self._arrivals, self.clock) for name, item in own.items()}
        self._has_unwritten = False

    @property
    def timeout(self) -> float | None:
        """The run's patience in seconds."""
        ticks = self.patience.timeout
        return None if ticks is None else ticks / TICKS_PER_SECOND

    def send(self, party: str, call: Call | None, to: GrpcFabric) -> bool:
        """Put a call on its way; False if it had to be given up, which the policy may allow."""
        desk = self._desks.get(party)
        if desk is not None:
            desk.send(call, to)
            return True
        self._has_unwritten = True
        post = self._posts[party]
        if post.send(call, to, 0.0):
            return True
        self.write_out()
        if post.send(call, to, self.timeout):
            return True
        if self.patience.then == "continue":
            self.num_lost += 1
            return False
        raise NoAnswer(
            f"party '{party}' takes up no calls, and {self._hub.links.outbox_bytes} bytes wait for "
            "it already; check that party, or raise patience.timeout",
            parties=(party,),
        )

    def write_out(self) -> None:
        """Have everything written that waits for company."""
        if self._has_unwritten:
            self._has_unwritten = False
            self._hub.wake(self._posts)

    def pull(self, timeout: float | None) -> bool:
        """Take in one thing that arrived; False when nothing did in time."""
        try:
            item = self._arrivals.get(timeout is None or timeout > 0, timeout)
        except queue.Empty:
            return False
        if isinstance(item, Lost):
            raise item.error
        item.to.take(item)
        return True

    def close(self) -> None:
        """Let go of links and threads."""
        self._hub.close_session(self._posts)
        for desk in self._desks.values():
            desk.close()


class GrpcFabric(Fabric):
    """Parties on the hub's links, as one session has them."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.names, local=session.local)
        self._session = session
        self._began = time.perf_counter()
        self._ready: deque[Reply] = deque()
        self._num_awaited = 0
        self._num_told = 0
        self._confirmed: set[str] = set()

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
        self.meter.sent(call.party, num_call_bytes(call))
        if not was_sent:
            return
        if call.wants_reply:
            self._num_awaited += 1
        else:
            self._num_told += 1

    def take(self, delivery: Delivery) -> None:
        """A reply that arrived for this fabric."""
        reply = delivery.reply
        self.meter.parties[reply.party].seconds_computing += delivery.seconds
        if reply.id < 0:
            self._confirmed.add(reply.party)
            return
        self._num_awaited -= delivery.was_awaited
        self.meter.received(reply.party, num_payload_bytes(reply.value))
        self._ready.append(reply)

    async def receive(self, deadline: int | None) -> Reply | None:
        """The next reply; waits here, in the caller's thread, while the links go on."""
        self._session.write_out()
        if deadline is None:
            return self._receive_at_last()
        while not self._ready:
            # A tick that has begun is not over: wait into the next one.
            left = (deadline + 1 - self.now()) / TICKS_PER_SECOND
            if not self._session.pull(max(0.0, left)) and self.now() > deadline:
                return None
        return self._ready.popleft() if self._ready[0].tick <= deadline else None

    def _receive_at_last(self) -> Reply:
        while not self._ready:
            if self._num_awaited <= 0:
                # Something told may still have failed; nothing else can come.
                if self._num_told:
                    self._confirm(None)
                if not self._ready:
                    raise Deadlock("no call is in flight, so no reply will come", tick=self.now())
            else:
                self._session.pull(None)
        return self._ready.popleft()

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

    def elapsed_seconds(self) -> float:
        """Real seconds since the fabric began."""
        return time.perf_counter() - self._began

    def aside(self) -> GrpcFabric:
        """The same links, with a meter of its own."""
        return GrpcFabric(self._session)

    async def keep(self, tag: str) -> None:
        """Every party keeps its own state; nothing is kept unless everybody did."""
        self._everybody("keep", tag)

    async def retain(self, newest: str, best: str) -> None:
        """Every party lets go of the others."""
        self._everybody("retain", newest, best)

    async def fetch(self, tag: str) -> None:
        """Every party goes back to a state of its own."""
        self._everybody("fetch", tag)

    def _everybody(self, verb: str, *arguments: str) -> None:
        beside = self.aside()
        for number, name in enumerate(self.names):
            beside.send(Call(number, name, verb, arguments, 0, True))
        beside._session.write_out()
        timeout = self._session.timeout
        until = None if timeout is None else time.monotonic() + timeout
        while len(beside._ready) < len(self.names):
            left = None if until is None else until - time.monotonic()
            if (left is not None and left <= 0) or not self._session.pull(left):
                answered = {reply.party for reply in beside._ready}
                silent = tuple(name for name in self.names if name not in answered)
                raise _silent(silent, verb, self._session.patience)
        for reply in sorted(beside._ready, key=lambda item: item.id):
            if reply.failure is None:
                continue
            if reply.failure.kind == "Diverged":
                raise Diverged(reply.failure.message, exchange=reply.exchange, party=reply.party)
            raise PartyFailed(
                f"party '{reply.party}' failed ({verb} {', '.join(arguments)}): "
                f"{reply.failure.kind}: {reply.failure.message}",
                party=reply.party,
            )

    def state(self) -> dict[str, Any]:
        """Replies that nobody has waited for yet, after everything under way is done."""
        silent = self._confirm(self._session.timeout)
        if silent:
            raise _silent(silent, "finish before a checkpoint", self._session.patience)
        return {"replies": [pack_reply(replace(item, tick=0)) for item in self._ready]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave; replies are as fresh as on the day they came."""
        now = self.now()
        self._ready = deque(replace(unpack_reply(item), tick=now) for item in state["replies"])

    def close(self) -> None:
        """End the session; the hub goes on listening."""
        self._session.close()


def _silent(parties: tuple[str, ...], verb: str, patience: Patience) -> NoAnswer:
    names = ", ".join(f"'{name}'" for name in parties)
    return NoAnswer(
        f"no answer from {names} to '{verb}' within {patience.timeout} ticks; check that party, or "
        "raise patience.timeout",
        parties=parties,
    )
