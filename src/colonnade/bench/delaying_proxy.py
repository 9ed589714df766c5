"""A TCP proxy on loopback, in a process of its own, that holds back what passes for a while."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from multiprocessing.connection import Connection
from types import TracebackType

__all__ = ["DelayingProxy"]

_CHUNK_BYTES = 1 << 16


class DelayingProxy:
    """Passes bytes between whoever dials it and a port, each way later by ``delay``.

    Bandwidth is not limited: what comes together goes on together.

    Args:
        target: The port on loopback to pass bytes to.
    """

    def __init__(self, target: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._control, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(target, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.port: int = self._control.recv()

    def delay(self, seconds: float) -> None:
        """From now on every byte is held back for so long, in each direction."""
        self._control.send(seconds)
        self._control.recv()

    def __enter__(self) -> DelayingProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.join()
        self._control.close()


def _serve(target: int, control: Connection) -> None:
    """The proxy's process; its parent ends it."""
    asyncio.run(_Passing(target, control).run())


class _Passing:
    def __init__(self, target: int, control: Connection) -> None:
        self._target = target
        self._control = control
        self._seconds = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        loop.add_reader(self._control.fileno(), self._listen_to_control)
        self._control.send(listener.sockets[0].getsockname()[1])
        async with listener:
            await listener.serve_forever()

    def _listen_to_control(self) -> None:
        try:
            self._seconds = self._control.recv()
        except EOFError:
            # Its parent was killed, and nobody else would end it.
            raise SystemExit from None
        self._control.send(None)

    async def _accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, there = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(self._pass(near, there), self._pass(far, back))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction of a connection: read at once, write when the time has come."""
        loop = asyncio.get_running_loop()
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def write() -> None:
            while True:
                due, chunk = await held.get()
                if (left := due - loop.time()) > 0:
                    await asyncio.sleep(left)
                if not chunk:
                    break
                writer.write(chunk)
                await writer.drain()
            writer.close()

        writing = asyncio.create_task(write())
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                held.put_nowait((loop.time() + self._seconds, chunk))
        held.put_nowait((loop.time() + self._seconds, b""))
        with contextlib.suppress(OSError):
            await writing
