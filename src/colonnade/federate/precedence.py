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


def interrupt_nobody(thread: int) -> bool:
    """Have a thread wait for its turn when it is woken, and threads that it starts.

    Args:
        thread: Its number in the system.

    Returns:
        Whether it did not before. A class that somebody else gave it stays.
    """
    return hasattr(os, "SCHED_BATCH") and _changed(thread, os.SCHED_OTHER, os.SCHED_BATCH)


def _changed(thread: int, before: int, after: int) -> bool:
    try:
        if os.sched_getscheduler(thread) != before:
            return False
        os.sched_setscheduler(thread, after, os.sched_param(0))
    except OSError as error:
        _LOG.warning("a training can't give way to predictions here: %s", error.strerror)
        return False
    return True


class GivesWay:
    """Has the thread that made this interrupt nobody while this machine serves a federation.

    Args:
        federation: Its directory.
    """

    def __init__(self, federation: Path) -> None:
        self._lock = _opened(federation)
        self._thread = threading.get_native_id()
        self._is_served = self._is_changed = False
        self.look()

    def look(self) -> None:
        """See whether it is served; from any thread."""
        before, self._is_served = self._is_served, self._is_locked()
        if self._is_served and not before:
            self._is_changed = interrupt_nobody(self._thread)
        elif before and not self._is_served:
            self._take_back()

    def close(self) -> None:
        """The thread may interrupt others again."""
        os.close(self._lock)
        self._take_back()

    def _take_back(self) -> None:
        if self._is_changed:
            self._is_changed = False
            _changed(self._thread, os.SCHED_BATCH, os.SCHED_OTHER)

    def _is_locked(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return False


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
