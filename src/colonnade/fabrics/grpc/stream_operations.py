"""gRPC's operations on one stream; cancelling a coroutine that awaits one leaves it running.

gRPC's core writes an operation's outcome into memory of the awaiting coroutine. Cancelling a read
that is under way frees that memory too early, and the process may crash. So every operation runs
in a task of its own that lasts until the core is done with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

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
