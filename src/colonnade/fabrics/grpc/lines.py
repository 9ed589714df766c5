"""gRPC's operations on one stream: whoever awaits one may be cancelled, the operation never is.

gRPC's core writes its outcome into memory that belongs to the awaiting coroutine. A read that is
cancelled while it is under way frees that memory too early, and sooner or later the process dies of
it. So every operation runs in a task of its own that lasts until the core is done with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

__all__ = ["Line"]


class Line:
    """Either end of a stream: reads and writes messages as they are."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._under_way: set[asyncio.Task[Any]] = set()

    async def read(self) -> Any:
        """The next message, or gRPC's mark of the end."""
        return await self._run(self._stream.read())

    async def write(self, message: bytes) -> None:
        """Hand over a message; waits while the peer takes none."""
        await self._run(self._stream.write(message))

    async def done_writing(self) -> None:
        """Say that nothing more comes; only whoever dialled can."""
        await self._run(self._stream.done_writing())

    async def settle(self, timeout: float) -> None:
        """Wait until nothing is under way; the stream must have been ended before."""
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=timeout)

    async def _run(self, operation: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(_whole(operation))
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where nobody waits for it any more


async def _whole(operation: Awaitable[Any]) -> Any:
    return await operation
