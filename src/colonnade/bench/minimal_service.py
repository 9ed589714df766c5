"""The bound of ``p50``: a service of the same libraries that does what none can do without.

FastAPI and uvicorn ask four processes over gRPC with mutual TLS. Each puts one row through a
network, commits one charge to a data base of its own, and answers; the service fuses the answers.
Nothing of Colonnade's serving is in it: no session, no door, no deadline, no check.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from torch import nn

from colonnade.bench.bare_echo import Echoed
from colonnade.bench.bare_round_trip import METHOD, answer_calls, channels_to, payload, port_of
from colonnade.bench.network import identities_of
from colonnade.bench.subjects import Shape
from colonnade.fabrics.grpc.identity import Identity

__all__ = ["minimal_service"]

_NUM_COLUMNS, _HIDDEN = 16, 64


@contextmanager
def minimal_service(num_parties: int, width: int) -> Iterator[int]:
    """The port of the service; its processes end with the block."""
    hub, (caller,) = identities_of(Shape(num_parties=1))
    call, _ = payload(num_parties, width)
    with ExitStack() as around:
        ports = [port_of(around, _party, hub, width) for _ in range(num_parties)]
        yield port_of(around, _serve, caller, ports, call, width)


def _party(told: Connection, identity: Identity, width: int) -> None:
    torch.set_num_threads(1)
    encoder = nn.Sequential(nn.Linear(_NUM_COLUMNS, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, width))
    row = torch.randn(1, _NUM_COLUMNS)
    with tempfile.TemporaryDirectory() as place:
        file = sqlite3.connect(f"{place}/account.sqlite", isolation_level=None)
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = NORMAL")
        file.execute("CREATE TABLE charges (number INTEGER PRIMARY KEY, content BLOB)")

        def answer(request: bytes) -> bytes:
            file.execute("INSERT INTO charges (content) VALUES (?)", (request[:32],))
            with torch.no_grad():
                return bytes(encoder(row).numpy().tobytes())

        asyncio.run(answer_calls(told, identity, answer))


def _serve(
    told: Connection, identity: Identity, ports: Sequence[int], call: bytes, width: int
) -> None:
    torch.set_num_threads(1)
    fusion = nn.Linear(width, 1)
    routes = FastAPI()

    async def serve() -> None:
        asks = [channel.unary_unary(METHOD) for channel in channels_to(identity, ports)]

        @routes.post("/v1/predict")
        async def predict(wanted: Echoed) -> dict[str, Any]:
            replies = await asyncio.gather(*(ask(call) for ask in asks))
            rows = [torch.frombuffer(bytearray(item), dtype=torch.float32) for item in replies]
            with torch.no_grad():
                score = torch.sigmoid(fusion(torch.stack(rows).mean(0))).item()
            return {"ids": wanted.ids, "probability": score}

        listener = socket.socket(proto=socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        told.send(listener.getsockname()[1])
        config = uvicorn.Config(
            routes, http="httptools", loop="asyncio", lifespan="off", log_level="error"
        )
        await uvicorn.Server(config).serve(sockets=[listener])

    asyncio.run(serve())
