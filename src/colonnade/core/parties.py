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

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from colonnade.core.errors import (
    BudgetSpent,
    ConfigError,
    Diverged,
    NoAnswer,
    PartyFailed,
    ProtocolError,
    Refused,
)
from colonnade.core.fabric import Fabric
from colonnade.core.messages import Call, Reply, Summand, Value, pack_reply, unpack_reply
from colonnade.core.protection import Reader
from colonnade.core.sums import Sums, Total

__all__ = ["Arrival", "Each", "Parties", "Patience", "Total", "each"]

# Failures that are decisions: they keep their kind on the way.
_REFUSALS: Mapping[str, type[Refused]] = {"Refused": Refused, "BudgetSpent": BudgetSpent}


@dataclass(frozen=True, slots=True)
class Each:
    """An argument that differs by party."""

    by_party: Mapping[str, Value]


def each(by_party: Mapping[str, Any]) -> Each:
    """Give every party its own value: ``tell("descend", batch, each(gradients))``."""
    return Each(by_party)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for a party that does not answer, and what then.

    ``timeout`` counts ticks (milliseconds); without one the label holder waits for ever. When it
    has passed, ``stop`` ends the run with an error that names the party, ``continue`` goes on
    without it (only for methods that can).
    """

    timeout: int | None = None
    then: Literal["stop", "continue"] = "stop"

    def __post_init__(self) -> None:
        if self.timeout is not None and self.timeout < 1:
            raise ConfigError(f"timeout: at least 1 tick, got {self.timeout}")


class Arrival(NamedTuple):
    """One answer, as it came."""

    party: str
    value: Any
    tick: int


class Parties:
    """All parties of a federation, as the label holder sees them: through links only."""

    def __init__(
        self,
        fabric: Fabric,
        patience: Patience | None = None,
        *,
        sums: Sums | None = None,
        read: Reader | None = None,
    ) -> None:
        self.names = fabric.names
        self._sums = sums
        self._read = read
        self.exchange = 0
        self.num_dropped = 0
        self.fabric = fabric
        self._patience = patience or Patience()
        self._next_id = 0
        self._started: dict[int, tuple[str, int]] = {}
        self._arrived: deque[Reply] = deque()
        # Calls told and not yet known to be done, oldest first; a failure among them is raised.
        self._told: dict[str, deque[int]] = {name: deque() for name in self.names}

    def now(self) -> int:
        """The current tick."""
        return self.fabric.now()

    def deadline(self) -> int | None:
        """The tick at which the run's patience ends, counted from now."""
        timeout = self._patience.timeout
        return None if timeout is None else self.fabric.now() + timeout

    async def ask(
        self,
        verb: str,
        *arguments: Any,
        among: Iterable[str] | None = None,
        deadline: int | None = None,
        summand: Summand | None = None,
    ) -> dict[str, Any]:
        """Ask each party and wait for the answers, in party order.

        With a deadline, those that came later are absent. Without one, the run's patience
        decides: wait, stop with NoAnswer, or continue without. ``summand`` is for sums.
        """
        chosen = self._chosen(among)
        open_calls = {
            self._send(name, verb, arguments, True, summand): (name, self.exchange)
            for name in chosen
        }
        limit = self.deadline() if deadline is None else deadline
        answers: dict[str, Any] = {}
        while open_calls:
            reply = await self.fabric.receive(limit)
            if reply is None:
                break
            if self._is_expected(reply, open_calls):
                del open_calls[reply.id]
                answers[reply.party] = self._value_of(reply, verb)
            else:
                self._set_aside(reply)
        if open_calls and deadline is None and self._patience.then == "stop":
            raise self._no_answer((name for name, _ in open_calls.values()), verb)
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
        """Ask each party for a tensor; the sum of the answers, added up in party order."""
        if self._sums is not None:
            return await self._sums.total(self, verb, arguments, among, deadline)
        answers = await self.ask(verb, *arguments, among=among, deadline=deadline)
        if not answers:
            raise self._no_answer(self._chosen(among), verb)
        if len({item.shape for item in answers.values()}) > 1:
            shapes = ", ".join(f"{name} {tuple(item.shape)}" for name, item in answers.items())
            raise ProtocolError(f"'{verb}': answers of different shapes have no sum: {shapes}")
        value, *others = answers.values()
        for item in others:
            value = value + item
        if not torch.isfinite(value).all():
            raise self._not_finite(answers, verb)
        return Total(value, tuple(answers))

    async def tell(self, verb: str, *arguments: Any, among: Iterable[str] | None = None) -> None:
        """Have each party do something; its failure, if any, is raised by a later wait."""
        for name in self._chosen(among):
            self._told[name].append(self._send(name, verb, arguments, False))

    def start(self, party: str, verb: str, *arguments: Any) -> None:
        """Put a call in flight; its answer comes with ``arrival``."""
        (name,) = self._chosen([party])
        self._started[self._send(name, verb, arguments, True)] = (name, self.exchange)

    async def arrival(self, deadline: int | None = None) -> Arrival | None:
        """The next answer to a started call, in order of arrival; None after the deadline.

        Without a deadline the run's patience decides: wait, stop with NoAnswer, or None.
        """
        limit = self.deadline() if deadline is None else deadline
        while True:
            reply = self._arrived.popleft() if self._arrived else await self.fabric.receive(limit)
            if reply is None:
                if deadline is None and self._patience.then == "stop":
                    raise self.nobody_answered()
                return None
            if self._is_expected(reply, self._started):
                del self._started[reply.id]
                return Arrival(reply.party, self._value_of(reply, "started call"), reply.tick)
            self._set_aside(reply)

    def nobody_answered(self) -> NoAnswer:
        """The error that names everybody who still owes an answer to a started call."""
        return self._no_answer((name for name, _ in self._started.values()), "a started call")

    async def wait_until(self, tick: int) -> None:
        """Let time pass; what arrives meanwhile is kept for ``arrival``."""
        while (reply := await self.fabric.receive(tick)) is not None:
            self._set_aside(reply)

    async def settle(self) -> None:
        """Wait until everything told is done, and raise if any of it failed."""
        for reply in await self.fabric.settle():
            if reply.id in self._told.get(reply.party, ()):
                raise self._failed(reply, "told call")

    def in_flight(self) -> dict[str, int]:
        """How many started calls each party has not answered yet."""
        counts = dict.fromkeys(self.names, 0)
        for party, _ in self._started.values():
            counts[party] += 1
        return {party: count for party, count in counts.items() if count}

    def state(self) -> dict[str, Any]:
        """What is in flight, for a checkpoint between exchanges."""
        return {
            "exchange": self.exchange,
            "next_id": self._next_id,
            "num_dropped": self.num_dropped,
            "started": [[number, *call] for number, call in self._started.items()],
            "arrived": [pack_reply(reply) for reply in self._arrived],
            "told": {name: list(numbers) for name, numbers in self._told.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave."""
        self.exchange = state["exchange"]
        self._next_id = state["next_id"]
        self.num_dropped = state["num_dropped"]
        self._started = {number: (party, exchange) for number, party, exchange in state["started"]}
        self._arrived = deque(unpack_reply(item) for item in state["arrived"])
        self._told = {name: deque(state["told"].get(name, ())) for name in self.names}

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
        party: str,
        verb: str,
        arguments: tuple[Any, ...],
        wants_reply: bool,
        summand: Summand | None = None,
    ) -> int:
        if any(type(item) is Each for item in arguments):
            arguments = tuple(
                _own(item, party, verb) if type(item) is Each else item for item in arguments
            )
        number = self._next_id
        self._next_id += 1
        call = Call(number, party, verb, arguments, self.exchange, wants_reply, summand)
        self.fabric.send(call)
        return number

    def _is_expected(self, reply: Reply, open_calls: Mapping[int, tuple[str, int]]) -> bool:
        return open_calls.get(reply.id) == (reply.party, reply.exchange)

    def _value_of(self, reply: Reply, verb: str) -> Any:
        told = self._told[reply.party]
        while told and told[0] < reply.id:
            told.popleft()
        if reply.failure is not None:
            raise self._failed(reply, verb)
        return reply.value if self._read is None else self._read(reply.party, reply.value)

    def _set_aside(self, reply: Reply) -> None:
        """A reply that the current wait is not for: keep it, raise it, or drop it."""
        if self._is_expected(reply, self._started):
            self._arrived.append(reply)
        elif reply.failure is not None and reply.id in self._told.get(reply.party, ()):
            raise self._failed(reply, "told call")
        else:
            self.num_dropped += 1

    def _failed(self, reply: Reply, verb: str) -> Exception:
        failure = reply.failure
        assert failure is not None
        if failure.kind in _REFUSALS:
            return _REFUSALS[failure.kind](failure.message, party=reply.party)
        if failure.kind == "Diverged":
            return Diverged(failure.message, exchange=reply.exchange, party=reply.party)
        error = PartyFailed(
            f"party '{reply.party}' failed at exchange {reply.exchange} ({verb}): "
            f"{failure.kind}: {failure.message}",
            party=reply.party,
        )
        error.__cause__ = failure.cause
        return error

    def _not_finite(self, answers: Mapping[str, Tensor], verb: str) -> Diverged:
        """Whose numbers are to blame: the first that are not finite; else those of the largest."""
        wild = [name for name, item in answers.items() if not torch.isfinite(item).all()]
        who = wild[0] if wild else max(answers, key=lambda name: float(answers[name].abs().max()))
        return Diverged(
            f"exchange {self.exchange}: party '{who}' sent an answer to '{verb}' with values that "
            "are not finite, or too large to be summed; lower its learning rate, or check its data",
            exchange=self.exchange,
            party=who,
        )

    def _no_answer(self, silent: Iterable[str], verb: str) -> NoAnswer:
        silent = sorted(set(silent))
        names = ", ".join(f"'{name}'" for name in silent)
        return NoAnswer(
            f"no answer from {names} to '{verb}' at exchange {self.exchange} within "
            f"{self._patience.timeout} ticks; check that party, raise patience.timeout, or use "
            "a method that goes on without it",
            parties=tuple(silent),
        )


def _own(item: Each, party: str, verb: str) -> Value:
    if party not in item.by_party:
        raise ProtocolError(
            f"'{verb}': no value for party '{party}'; there are values for {sorted(item.by_party)}"
        )
    return item.by_party[party]
