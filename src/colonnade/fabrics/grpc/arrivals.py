"""Replies on their way from the threads that receive them to the one that waits for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from colonnade.core.errors import RunError
from colonnade.core.messages import Reply

__all__ = ["Arrivals", "Delivery", "Lost"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A reply for the fabric that made the call, and the seconds that its party computed."""

    to: Any
    reply: Reply
    seconds: float
    # False for the failure of a call that wanted no reply.
    was_awaited: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """A party has lost its half of the session."""

    error: RunError


class Arrivals:
    """Many threads put, one takes, in the order of arrival.

    The one that takes may say how many it needs: woken for each, it would take the interpreter from
    the thread that is about to receive the next.
    """

    def __init__(self) -> None:
        self._items: deque[Delivery | Lost] = deque()
        self._num_wanted = 1
        # Losses on their way: counted before they are put, by the one thread that tells of them.
        self._num_losses_put = self._num_losses_taken = 0
        # Locked while there is nothing to wake anybody for.
        self._news = threading.Lock()
        self._news.acquire()
        # Of whoever waits on the links' event loop, where replies arrive, in place of a thread.
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Delivery | Lost) -> None:
        """Add an arrival; a loss is told at once."""
        if isinstance(item, Lost):
            self._num_losses_put += 1
        self._items.append(item)
        if not self._is_enough(self._num_wanted):
            return
        if self._waiter is not None:
            _end(self._waiter)
            return
        # Another thread may be quicker.
        with suppress(RuntimeError):
            self._news.release()

    def take(self, timeout: float | None, *, num_wanted: int = 1) -> Delivery | Lost | None:
        """The oldest arrival.

        Args:
            timeout: Seconds to wait for as many as are wanted; without end if None.
            num_wanted: How many to wait for before the first is taken.

        Returns:
            None if the time is over and there is none at all.
        """
        self._num_wanted = num_wanted
        until = None if timeout is None else time.monotonic() + timeout
        while not self._is_enough(num_wanted):
            left = -1.0 if until is None else until - time.monotonic()
            if until is not None and left <= 0:
                break
            self._news.acquire(timeout=left)
        return self._oldest()

    async def come(self, timeout: float, *, num_wanted: int = 1) -> Delivery | Lost | None:
        """The same as ``take``, on the event loop whose thread puts all arrivals."""
        self._num_wanted = num_wanted
        if timeout > 0 and not self._is_enough(num_wanted):
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            alarm = loop.call_later(timeout, _end, self._waiter)
            try:
                await self._waiter
            finally:
                self._waiter = None
                alarm.cancel()
        return self._oldest()

    def _oldest(self) -> Delivery | Lost | None:
        if not self._items:
            return None
        item = self._items.popleft()
        if isinstance(item, Lost):
            self._num_losses_taken += 1
        return item

    def _is_enough(self, num_wanted: int) -> bool:
        num_here = len(self._items)
        is_lost = self._num_losses_put > self._num_losses_taken
        return num_here >= num_wanted or (is_lost and num_here > 0)


def _end(waiter: asyncio.Future[None]) -> None:
    """Wake whoever waits, unless somebody has."""
    if not waiter.done():
        waiter.set_result(None)
