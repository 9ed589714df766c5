"""Gathering: whatever arrives while one exchange is in flight goes with the next.

At low load nobody waits for anybody. Requests whose patience differs by more than a factor of two
go with different exchanges, so that one hasty caller shortens nobody's answer by more than that.
Waiting ids are bounded; a request above the bound is turned away at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from colonnade.core.errors import ColonnadeError
from colonnade.serve.breaker import Breakers
from colonnade.serve.predictor import Outcome, Predictor, ServedExchange, Unanswered

__all__ = ["Busy", "Gathering", "TooLate"]

Found = Outcome | Unanswered
# Beyond its deadline a caller waits this long for an exchange that is about to end.
GRACE_SECONDS = 0.02
# A request is read in one turn of the event loop and waits for an exchange in the next.
_QUIET_TURNS, _LONGEST_ARRIVAL = 2, 0.002


class Busy(ColonnadeError):
    """More ids are waiting than are allowed to."""


class TooLate(ColonnadeError):
    """The deadline passed before there was an answer."""


@dataclass(eq=False)
class _Waiting:
    ids: tuple[str, ...]
    deadline: float
    patience: float
    future: asyncio.Future[Sequence[Found]] = field(repr=False)


class Gathering:
    """The queue in front of one predictor.

    Args:
        predictor: Who answers; it is called by one thread.
        breakers: The parties' breakers.
        most_waiting: The most ids that may wait.
        most_together: The most ids of one exchange.
        watch: Told of every exchange: how long it took, and what came of it.
    """

    def __init__(
        self,
        predictor: Predictor,
        breakers: Breakers,
        *,
        most_waiting: int,
        most_together: int,
        watch: Callable[[float, ServedExchange], None],
    ) -> None:
        self.predictor = predictor
        self._breakers = breakers
        self._most_waiting, self._most_together = most_waiting, most_together
        self._watch = watch
        self._waiting: deque[_Waiting] = deque()
        self._num_waiting = 0
        self._task: asyncio.Task[None] | None = None
        # Whether the last exchange was for several requests: then others are about to come.
        self._has_company = True
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="exchange")

    async def ask(
        self, ids: tuple[str, ...], *, arrived: float, patience: float
    ) -> Sequence[Found]:
        """Answer for these ids, together with others.

        Args:
            ids: Text, none twice.
            arrived: When the request arrived, on the monotonic clock.
            patience: Seconds from then to its deadline.

        Returns:
            An outcome for every id.

        Raises:
            Busy: Too many ids are waiting already.
            TooLate: The deadline passed first.
        """
        if self._num_waiting + len(ids) > self._most_waiting:
            raise Busy("too many samples are waiting; ask again later")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[Found]] = loop.create_future()
        item = _Waiting(ids, arrived + patience, patience, future)
        self._waiting.append(item)
        self._num_waiting += len(ids)
        if self._task is None:
            self._task = asyncio.create_task(self._exchanges())
        left = item.deadline - time.monotonic() + GRACE_SECONDS
        alarm = loop.call_later(max(left, 0.0), self._give_up, item)
        try:
            return await future
        finally:
            alarm.cancel()

    def _give_up(self, item: _Waiting) -> None:
        """Its deadline is over."""
        if item.future.done():
            return
        if item in self._waiting:
            self._waiting.remove(item)
            self._num_waiting -= len(item.ids)
        item.future.set_exception(TooLate("the deadline passed before there was an answer"))

    @property
    def num_waiting(self) -> int:
        """How many ids wait for the next exchange."""
        return self._num_waiting

    async def drain(self) -> None:
        """Wait until nobody waits, and let go of the thread and the predictor."""
        if self._task is not None:
            await self._task
        self._thread.shutdown(wait=True)
        # Off the event loop, on which its links may be.
        await asyncio.to_thread(self.predictor.close)

    async def _exchanges(self) -> None:
        try:
            await self._let_arrive()
            while chosen := self._choose():
                await self._exchange(chosen)
                await self._let_arrive()
        finally:
            self._task = None

    async def _let_arrive(self) -> None:
        """Let requests in that are here already: the sockets are looked at once a turn.

        Of many callers who were answered together, the first to ask again would have an exchange
        of its own, and all others would wait for it. Nobody who is not here yet is waited for, and
        nobody waits for long where requests never end. A caller who was alone is not held up.
        """
        if not self._has_company:
            return
        num_quiet, known = 0, self._num_waiting
        until = time.monotonic() + _LONGEST_ARRIVAL
        while time.monotonic() < until:
            await asyncio.sleep(0)
            num_quiet = num_quiet + 1 if self._num_waiting == known else 0
            known = self._num_waiting
            if num_quiet == _QUIET_TURNS:
                return

    def _choose(self) -> list[_Waiting]:
        """The oldest request, and those that fit it in size and in patience."""
        chosen: list[_Waiting] = []
        kept: deque[_Waiting] = deque()
        num_ids = 0
        while self._waiting:
            item = self._waiting.popleft()
            first = chosen[0].patience if chosen else item.patience
            fits = first / 2 <= item.patience <= first * 2
            if chosen and not (fits and num_ids + len(item.ids) <= self._most_together):
                kept.append(item)
                continue
            chosen.append(item)
            num_ids += len(item.ids)
        self._waiting = kept
        self._num_waiting = sum(len(item.ids) for item in kept)
        self._has_company = len(chosen) > 1
        return chosen

    async def _exchange(self, chosen: Sequence[_Waiting]) -> None:
        ids = tuple(dict.fromkeys(name for item in chosen for name in item.ids))
        began = time.monotonic()
        # Whoever waited for an exchange that a silent party held up has little time left; those who
        # came later must not lose their answers by that.
        deadline = max(min(item.deadline for item in chosen), began + GRACE_SECONDS)
        without = self._breakers.left_out(deadline - began)
        loop = asyncio.get_running_loop()
        try:
            here = self.predictor.predict_here(ids, deadline=deadline, without=without)
            if here is None:
                exchange = await loop.run_in_executor(
                    self._thread, self._predict, ids, deadline, without
                )
            else:
                exchange = await here
        except Exception as error:
            # A probe that failed for another reason says nothing of the party.
            for name in self.predictor.model.parties:
                self._breakers.not_asked(name)
            for item in chosen:
                if not item.future.done():
                    item.future.set_exception(error)
            return
        self._note(exchange, deadline - began)
        found = dict(zip(ids, exchange.outcomes, strict=True))
        for item in chosen:
            if not item.future.done():
                item.future.set_result([found[name] for name in item.ids])
        # After those who wait were woken: they need not wait for the counting.
        loop.call_soon(self._watch, time.monotonic() - began, exchange)

    def _predict(
        self, ids: Sequence[str], deadline: float, without: Collection[str]
    ) -> ServedExchange:
        return self.predictor.predict(ids, deadline=deadline, without=without)

    def _note(self, exchange: ServedExchange, waited: float) -> None:
        for name in self.predictor.model.parties:
            if name in exchange.back:
                self._breakers.back(name)
            if name in exchange.seconds:
                self._breakers.answered(name, exchange.seconds[name])
            elif name in exchange.silent:
                self._breakers.silent(name, waited, is_sought=name in exchange.sought)
            else:
                self._breakers.not_asked(name)
