"""Faults on a link: a fabric around another one that loses, delays, repeats, forges or spoils what
passes. Every fault counts how often it fired, so that a test can see that it did."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from colonnade.core.fabric import Fabric
from colonnade.core.federation import Federation
from colonnade.core.messages import Call, Reply
from probes import Wrapped


class Fault:
    """Nothing wrong yet. ``at`` is the exchange from which on it may happen."""

    def __init__(self, party: str, at: int = 0) -> None:
        self.party = party
        self.at = at
        self.num_fired = 0

    def loses_call(self, call: Call) -> bool:
        """Whether a call gets lost on its way down."""
        return False

    def holds_back(self, reply: Reply, call: Call, exchange: int) -> bool:
        """Whether a reply comes only after the wait that it was for."""
        return False

    def delivered(self, reply: Reply, call: Call, exchange: int) -> Iterable[Reply]:
        """What arrives in place of a reply."""
        return [reply]

    def concerns(self, reply: Reply, exchange: int) -> bool:
        """Whether it is that party's, and the time has come."""
        return reply.party == self.party and exchange >= self.at


class Crash(Fault):
    """The party is gone from an exchange on: it neither hears nor says anything again."""

    def loses_call(self, call: Call) -> bool:
        gone = call.party == self.party and call.exchange >= self.at
        self.num_fired += gone
        return gone

    def delivered(self, reply: Reply, call: Call, exchange: int) -> Iterable[Reply]:
        if not self.concerns(reply, exchange):
            return [reply]
        self.num_fired += 1
        return []


class Hang(Fault):
    """One call is never answered; whatever comes after it is."""

    def delivered(self, reply: Reply, call: Call, exchange: int) -> Iterable[Reply]:
        if self.num_fired or not self.concerns(reply, exchange):
            return [reply]
        self.num_fired += 1
        return []


class Late(Fault):
    """One answer comes after the wait for it was over."""

    def holds_back(self, reply: Reply, call: Call, exchange: int) -> bool:
        late = not self.num_fired and self.concerns(reply, exchange)
        self.num_fired += late
        return late


class Duplicate(Fault):
    """Every answer of the party comes twice."""

    def delivered(self, reply: Reply, call: Call, exchange: int) -> Iterable[Reply]:
        if not self.concerns(reply, exchange):
            return [reply]
        self.num_fired += 1
        return [reply, reply]


class Repeat(Fault):
    """Every answer of the party is preceded by a copy of its first, from a past exchange."""

    first: Reply | None = None

    def delivered(self, reply: Reply, call: Call, exchange: int) -> Iterable[Reply]:
        if reply.party != self.party:
            return [reply]
        if self.first is None:
            self.first = reply
            return [reply]
        self.num_fired += 1
        return [replace(self.first, tick=reply.tick), reply]


class Stray(Fault):
    """Every answer of the party is preceded by some that nobody asked for."""

    def delivered(self, reply: Reply, call: Call, exchange: int) -> Iterable[Reply]:
        if not self.concerns(reply, exchange):
            return [reply]
        self.num_fired += 3
        return [
            replace(reply, id=reply.id + 1_000_000, value=spoilt(reply.value)),
            replace(reply, id=-1, value=spoilt(reply.value)),
            # The right number, but from somebody who was not asked it.
            replace(reply, party="nobody", value=spoilt(reply.value)),
            reply,
        ]


class WrongExchange(Fault):
    """Every answer is preceded by one of the same number that names another exchange."""

    def delivered(self, reply: Reply, call: Call, exchange: int) -> Iterable[Reply]:
        if not self.concerns(reply, exchange):
            return [reply]
        self.num_fired += 1
        return [replace(reply, exchange=reply.exchange + 1, value=spoilt(reply.value)), reply]


class Poison(Fault):
    """One value of one embedding is not a number."""

    def __init__(self, party: str, at: int = 0, verb: str = "embed") -> None:
        super().__init__(party, at)
        self.verb = verb

    def delivered(self, reply: Reply, call: Call, exchange: int) -> Iterable[Reply]:
        if self.num_fired or call.verb != self.verb or not self.concerns(reply, exchange):
            return [reply]
        self.num_fired += 1
        return [replace(reply, value=poisoned(reply.value))]


def poisoned(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {**value, "embedding": poisoned(value["embedding"])}
    value = value.clone()
    value[0, 0] = float("nan")
    return value


def spoilt(value: Any) -> Any:
    """Of the same kind, and wrong."""
    if isinstance(value, Mapping):
        return {key: spoilt(item) for key, item in value.items()}
    return torch.full_like(value, 7) if isinstance(value, torch.Tensor) else value


class Faulty(Wrapped):
    """Another fabric with a fault on its links."""

    def __init__(self, inner: Fabric, fault: Fault) -> None:
        super().__init__(inner)
        self.parties = inner.parties  # type: ignore[attr-defined]
        self.fault = fault
        self.exchange = 0
        self._calls: dict[int, Call] = {}
        self._ready: deque[Reply] = deque()
        self._held: list[Reply] = []
        self._num_waits = 0

    def send(self, call: Call) -> None:
        self.exchange = max(self.exchange, call.exchange)
        self._calls[call.id] = call
        if not self.fault.loses_call(call):
            self.inner.send(call)

    async def receive(self, deadline: int | None) -> Reply | None:
        while not self._ready:
            if self._held and deadline is None:
                # Where there is no deadline to miss: after some of the others.
                self._num_waits += 1
                if self._num_waits > 9 or self._nothing_else_comes():
                    return self._held.pop()
            reply = await self.inner.receive(deadline)
            if reply is None:
                # The wait is over without it: from now on it may come.
                self._ready.extend(self._held)
                self._held.clear()
                return None
            call = self._calls[reply.id]
            if self.fault.holds_back(reply, call, self.exchange):
                self._held.append(reply)
            else:
                self._ready.extend(self.fault.delivered(reply, call, self.exchange))
        return self._ready.popleft()

    def _nothing_else_comes(self) -> bool:
        return not self.inner._replies  # type: ignore[attr-defined]


def with_fault(federation: Federation, fault: Fault) -> Federation:
    """The same federation with a fault on its links."""
    fabric = Faulty(federation.fabric, fault)
    return Federation(federation.method, federation.holder, fabric, federation.patience)
