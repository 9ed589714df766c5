"""Predictions first: where they are served, a thread that trains interrupts nobody.

A request passes through five processes, each of which is woken for it. A thread that trains is
woken as often, and by default it may then take the processor from whoever runs. In the scheduling
class for batch work (``SCHED_BATCH``, Linux) it waits for its turn instead. Its share of the
processor stays the same. So it can't starve, nor keep predictions waiting for a lock that it holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from colonnade.core.errors import StorageError

__all__ = ["GivesWay", "interrupt_nobody", "served_here"]

_LOG = logging.getLogger("colonnade.service")
_LOCK = "serving.lock"


def interrupt_nobody(thread: int, is_so: bool = True) -> None:
    """Have a thread wait for its turn when it is woken, or no more.

    Threads that it starts do as it does. A class that somebody else gave it stays.

    Args:
        thread: Its number in the system.
        is_so: False takes it back.
    """
    batch = getattr(os, "SCHED_BATCH", None)
    if batch is None:
        return
    before, after = (os.SCHED_OTHER, batch) if is_so else (batch, os.SCHED_OTHER)
    try:
        if os.sched_getscheduler(thread) == before:
            os.sched_setscheduler(thread, after, os.sched_param(0))
    except OSError as error:
        _LOG.warning("a training can't give way to predictions here: %s", error.strerror)


class GivesWay:
    """Has the thread that made this interrupt nobody while this machine serves a federation.

    Args:
        federation: Its directory.
    """

    def __init__(self, federation: Path) -> None:
        self._lock = _opened(federation)
        self._thread = threading.get_native_id()
        self._is_so = False
        self.look()

    def look(self) -> None:
        """See whether it is served; from any thread."""
        if self._is_so != (is_so := self._is_served()):
            self._is_so = is_so
            interrupt_nobody(self._thread, is_so)

    def _is_served(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """The thread may interrupt others again."""
        os.close(self._lock)
        interrupt_nobody(self._thread, False)


@contextlib.contextmanager
def served_here(federation: Path) -> Iterator[None]:
    """Say to trainings of this federation, on this machine, that it is being served."""
    lock = _opened(federation)
    try:
        # Several may serve, and whoever looks takes no time.
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    finally:
        # The system lets go of the lock when the process ends, however it ends.
        os.close(lock)


def _opened(federation: Path) -> int:
    path = federation / _LOCK
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(f"{path}: can't be written: {error.strerror}") from error
