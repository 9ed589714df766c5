"""Running a method's coroutine on the event loop of the links, in place of a thread that waits."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from colonnade.core.errors import ProtocolError
from colonnade.core.fabric import NotYet
from colonnade.fabrics.grpc.network_fabric import Pull

__all__ = ["drive_on_loop"]

T = TypeVar("T")


async def drive_on_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on the links' event loop, as ``Fabric.run`` does in a thread.

    No thread hands work to another one. What computes for long belongs in a thread: it would hold
    up every link.
    """
    failure: BaseException | None = None
    while True:
        try:
            waiting = coroutine.send(None) if failure is None else coroutine.throw(failure)
        except StopIteration as stop:
            result: T = stop.value
            return result
        failure = None
        try:
            if not (isinstance(waiting, NotYet) and isinstance(waiting.wait, Pull)):
                raise ProtocolError("only answers over links are awaited here")
            await waiting.wait.on_loop()
        except BaseException as error:
            failure = error  # raised where the coroutine waits
