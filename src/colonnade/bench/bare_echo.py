"""What a prediction service is compared with: FastAPI and uvicorn that give back what they got.

Run as a process of its own; it prints its port.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

__all__: list[str] = []


class Echoed(BaseModel):
    """The same request as a prediction's."""

    ids: list[int | str]
    deadline_ms: int = 200


def _routes() -> FastAPI:
    routes = FastAPI()

    @routes.post("/v1/predict")
    async def echo(wanted: Echoed) -> dict[str, Any]:
        return {"ids": wanted.ids, "deadline_ms": wanted.deadline_ms}

    return routes


def _main() -> None:
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    sys.stdout.write(f"serving at http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(
        _routes(), http="httptools", loop="asyncio", lifespan="off", log_level="error"
    )
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    _main()
