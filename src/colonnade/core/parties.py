"""Parties: the only concurrency vocabulary that methods have.

- ``ask``: a verb at all parties at once; their answers, in party order.
- ``tell``: a verb at all parties, nothing awaited. Calls to one party keep their order, so what is
  told now and asked next travels together: one round trip per synchronous step.
- ``start`` and ``arrival``: calls that stay in flight, answers as they come.
- ``deadline``: an absolute tick after which an answer no longer counts.

A party that did not answer is an absent key. A late, repeated or stray reply is dropped by its
correlation id and counted, never awaited or cancelled.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from colonnade.core.attendance import Attendance
from colonnade.core.batches import BatchPlan
from colonnade.core.doors import Door
from colonnade.core.errors import NoAnswer, ProtocolError
from colonnade.core.fabric import Fabric
from colonnade.core.failures import bad_reply, failure_of, no_answer, no_value
from colonnade.core.messages import Batch, Call, Each, Reply, Summand, pack_reply, unpack_reply
from colonnade.core.patience import Arrival, Patience
from colonnade.core.presence import Presence
from colonnade.core.respondent import Agreed, Awaited, Fault, fault_in_answer
from colonnade.core.sums import Sums, Total, added_up
from colonnade.core.verbs import Verb

__all__ = ["Arrival", "Each", "Parties", "Patience", "Total", "each"]


def each(by_party: Mapping[str, Any]) -> Each:
    """Give every party a value of its own: ``tell("descend", batch, each(gradients))``.

    Args:
        by_party: The values, by party.

    Returns:
        An argument for ``ask`` and ``tell``.
    """
    return Each(by_party)


class Parties:
    """All parties of a federation, as the label holder sees them: through links only.

    Args:
        fabric: What carries the calls.
        patience: How long to wait for a silent party, and what then.
        sums: How to add up answers that are hidden one by one.
        door: The label holder's own door.
        verbs: The parties' verbs, by name, for what they declare: answers are checked against it.
        agreed: Types and widths of answers, where they are agreed.
        plans: The batches of every part, which tell how many rows an answer has.
        presence: Who has which sample, of the parts that are not complete.
    """

    def __init__(
        self,
        fabric: Fabric,
        patience: Patience | None = None,
        *,
        sums: Sums | None = None,
        door: Door | None = None,
        verbs: Mapping[str, Verb] | None = None,
        agreed: Agreed | None = None,
        plans: Mapping[str, BatchPlan] | None = None,
        presence: Mapping[str, Presence] | None = None,
    ) -> None:
        self.names = fabric.names
        self.attendance = Attendance(self.names)
        # An evaluation and a checkpoint wait longer than an exchange: they don't tell who starves.
        self.trains = True
        self.holds_up = True  # training stands still while these calls are awaited
        self.meanwhile: list[Callable[[], None]] = []  # the run's own work while parties compute
        self._sums, self._agreed = sums, agreed
        self._door = door  # the label holder's: what goes down passes it, what comes up is read
        self._verbs, self._presence = verbs or {}, presence or {}
        self.fabric, self.plans = fabric, plans or {}
        self.exchange = -1  # none yet
        self._patience = patience or Patience()
        self._next_id = self.num_dropped = 0
        self._started: dict[int, Awaited] = {}
        self._arrived: deque[Reply] = deque()
        self._given_up: dict[int, int] = {}  # calls nobody waits for any more: when they were sent
        # Calls told and not yet known to be done, oldest first; a failure among them is raised.
        self._told: dict[str, deque[int]] = {name: deque() for name in self.names}

    def now(self) -> int:
        """The current tick.

        Returns:
            Milliseconds on the fabric's clock.
        """
        return self.fabric.now()

    def deadline(self) -> int | None:
        """The tick at which the run's patience ends, counted from now.

        Returns:
            None if it never ends.
        """
        return None if (ticks := self._patience.timeout) is None else self.fabric.now() + ticks

    async def ask(
        self,
        verb: str,
        *arguments: Any,
        among: Iterable[str] | None = None,
        deadline: int | None = None,
        summand: Summand | None = None,
        copies: int | Mapping[str, int] | None = None,
        num_rows: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """Ask each party and wait for the answers.

        Args:
            verb: The verb's name.
            arguments: Its arguments; ``each`` for those that differ by party.
            among: Whom to ask; everybody if not given.
            deadline: The last tick that counts; without one, the run's patience decides.
            summand: The sum that the answers are parts of; only sums use it.
            copies: For answers with several rows per sample, in an axis before the rows: its
                length, for all or by party.
            num_rows: By party how many rows its answer has, if not one per sample that it has.

        Returns:
            By party, in party order; a party that did not answer in time is absent.

        Raises:
            NoAnswer: If a party is silent and the run's patience is to stop.
            BadReply: If an answer is not what the verb declares.
            Diverged: If an answer has numbers that are not finite, or beyond all reason.
        """
        chosen = asked = self._chosen(among)
        limit = self.deadline() if deadline is None else deadline
        goes_on = deadline is not None or self._patience.then == "continue"
        if limit is not None and goes_on and self.fabric.keeps_calls:
            asked = self.attendance.here(chosen, self.fabric)
            if set(self.names) <= set(self.attendance.away):
                await self.wait_until(limit)  # for anybody at all
        open_calls = {}
        for name, number in self._send(asked, verb, arguments, True, summand).items():
            own = copies if copies is None or isinstance(copies, int) else copies[name]
            rows = self._rows(name, arguments) if num_rows is None else num_rows[name]
            open_calls[number] = Awaited(name, self.exchange, verb, rows, own, summand is not None)
        answers: dict[str, Any] = {}
        began = since = self.fabric.now()
        ticks = limit - began if goes_on and limit is not None else None
        seen = self.attendance
        hoped = seen.worth_waiting_for(asked, ticks) if seen.is_disturbed else asked
        wanted = {number for number, item in open_calls.items() if item.party in hoped}
        while not wanted.isdisjoint(open_calls):
            reply = await self.fabric.receive(limit)
            if reply is None:
                break
            if self._is_expected(reply, open_calls):
                awaited = open_calls.pop(reply.id)
                if reply.tick > since and not open_calls and self.holds_up:
                    self.attendance.waited([reply.party], reply.tick - since)
                since = max(since, reply.tick)
                answers[reply.party] = self._value_of(reply, awaited)
            else:
                self._set_aside(reply)
        if open_calls:
            silent = [name for name, *_ in open_calls.values()]
            if deadline is None and self._patience.then == "stop":
                raise self._silence(silent, verb)
            self.attendance.gave_up(silent, since, self.fabric.now())
            self._given_up |= dict.fromkeys(open_calls, began)
        return {name: answers[name] for name in chosen if name in answers}

    @property
    def sums_only(self) -> bool:
        """Whether embeddings leave their parties as parts of a sum only."""
        return self._sums is not None

    async def total(
        self,
        verb: str,
        *arguments: Any,
        among: Iterable[str] | None = None,
        deadline: int | None = None,
    ) -> Total:
        """Ask for a tensor each, and add up in party order.

        ``verb``, ``arguments``, ``among`` and ``deadline`` are as in ``ask``.

        Returns:
            The sum, and whose answers are in it.

        Raises:
            NoAnswer: If nobody answered.
            ProtocolError: If the answers differ in shape.
            Diverged: If the sum is not finite.
        """
        if self._sums is not None:
            return await self._sums.total(self, verb, arguments, among, deadline)
        answers = await self.ask(verb, *arguments, among=among, deadline=deadline)
        if not answers:
            raise self._silence(self._chosen(among), verb)
        return added_up(answers, verb, self.exchange)

    async def tell(self, verb: str, *arguments: Any, among: Iterable[str] | None = None) -> None:
        """Have each party do something, and wait for nothing; a later wait raises its failure.

        ``verb``, ``arguments`` and ``among`` are as in ``ask``.
        """
        for name, number in self._send(self._chosen(among), verb, arguments, False).items():
            self._told[name].append(number)

    def start(self, party: str, verb: str, *arguments: Any) -> None:
        """Put a call of ``verb`` with ``arguments`` to a ``party`` in flight; see ``arrival``."""
        (name,) = self._chosen([party])
        number = self._send((name,), verb, arguments, True)[name]
        self._started[number] = Awaited(name, self.exchange, verb, self._rows(name, arguments))

    async def arrival(self, deadline: int | None = None) -> Arrival | None:
        """Wait for the next answer to a started call, in order of arrival.

        Args:
            deadline: The last tick to wait for; without one, the run's patience decides.

        Returns:
            None if nothing came in time.

        Raises:
            NoAnswer: If nothing came, without a deadline, and the run's patience is to stop.
        """
        limit = self.deadline() if deadline is None else deadline
        while True:
            reply = self._arrived.popleft() if self._arrived else await self.fabric.receive(limit)
            if reply is None:
                if deadline is None and self._patience.then == "stop":
                    raise self.nobody_answered()
                return None
            if self._is_expected(reply, self._started):
                awaited = self._started.pop(reply.id)
                return Arrival(reply.party, self._value_of(reply, awaited), reply.tick)
            self._set_aside(reply)

    def give_up(self, names: Iterable[str]) -> None:
        """Drop what the parties of these ``names`` still owe to started calls."""
        gone = {number for number, call in self._started.items() if call.party in set(names)}
        self._started = {n: call for n, call in self._started.items() if n not in gone}
        self._given_up |= dict.fromkeys(gone, self.fabric.now())

    def nobody_answered(self) -> NoAnswer:
        """Make the error that names everybody who still owes an answer to a started call.

        Returns:
            The error; the caller raises it.
        """
        return self._silence((name for name, *_ in self._started.values()), "a started call")

    def hand_out(self, *, has_time: bool = True) -> None:
        """Have all calls leave now; who ``has_time`` tends to the run's other work meanwhile."""
        self.fabric.hand_out()
        self.fabric.do_meanwhile(self.meanwhile if has_time else ())

    async def wait_until(self, tick: int) -> None:
        """Let time pass until a ``tick``; what arrives meanwhile is kept for ``arrival``."""
        while (reply := await self.fabric.receive(self.fabric.last_before(tick))) is not None:
            self._set_aside(reply)

    async def settle(self) -> None:
        """Wait until everything told is done.

        Raises:
            PartyFailed: If any of it failed; refusals keep their own kind.
        """
        for reply in await self.fabric.settle():
            if reply.id in self._told.get(reply.party, ()):
                raise failure_of(reply, "told call")

    def in_flight(self) -> dict[str, int]:
        """Count the started calls that wait for an answer.

        Returns:
            The number by party; a party without any is absent.
        """
        counts = Counter(party for party, *_ in self._started.values())
        return {name: counts[name] for name in self.names if counts[name]}

    def state(self) -> dict[str, Any]:
        """What is in flight, for a checkpoint between exchanges.

        Returns:
            Plain values and tensors.
        """
        return {
            "exchange": self.exchange,
            "next_id": self._next_id,
            "num_dropped": self.num_dropped,
            "started": [[number, *call] for number, call in self._started.items()],
            "arrived": [pack_reply(reply) for reply in self._arrived],
            "given_up": [list(item) for item in sorted(self._given_up.items())],
            "attendance": self.attendance.state(),
            "told": {name: list(numbers) for name, numbers in self._told.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave."""
        self.exchange = state["exchange"]
        self._next_id = state["next_id"]
        self.num_dropped = state["num_dropped"]
        self._started = {number: Awaited(*call) for number, *call in state["started"]}
        self._arrived = deque(unpack_reply(item) for item in state["arrived"])
        self._told = {name: deque(state["told"].get(name, ())) for name in self.names}
        self._given_up = {int(number): int(tick) for number, tick in state.get("given_up", {})}
        self.attendance.restore(state.get("attendance", {}))

    def _chosen(self, among: Iterable[str] | None) -> tuple[str, ...]:
        if among is None:
            return self.names
        wanted = set(among)
        unknown = sorted(wanted - set(self.names))
        if unknown:
            raise ProtocolError(f"no party {unknown} here; there are {list(self.names)}")
        return tuple(name for name in self.names if name in wanted)

    def _send(
        self,
        parties: Sequence[str],
        verb: str,
        arguments: tuple[Any, ...],
        wants_reply: bool,
        summand: Summand | None = None,
    ) -> dict[str, int]:
        """Send each party its call, through the label holder's door; the calls' numbers."""

        def own(party: str) -> tuple[Any, ...]:
            try:
                return tuple(x.by_party[party] if type(x) is Each else x for x in arguments)
            except KeyError as error:
                raise no_value(party, verb) from error

        differ, rest = Each in map(type, arguments), (self.exchange, wants_reply, summand)
        calls: Sequence[Call] = [
            Call(number, name, verb, own(name) if differ else arguments, *rest)
            for number, name in enumerate(parties, self._next_id)
        ]
        self._next_id += len(calls)
        if self._door is not None and not self._door.is_open:
            calls = self._door.arguments(calls, self._verbs.get(verb))
        for call in calls:
            self.fabric.send(call)
        return {call.party: call.id for call in calls}

    def _rows(self, name: str, arguments: tuple[Any, ...]) -> int | None:
        """How many samples a call is about: those of its batch that the party has."""
        for item in arguments:
            if type(item) is Batch:
                if item.part in self._presence:
                    return self._presence[item.part].num_rows(item.number, name)
                plan = self.plans.get(item.part)
                return None if plan is None else plan.num_positions(item.number)
        return None

    def _is_expected(self, reply: Reply, open_calls: Mapping[int, Awaited]) -> bool:
        known = open_calls.get(reply.id)
        return known is not None and known.party == reply.party and known.exchange == reply.exchange

    def _value_of(self, reply: Reply, awaited: Awaited) -> Any:
        if self.attendance.is_disturbed:
            self.attendance.heard(reply.party, in_time=self.trains)
        told = self._told[reply.party]
        while told and told[0] < reply.id:
            told.popleft()
        if reply.failure is not None:
            raise failure_of(reply, awaited.verb)
        known, value = self._verbs.get(awaited.verb), reply.value
        if known is None:
            return value
        if self._door is not None and not self._door.is_open:
            try:
                value = self._door.read(reply.party, value, known.releases)
            except ProtocolError as error:
                raise bad_reply(awaited, Fault(f"packed values: {error}")) from error
        fault = fault_in_answer(known, value, awaited, self._agreed)
        if fault is not None:
            raise bad_reply(awaited._replace(exchange=self.exchange), fault)
        return value

    def _set_aside(self, reply: Reply) -> None:
        """A reply that the current wait is not for: keep it, raise it, or drop it."""
        sent = self._given_up.pop(reply.id, None)
        self.attendance.heard(reply.party, took=None if sent is None else reply.tick - sent)
        if self._is_expected(reply, self._started):
            self._arrived.append(reply)
        elif reply.failure is not None and reply.id in self._told.get(reply.party, ()):
            raise failure_of(reply, "told call")
        else:
            self.num_dropped += 1

    def _silence(self, silent: Iterable[str], verb: str) -> NoAnswer:
        return no_answer(silent, verb, self.exchange, self._patience.timeout)
