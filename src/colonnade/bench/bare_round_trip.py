"""What a prediction between organisations can't do without: gRPC with mutual TLS to four parties.

Four processes answer a call of the same size as ours with a reply of the same size, and nothing
else. A round trip is one call to all four at once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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

__all__ = [
    "METHOD",
    "RoundTrips",
    "answer_calls",
    "bare_parties",
    "channels_to",
    "payload",
    "port_of",
]

METHOD = "/bench.Bare/Ask"


def payload(num_parties: int, width: int) -> tuple[bytes, bytes]:
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
        return channels_to(identity, ports)

    def _there(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def times(self, count: int) -> list[float]:
        """The seconds of each of so many round trips, one after the other."""

        async def ask() -> list[float]:
            calls = [channel.unary_unary(METHOD) for channel in self._channels]
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
    call, reply = payload(num_parties, width)
    with ExitStack() as around:
        ports = [port_of(around, _answer, hub, reply) for _ in range(num_parties)]
        trips = RoundTrips(caller, ports, call)
        around.callback(trips.close)
        yield trips


def channels_to(identity: Identity, ports: Sequence[int]) -> list[grpc.aio.Channel]:
    """A channel with mutual TLS to every port on this machine; called on an event loop."""
    credentials = grpc.ssl_channel_credentials(
        identity.authority, identity.key, identity.certificate
    )
    options = [("grpc.ssl_target_name_override", HUB_NAME)]
    return [
        grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) for port in ports
    ]


def port_of(around: ExitStack, target: Callable[..., None], *arguments: Any) -> int:
    """Start a process that tells its port by the pipe it is given; it ends with the stack.

    Raises:
        EOFError: The process ended before it had one.
    """
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    around.callback(process.join)
    around.callback(process.terminate)
    # Or a process that fails at once would be waited for without end.
    theirs.close()
    return int(mine.recv())


def _answer(told: Connection, identity: Identity, reply: bytes) -> None:
    asyncio.run(answer_calls(told, identity, lambda request: reply))


async def answer_calls(
    told: Connection, identity: Identity, answer: Callable[[bytes], bytes]
) -> None:
    """Answer calls with mutual TLS, without end; the port is told by the pipe."""

    async def answering(request: bytes, context: Any) -> bytes:
        return answer(request)

    server = grpc.aio.server()
    service, _, method = METHOD[1:].partition("/")
    handler = grpc.unary_unary_rpc_method_handler(answering)
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
