"""One event loop in a thread of its own for all the links of this process.

Methods run and wait in the caller's thread, while this loop goes on moving frames.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar

__all__ = ["do_there", "event_loop", "is_on_loop", "run_there"]

T = TypeVar("T")


# The lanes of an agent begin at the same time, and a cache alone would give each its own loop.
_ASKING = threading.Lock()


def event_loop() -> asyncio.AbstractEventLoop:
    """The loop, started when it is first needed."""
    with _ASKING:
        return _only_loop()


@cache
def _only_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def turn() -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    thread = threading.Thread(target=turn, name="colonnade links", daemon=True)
    thread.start()

    def stop() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=5)

    atexit.register(stop)
    return loop


def is_on_loop() -> bool:
    """Whether this is the loop's thread, which must not wait for the loop."""
    try:
        return asyncio.get_running_loop() is event_loop()
    except RuntimeError:
        return False


def do_there(action: Callable[..., object], *arguments: Any) -> None:
    """Have something done on the loop: at once in its own thread, else soon."""
    if is_on_loop():
        action(*arguments)
    else:
        event_loop().call_soon_threadsafe(action, *arguments)


def run_there(coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """Run a coroutine on the loop and wait for it here."""
    return asyncio.run_coroutine_threadsafe(coroutine, event_loop()).result(timeout)
