"""Frames to send, kept until the other side acknowledges them, and sent again after a cut."""

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
        """Whether ``close`` was called."""
        return self._is_closed

    @property
    def num_bytes(self) -> int:
        """Bytes of all frames that are kept."""
        return self._num_bytes

    @property
    def has_unsent(self) -> bool:
        """Whether a frame waits to be written."""
        return bool(self._unsent)

    def put(self, number: int, frame: bytes, timeout: float | None = None) -> bool:
        """Add a frame, waiting while there is no room; returns whether it was added.

        An empty outbox takes a frame of any size.
        """
        with self._changed:
            has_room = self._changed.wait_for(lambda: self._has_room(frame), timeout)
            if not has_room or self._is_closed:
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
        """The next frames to write together; they are kept until they are acknowledged."""
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
        """Wait until the other side has everything; returns whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._num_bytes, timeout)

    def rewind(self, received: int) -> None:
        """After a cut: send the frames after this number again."""
        with self._changed:
            while self._sent and self._sent[-1][0] > received:
                self._unsent.appendleft(self._sent.pop())

    def close(self) -> None:
        """Drop everything, and release threads that wait."""
        with self._changed:
            self._is_closed = True
            self._unsent.clear()
            self._sent.clear()
            self._num_bytes = 0
            self._changed.notify_all()
