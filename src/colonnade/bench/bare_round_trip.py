"""What a prediction between organisations can't do without: gRPC with mutual TLS to four parties.

Four processes answer a call of the same size as ours with a reply of the same size, and nothing
else. A round trip is one call to all four at once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import grpc
import grpc.aio
import torch

from colonnade.bench.network import identities_of
from colonnade.bench.subjects import Shape
from colonnade.core.messages import Batch
from colonnade.fabrics.grpc.frames import CallBody, FrameKind, ReplyBody, encode_frame
from colonnade.fabrics.grpc.identity import HUB_NAME, Identity

__all__ = ["RoundTrips", "bare_parties"]

_METHOD = "/bench.Bare/Ask"


def _payload(num_parties: int, width: int) -> tuple[bytes, bytes]:
    """The bytes of our calls for one sample, and of our reply."""
    name, one = "0" * 16, torch.zeros(1, dtype=torch.int64)
    presence = torch.ones(1, num_parties + 1, dtype=torch.bool)
    calls = (
        CallBody("choose", (name, one, presence), 0, False),
        CallBody("infer", (Batch(name, 0),), 0, True),
        CallBody("forget", (name,), 0, False),
    )
    up = b"".join(encode_frame(FrameKind.CALL, body, id=1) for body in calls)
    reply = ReplyBody(torch.zeros(1, width), None, 0.0)
    return up, encode_frame(FrameKind.REPLY, reply, id=1)


class RoundTrips:
    """Channels to the bare parties, in an event loop of their own."""

    def __init__(self, identity: Identity, ports: list[int], call: bytes) -> None:
        self._call = call
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._channels = self._there(self._open(identity, ports))

    async def _open(self, identity: Identity, ports: list[int]) -> list[grpc.aio.Channel]:
        credentials = grpc.ssl_channel_credentials(
            identity.authority, identity.key, identity.certificate
        )
        options = [("grpc.ssl_target_name_override", HUB_NAME)]
        return [
            grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)
            for port in ports
        ]

    def _there(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def times(self, count: int) -> list[float]:
        """The seconds of each of so many round trips, one after the other."""

        async def ask() -> list[float]:
            calls = [channel.unary_unary(_METHOD) for channel in self._channels]
            found = []
            for _ in range(count):
                began = time.perf_counter()
                await asyncio.gather(*(call(self._call) for call in calls))
                found.append(time.perf_counter() - began)
            return found

        taken: list[float] = self._there(ask())
        return taken

    def close(self) -> None:
        """Let go of channels and thread."""

        async def end() -> None:
            for channel in self._channels:
                await channel.close()

        self._there(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def bare_parties(num_parties: int, width: int) -> Iterator[RoundTrips]:
    """Processes that answer at once, and the channels to them."""
    hub, (caller,) = identities_of(Shape(num_parties=1))
    call, reply = _payload(num_parties, width)
    context = multiprocessing.get_context("spawn")
    processes, ports = [], []
    for _ in range(num_parties):
        mine, theirs = context.Pipe()
        process = context.Process(target=_answer, args=(theirs, hub, reply), daemon=True)
        process.start()
        # Or a process that fails at once would be waited for without end.
        theirs.close()
        processes.append(process)
        ports.append(int(mine.recv()))
    trips = RoundTrips(caller, ports, call)
    try:
        yield trips
    finally:
        trips.close()
        for process in processes:
            process.terminate()
            process.join()


def _answer(told: Connection, identity: Identity, reply: bytes) -> None:
    async def serve() -> None:
        async def answer(request: bytes, context: Any) -> bytes:
            return reply

        server = grpc.aio.server()
        service, _, method = _METHOD[1:].partition("/")
        handler = grpc.unary_unary_rpc_method_handler(answer)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        credentials = grpc.ssl_server_credentials(
            [(identity.key, identity.certificate)], identity.authority, require_client_auth=True
        )
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        told.send(port)
        await server.wait_for_termination()

    asyncio.run(serve())
