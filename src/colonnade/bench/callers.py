"""Callers of an HTTP service, many at a time: one connection each, one request after the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["NO_ANSWER", "Calls", "call_at_rate", "call_in_turn", "call_once", "call_together"]

# Connections of ``call_at_rate``: enough for 1000 requests a second that all wait for a deadline of
# 200 ms, or the callers would be late by themselves.
_NUM_CONNECTIONS = 256
# The status of a request whose connection was closed instead of an answer.
NO_ANSWER = 0


class _ClosedBefore(Exception):
    """The service closed the connection before there was a whole answer."""


@dataclass
class Calls:
    """What came of many requests, in the order of their answers.

    ``late`` has, of callers at a rate, the seconds between a request's moment and its sending: what
    is the callers' own and not the service's.
    """

    seconds: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    in_order: list[int] = field(default_factory=list)
    num_contradictions: int = 0
    _answers: dict[Any, Any] = field(default_factory=dict)

    def add(self, seconds: float, status: int, body: bytes) -> None:
        """Note one answer, and whether the same blocks of the same id gave another one before."""
        self.seconds.append(seconds)
        self.in_order.append(status)
        for row in json.loads(body).get("predictions", ()) if status == 200 else ():
            if "value" in row:
                known = self._answers.setdefault((row["id"], *row["parties"]), row["value"])
                self.num_contradictions += known != row["value"]

    @property
    def answers(self) -> Mapping[tuple[Any, ...], Any]:
        """The first value of every id and set of blocks, by id and the parties' names."""
        return self._answers

    @property
    def num_failed(self) -> int:
        """Requests that were not answered with 200."""
        return sum(status != 200 for status in self.in_order)

    def told_statuses(self) -> dict[str, int]:
        """How many answers had each status."""
        return {str(status): self.in_order.count(status) for status in sorted(set(self.in_order))}


class _Connection:
    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, content: Any) -> tuple[int, bytes]:
        """One request: its status and content; ``NO_ANSWER`` if the service hung up on it."""
        body = json.dumps(content).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        # A service may close a connection that nobody used for long. A request that meets that has
        # not been heard; as any HTTP library does, it is sent once more on a new connection.
        was_used = self._streams is not None
        try:
            return await self._exchanged(head.encode() + body)
        except _ClosedBefore:
            await self.close()
        if was_used:
            with contextlib.suppress(_ClosedBefore):
                return await self._exchanged(head.encode() + body)
            await self.close()
        return NO_ANSWER, b"{}"

    async def _exchanged(self, request: bytes) -> tuple[int, bytes]:
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(request)
            answered = await reader.readuntil(b"\r\n\r\n")
            marked = answered.lower().partition(b"content-length:")[2]
            content = await reader.readexactly(int(marked.partition(b"\r\n")[0]))
        # Neither may leave the measurement as it is: an EOFError ends a command without a word.
        except (OSError, asyncio.IncompleteReadError) as error:
            raise _ClosedBefore from error
        return int(answered[9:12]), content

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            with contextlib.suppress(OSError):
                await self._streams[1].wait_closed()
            self._streams = None


def call_together(
    port: int,
    *,
    num_callers: int,
    seconds: float,
    content: Callable[[int], Any],
    between: Callable[[], Any] | None = None,
) -> Calls:
    """Have many callers ask for a while.

    Args:
        port: Of a service on this machine.
        num_callers: Connections at a time.
        seconds: For how long requests begin.
        content: The JSON of the n-th request.
        between: A coroutine that runs beside them.

    Returns:
        The time and status of every request.
    """
    found = Calls()

    async def caller(number: int, end: float) -> None:
        connection = _Connection(port)
        while time.monotonic() < end:
            began = time.perf_counter()
            status, body = await connection.post("/v1/predict", content(number))
            found.add(time.perf_counter() - began, status, body)
            number += num_callers
        await connection.close()

    async def everybody() -> None:
        end = time.monotonic() + seconds
        others = [between()] if between is not None else []
        await asyncio.gather(*others, *(caller(number, end) for number in range(num_callers)))

    asyncio.run(everybody())
    return found


def call_at_rate(
    port: int, *, rate: float, num_requests: int, content: Callable[[int], Any]
) -> Calls:
    """Send requests at fixed moments, whether or not the ones before are answered.

    Args:
        port: Of a service on this machine.
        rate: Requests a second.
        num_requests: How many.
        content: The JSON of the n-th request.

    Returns:
        Times count from the moment at which a request was due.
    """
    found = Calls()

    async def everybody() -> None:
        free: asyncio.LifoQueue[_Connection] = asyncio.LifoQueue()
        for _ in range(_NUM_CONNECTIONS):
            free.put_nowait(_Connection(port))

        async def one(number: int, due: float) -> None:
            connection = await free.get()
            found.late.append(time.perf_counter() - due)
            status, body = await connection.post("/v1/predict", content(number))
            found.add(time.perf_counter() - due, status, body)
            free.put_nowait(connection)

        # One after the other, when it is due: ten thousand tasks made beforehand take 60 ms of CPU
        # time, and the first requests would be late by that and by the burst behind it.
        running: set[asyncio.Task[None]] = set()
        began = time.perf_counter()
        for number in range(num_requests):
            due = began + number / rate
            if (left := due - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            task = asyncio.create_task(one(number, due))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
        while not free.empty():
            await free.get_nowait().close()

    asyncio.run(everybody())
    return found


def call_in_turn(port: int, *, num_requests: int, content: Callable[[int], Any]) -> Calls:
    """Have one caller ask, one request after the other.

    Args:
        port: Of a service on this machine.
        num_requests: How many.
        content: The JSON of the n-th request.

    Returns:
        The time and status of every request.
    """
    found = Calls()

    async def caller() -> None:
        connection = _Connection(port)
        for number in range(num_requests):
            began = time.perf_counter()
            status, body = await connection.post("/v1/predict", content(number))
            found.add(time.perf_counter() - began, status, body)
        await connection.close()

    asyncio.run(caller())
    return found


async def call_once(port: int, path: str, content: Any) -> tuple[int, Any]:
    """One request: its status and its JSON."""
    connection = _Connection(port)
    status, body = await connection.post(path, content)
    await connection.close()
    return status, json.loads(body)
