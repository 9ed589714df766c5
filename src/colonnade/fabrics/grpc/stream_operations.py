"""gRPC's operations on one stream; cancelling a coroutine that awaits one leaves it running.

gRPC's core writes an operation's outcome into memory of the awaiting coroutine. Cancelling a read
that is under way frees that memory too early, and the process may crash. So operations run in tasks
of their own that last until the core is done with them: one for all reads of a stream, one for all
writes, and one for each operation before these begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import grpc.aio

__all__ = ["StreamOperations"]


class StreamOperations:
    """Reads and writes messages at either end of a stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._under_way: set[asyncio.Task[Any]] = set()

    async def read(self) -> Any:
        """The next message, or ``grpc.aio.EOF``."""
        return await self._run(self._stream.read())

    async def write(self, message: bytes) -> None:
        """Hand over a message; waits while the peer takes none."""
        await self._run(self._stream.write(message))

    async def read_all(self, take: Callable[[bytes], bool]) -> None:
        """Hand over every message, until the stream ends.

        Args:
            take: Whether more are wanted; what it raises is raised here.
        """
        is_wanted = True

        async def reading() -> None:
            while True:
                message = await self._stream.read()
                if message is grpc.aio.EOF or not is_wanted or not take(message):
                    return

        try:
            await self._run(reading())
        finally:
            is_wanted = False

    async def write_all(
        self, news: asyncio.Event, next_message: Callable[[], bytes], is_last: Callable[[], bool]
    ) -> None:
        """Write messages as they come.

        Args:
            news: Set when there may be one.
            next_message: The next one; empty if there is none.
            is_last: Asked when all are written: whether none will come.
        """
        is_wanted = True

        async def writing() -> None:
            while is_wanted:
                await news.wait()
                news.clear()
                while is_wanted and (message := next_message()):
                    await self._stream.write(message)
                if is_last():
                    return

        try:
            await self._run(writing())
        finally:
            is_wanted = False
            news.set()

    async def done_writing(self) -> None:
        """End writing; only the side that dialled can."""
        await self._run(self._stream.done_writing())

    async def settle(self, timeout: float) -> None:
        """Wait until no operation is under way, after the stream was ended."""
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=timeout)

    async def _run(self, operation: Coroutine[Any, Any, Any]) -> Any:
        loop = asyncio.get_running_loop()
        task, waiter = loop.create_task(operation), loop.create_future()
        self._under_way.add(task)
        task.add_done_callback(partial(self._done, waiter))
        return await waiter

    def _done(self, waiter: asyncio.Future[Any], task: asyncio.Task[Any]) -> None:
        """Pass on how an operation ended, if anybody waits for it still."""
        self._under_way.discard(task)
        if task.cancelled():
            waiter.cancel()
            return
        error = task.exception()  # marks it as seen if nobody awaits it any more
        if waiter.done():
            return
        if error is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(task.result())
