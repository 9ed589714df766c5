"""A party of the label holder's own: calls are executed here, in order, without a link."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import Any

from colonnade.core.fabric import Clock
from colonnade.core.messages import Call, Reply
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.arrivals import Arrivals, Delivery
from colonnade.fabrics.grpc.call_queue import Signs
from colonnade.fabrics.in_process import isolated_call

__all__ = ["LocalParty"]


class LocalParty:
    """Executes the calls to one respondent of this process.

    Args:
        respondent: Who answers.
        arrivals: Where replies go.
        clock: The session's.
        waits: Whether calls wait until the session has nothing better to do, in the thread that
            asked; else they are executed in a thread of their own, beside whatever goes on here.
            One sample takes less time than two threads take to hand it over.
    """

    def __init__(
        self, respondent: Respondent, arrivals: Arrivals, clock: Clock, *, waits: bool
    ) -> None:
        self._respondent = respondent
        self._arrivals = arrivals
        self._clock = clock
        self._seconds = 0.0
        self.signs = Signs()
        self._waiting: deque[tuple[Call | None, Any]] = deque()
        self._work: queue.SimpleQueue[tuple[Call | None, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if not waits:
            name = f"colonnade {respondent.name}"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._thread.start()

    def send(self, call: Call | None, to: Any) -> None:
        """Have a call executed; without one, answer when all before are done."""
        if call is None or call.wants_reply:
            self.signs.ask(self._clock.now())
        item = (None if call is None else isolated_call(call), to)
        if self._thread is None:
            self._waiting.append(item)
        else:
            self._work.put(item)

    @property
    def is_waiting(self) -> bool:
        """Whether calls wait for the thread that asked."""
        return bool(self._waiting)

    def catch_up(self) -> None:
        """Execute calls that wait for the thread that asked."""
        while self._waiting:
            self._execute(*self._waiting.popleft())

    def close(self) -> None:
        """Execute what is left, and let go of the thread."""
        self.catch_up()
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            self._execute(*item)

    def _execute(self, call: Call | None, to: Any) -> None:
        if call is None:
            reply = Reply(-1, self._respondent.name, 0)
        else:
            began = time.perf_counter()
            reply = self._respondent.execute(call)
            self._seconds += time.perf_counter() - began
        if call is None or call.wants_reply or reply.failure is not None:
            tick = self._clock.now()
            awaited = call is None or call.wants_reply
            self.signs.answer(tick, was_awaited=awaited)
            reply = Reply(
                *(reply.id, reply.party, reply.exchange, reply.value, reply.failure),
                tick=tick,
                at=time.perf_counter(),
            )
            self._arrivals.put(Delivery(to, reply, self._seconds, awaited))
            self._seconds = 0.0
