"""Frames that were sent and may have to be sent again: kept until the other side has them."""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["Outbox"]


class Outbox:
    """Numbered frames in order, each kept until it is acknowledged; bounded in bytes.

    One thread puts frames in, another takes them out to write them to the stream.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._unsent: deque[tuple[int, bytes]] = deque()
        self._sent: deque[tuple[int, bytes]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing is kept any more."""
        return self._is_closed

    @property
    def num_bytes(self) -> int:
        """How much is kept."""
        return self._num_bytes

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._unsent)

    def put(self, number: int, frame: bytes, timeout: float | None = None) -> bool:
        """Add a frame, waiting while there is no room; whether it was added.

        Whatever its size, a frame fits into an empty outbox.
        """
        with self._changed:
            if not self._has_room(frame) and not self._changed.wait_for(
                lambda: self._has_room(frame), timeout
            ):
                return False
            if self._is_closed:
                return False
            self._unsent.append((number, frame))
            self._num_bytes += len(frame)
            return True

    def _has_room(self, frame: bytes) -> bool:
        return (
            self._is_closed
            or not self._num_bytes
            or self._num_bytes + len(frame) <= self._most_bytes
        )

    def take(self, most_bytes: int) -> list[bytes]:
        """The next frames to write together; they stay here as sent."""
        taken: list[bytes] = []
        total = 0
        with self._changed:
            while self._unsent:
                total += len(self._unsent[0][1])
                if taken and total > most_bytes:
                    break
                entry = self._unsent.popleft()
                self._sent.append(entry)
                taken.append(entry[1])
        return taken

    def acknowledge(self, number: int) -> None:
        """The other side has everything up to this number."""
        if not self._sent or self._sent[0][0] > number:
            return
        with self._changed:
            while self._sent and self._sent[0][0] <= number:
                self._num_bytes -= len(self._sent.popleft()[1])
            self._changed.notify_all()

    def drain(self, timeout: float) -> bool:
        """Wait until the other side has everything; whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._num_bytes, timeout)

    def rewind(self, received: int) -> None:
        """After a cut: what the other side has not received is to be sent again."""
        with self._changed:
            while self._sent and self._sent[-1][0] > received:
                self._unsent.appendleft(self._sent.pop())

    def close(self) -> None:
        """Forget everything, and let nobody wait."""
        with self._changed:
            self._is_closed = True
            self._unsent.clear()
            self._sent.clear()
            self._num_bytes = 0
            self._changed.notify_all()
