"""One use of the links: calls out, replies in, for a fabric and those beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from colonnade.core.errors import NoAnswer
from colonnade.core.fabric import TICKS_PER_SECOND, RealClock
from colonnade.core.messages import Call
from colonnade.core.parties import Patience
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.arrivals import Arrivals, Delivery, Lost
from colonnade.fabrics.grpc.call_queue import CallQueue, Signs
from colonnade.fabrics.grpc.event_loop import is_on_loop
from colonnade.fabrics.grpc.hub_lane import Lane
from colonnade.fabrics.grpc.local_party import LocalParty

__all__ = ["Session"]


class Taking(Protocol):
    """Whoever a reply is for."""

    def take(self, delivery: Delivery) -> None:
        """A reply that arrived."""


class Session:
    """One use of the links, shared by a fabric and those beside it.

    A party's agent chooses its respondent by ``purpose``. ``at_side`` are respondents in this
    process; with ``waits_at_side`` they execute calls while the method waits, else in threads of
    their own. Patience bounds the fabric's own waits (checkpoints, settling); a method's waits have
    their own deadlines.
    """

    def __init__(
        self,
        hub: Lane,
        parties: Iterable[str],
        *,
        purpose: str,
        at_side: Mapping[str, Respondent] | None = None,
        waits_at_side: bool = False,
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
        self._purpose = purpose
        self._arrivals = Arrivals()
        self._queues: dict[str, CallQueue] = hub.open(
            elsewhere, purpose=purpose, arrivals=self._arrivals, clock=self.clock
        )
        self._local_parties = {
            name: LocalParty(item, self._arrivals, self.clock, waits=waits_at_side)
            for name, item in own.items()
        }
        self._has_unwritten = False

    @property
    def timeout(self) -> float | None:
        """The run's patience in seconds."""
        ticks = self.patience.timeout
        return None if ticks is None else ticks / TICKS_PER_SECOND

    def send(self, party: str, call: Call | None, to: Taking) -> bool:
        """Send a call; False if it was given up because the party takes none."""
        local_party = self._local_parties.get(party)
        if local_party is not None:
            local_party.send(call, to)
            return True
        self._has_unwritten = True
        calls = self._queues[party]
        if calls.send(call, to, 0.0):
            return True
        self.write_out()
        # The event loop, which makes room, waits for nobody.
        if not is_on_loop() and calls.send(call, to, self.timeout):
            return True
        if self.patience.then == "continue":
            self.num_lost += 1
            return False
        raise NoAnswer(
            f"party '{party}' takes up no calls, and {self._hub.links.outbox_bytes} bytes wait for "
            "it already; check that party, or raise patience.timeout",
            parties=(party,),
        )

    def signs(self, party: str) -> Signs:
        """When a party was heard of, and since when it owes an answer."""
        return (self._local_parties.get(party) or self._queues[party]).signs

    def write_out(self) -> None:
        """Have all queued calls written to the streams."""
        if self._has_unwritten:
            self._has_unwritten = False
            self._hub.wake(self._queues)

    def pull(self, timeout: float | None, num_wanted: int = 1) -> bool:
        """Take in as many arrivals when they are here, or fewer; False if none came in time."""
        self._catch_up()
        if not self._take_in(self._arrivals.take(timeout, num_wanted=num_wanted)):
            return False
        self._take_in_more(num_wanted)
        return True

    async def pull_on_loop(self, timeout: float, num_wanted: int = 1) -> bool:
        """The same on the links' event loop."""
        if any(item.is_waiting for item in self._local_parties.values()):
            # Calls to parties elsewhere leave first: they compute while this process does.
            await asyncio.sleep(0)
            self._catch_up()
        if not self._take_in(await self._arrivals.come(timeout, num_wanted=num_wanted)):
            return False
        self._take_in_more(num_wanted)
        return True

    def _take_in_more(self, num_wanted: int) -> None:
        """Take in the others that were waited for, as far as they are here."""
        while num_wanted > 1 and self._take_in(self._arrivals.take(0.0)):
            num_wanted -= 1

    def _catch_up(self) -> None:
        for local_party in self._local_parties.values():
            local_party.catch_up()

    def _take_in(self, item: Delivery | Lost | None) -> bool:
        if item is None:
            return False
        if isinstance(item, Lost):
            raise item.error
        item.to.take(item)
        return True

    def begin_again(self, party: str) -> None:
        """Begin anew with one party that came back without what it knew; the others go on."""
        self._hub.close_session({party: self._queues[party]})
        self._queues |= self._hub.open(
            [party], purpose=self._purpose, arrivals=self._arrivals, clock=self.clock
        )

    def close(self) -> None:
        """Let go of links and threads."""
        self._hub.close_session(self._queues)
        for local_party in self._local_parties.values():
            local_party.close()
