"""What fabrics have in common whose parties live in this process."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from operator import is_
from typing import Any

from colonnade.core.errors import Deadlock
from colonnade.core.fabric import (
    Clock,
    Fabric,
    RealClock,
    isolated,
    num_call_bytes,
    num_payload_bytes,
)
from colonnade.core.messages import Call, Reply, pack_reply, unpack_reply
from colonnade.core.party import Part, Party
from colonnade.core.respondent import Respondent

__all__ = ["InProcess", "LocalFabric", "isolated_call"]


def isolated_call(call: Call) -> Call:
    """The call as it arrives at the other end: no shared memory, no autograd graph."""
    arguments = tuple(map(isolated, call.arguments))
    if all(map(is_, arguments, call.arguments)):
        return call  # numbers, texts and batches, which nobody can change
    return Call(
        call.id,
        call.party,
        call.verb,
        arguments,
        call.exchange,
        call.wants_reply,
        call.summand,
    )


class CountedClock:
    """Time by declared work: every unit takes so many ticks, however fast the machine is.

    In one process all parties share a machine, so real time says nothing about any of them, and
    the same seed would give another model whenever the machine is busy.
    """

    def __init__(self, ticks_per_unit: int) -> None:
        self._each = ticks_per_unit
        self._tick = 0

    def now(self) -> int:
        """The ticks of all work so far."""
        return self._tick

    def begin(self) -> None:
        """Nothing: time passes when work is done."""

    def work(self, kind: str) -> None:
        """So many ticks have passed."""
        self._tick += self._each

    def fits(self, kind: str, deadline: int) -> bool:
        """Whether one more unit ends in time."""
        return self._tick + self._each <= deadline

    def num_fitting(self, kind: str, timeout: int) -> int:
        """How many units take so long."""
        return timeout // self._each


class LocalFabric(Fabric):
    """Parties in this process, reached through their verbs only."""

    def __init__(
        self, parties: Mapping[str, Respondent], *, local: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(tuple(parties), local=local)
        self.parties = {name: parties[name] for name in self.names}

    @abstractmethod
    def send(self, call: Call) -> None:
        """Put a call on its way."""

    def aside(self, parts: Mapping[str, Mapping[str, Part]] | None = None) -> Fabric:
        """The same parties, directly; over other samples, views of them."""
        if parts is None:
            return InProcess(self.parties)
        return InProcess(
            {
                name: item.over(parts.get(name, {}))
                for name, item in self.parties.items()
                if isinstance(item, Party)
            }
        )


class InProcess(LocalFabric):
    """Runs a call as soon as it is sent: the default, and the fastest on one machine.

    Nothing is serialised; values are copied once at each crossing, so that neither side can
    change what the other holds. Replies arrive in the order in which calls were sent.
    """

    is_immediate = True

    def __init__(
        self,
        parties: Mapping[str, Respondent],
        *,
        local: frozenset[str] = frozenset(),
        ticks_per_unit: int | None = None,
    ) -> None:
        super().__init__(parties, local=local)
        self._clock = RealClock()
        self._work_clock: Clock = self._clock
        if ticks_per_unit is not None:
            self._work_clock = CountedClock(ticks_per_unit)
            for party in self.parties.values():
                if isinstance(party, Party):
                    party.clock = CountedClock(ticks_per_unit)
        self._replies: deque[Reply] = deque()

    @property
    def clock(self) -> Clock:
        """The machine's."""
        return self._clock

    @property
    def work_clock(self) -> Clock:
        """Declared work where it is counted; the machine's clock otherwise."""
        return self._work_clock

    def send(self, call: Call) -> None:
        """Run the call at its party, now."""
        call = isolated_call(call)
        self.meter.sent(call.party, num_call_bytes(call))
        began = time.perf_counter()
        reply = self.parties[call.party].execute(call)
        ended = time.perf_counter()
        self.meter.parties[call.party].seconds_computing += ended - began
        if self.timeline is not None:
            span = (began - self._began, ended - self._began)
            self.timeline.note(call.party, "computing", *span)
            # One thread has all the roles: while a party computes, the label holder does not.
            self.timeline.note(None, "waiting", *span, call.party)
        if call.wants_reply or reply.failure is not None:
            self.meter.received(call.party, num_payload_bytes(reply.value))
            self._replies.append(
                Reply(reply.id, reply.party, reply.exchange, reply.value, reply.failure, self.now())
            )

    async def receive(self, deadline: int | None) -> Reply | None:
        """The oldest reply, unless it was ready only after the deadline."""
        if not self._replies:
            if deadline is not None:
                return None
            raise Deadlock("no call is in flight, so no reply will come", tick=self.now())
        if deadline is not None and self._replies[0].tick > deadline:
            return None
        return self._replies.popleft()

    async def settle(self) -> list[Reply]:
        """Every call is done as soon as it is sent."""
        return [reply for reply in self._replies if reply.failure is not None]

    def state(self) -> dict[str, Any]:
        """Replies that nobody has waited for yet; this machine's time means nothing later."""
        return {"replies": [pack_reply(replace(item, tick=0)) for item in self._replies]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave; replies are as fresh as on the day they came."""
        now = self.now()
        self._replies = deque(replace(unpack_reply(item), tick=now) for item in state["replies"])
