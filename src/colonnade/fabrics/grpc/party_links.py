"""A party's link at the hub: its streams over time, and reading and writing them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from colonnade.core.errors import ProtocolError
from colonnade.fabrics.grpc.call_queue import CallQueue
from colonnade.fabrics.grpc.frames import (
    FrameKind,
    Hello,
    Notice,
    Opening,
    decode_frames,
    encode_frame,
)
from colonnade.fabrics.grpc.stream_operations import StreamOperations

__all__ = ["LinkStatus", "PartyLink", "PartyStream"]

_LOG = logging.getLogger("colonnade.hub")

# How long a stream that ends waits for its last frame to be written.
_ENDING_SECONDS = 2.0


@dataclass
class LinkStatus:
    """Counts and state of a party's link, for health and metrics."""

    is_connected: bool = False
    num_connects: int = 0
    num_restarts: int = 0
    num_refused: int = 0
    wire_bytes_up: int = 0
    wire_bytes_down: int = 0
    last_error: str = ""
    # The Colonnade that the party runs.
    release: str = ""

    def beside(self, other: LinkStatus) -> LinkStatus:
        """The status of a party over this link and another one of it."""
        return LinkStatus(
            is_connected=self.is_connected or other.is_connected,
            num_connects=self.num_connects + other.num_connects,
            num_restarts=self.num_restarts + other.num_restarts,
            num_refused=self.num_refused + other.num_refused,
            wire_bytes_up=self.wire_bytes_up + other.wire_bytes_up,
            wire_bytes_down=self.wire_bytes_down + other.wire_bytes_down,
            last_error=other.last_error or self.last_error,
            release=other.release or self.release,
        )


class PartyStream:
    """One connection of a party."""

    def __init__(self, wire: StreamOperations, hello: Hello) -> None:
        self.wire = wire
        self.incarnation = hello.incarnation
        # The session that the party's frames belong to, by its last OPEN frame.
        self.session = hello.session
        self.has_news = asyncio.Event()
        self.control: list[bytes] = []
        self.is_ending = False
        self.writing: asyncio.Task[None] | None = None

    def send(self, frame: bytes) -> None:
        """Have a frame written before all calls."""
        self.control.append(frame)
        self.has_news.set()

    async def end(self, *last: bytes) -> None:
        """Have the rest written. A write under way is not cancelled, or gRPC loses its count."""
        self.control += last
        self.is_ending = True
        self.has_news.set()
        if self.writing is not None:
            await asyncio.wait([self.writing], timeout=_ENDING_SECONDS)
            self.writing.cancel()


class PartyLink:
    """A party's link over all its streams, and its calls in the session that is open."""

    def __init__(self, name: str, lane: int = 0) -> None:
        self.name = name
        self.lane = lane
        self.status = LinkStatus()
        self.stream: PartyStream | None = None
        self.calls: CallQueue | None = None

    def detach(self) -> None:
        """Note that the party is disconnected."""
        self.stream = None
        self.status.is_connected = False
        _LOG.info("party '%s' is disconnected", self.name)

    async def read(self, stream: PartyStream) -> None:
        """Take in the party's frames, until the stream ends or another replaces it."""
        await stream.wire.read_all(partial(self._take, stream))

    def _take(self, stream: PartyStream, message: bytes) -> bool:
        if self.stream is not stream:
            return False
        self.status.wire_bytes_up += len(message)
        for frame in decode_frames(message):
            if frame.kind is FrameKind.REFUSE and isinstance(frame.body, Notice):
                raise ProtocolError(f"the party refused a message: {frame.body.message}")
            if frame.kind is FrameKind.OPEN and isinstance(frame.body, Opening):
                stream.session = frame.body.session
            elif self.calls is not None and stream.session == self.calls.session:
                self.calls.take(frame)
            # All other frames belong to a session that is over.
        return True

    async def write(self, stream: PartyStream, most_bytes: int) -> None:
        """Write queued frames, at most ``most_bytes`` of calls at a time, until the stream ends."""
        try:
            await stream.wire.write_all(
                stream.has_news,
                partial(self._next_message, stream, most_bytes),
                lambda: stream.is_ending,
            )
        except Exception as error:
            # A stream that can't be written to has ended, which the reader notices by itself.
            _LOG.info("writing to '%s' failed: %s", self.name, type(error).__name__)

    def _next_message(self, stream: PartyStream, most_bytes: int) -> bytes:
        frames, stream.control = stream.control, []
        # Calls are for the newest stream only.
        calls = self.calls if self.stream is stream and not stream.is_ending else None
        if calls is not None and calls.incarnation == stream.incarnation:
            if calls.seen > calls.acknowledged:
                calls.acknowledged = calls.seen
                frames.append(encode_frame(FrameKind.ACKNOWLEDGE, seen=calls.seen))
            frames += calls.outbox.take(most_bytes)
        message = b"".join(frames)
        self.status.wire_bytes_down += len(message)
        return message
