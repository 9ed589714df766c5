"""A party's link as the hub knows it: its streams over time, what is read and written on them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import grpc.aio

from colonnade.core.errors import ProtocolError
from colonnade.fabrics.grpc.frames import (
    Hello,
    Kind,
    Notice,
    Opening,
    decode_frames,
    encode_frame,
)
from colonnade.fabrics.grpc.lines import Line
from colonnade.fabrics.grpc.posts import Post

__all__ = ["Link", "LinkStatus", "Stream"]

_LOG = logging.getLogger("colonnade.hub")

# So long a stream that ends waits for its last frame to be written.
_ENDING_SECONDS = 2.0


@dataclass
class LinkStatus:
    """What a party's link has been doing, for health and metrics."""

    is_connected: bool = False
    num_connects: int = 0
    num_restarts: int = 0
    num_refused: int = 0
    wire_bytes_up: int = 0
    wire_bytes_down: int = 0
    last_error: str = ""


class Stream:
    """One connection of a party."""

    def __init__(self, line: Line, hello: Hello) -> None:
        self.line = line
        self.incarnation = hello.incarnation
        # The session that the party's frames belong to, as it said last.
        self.session = hello.session
        self.has_news = asyncio.Event()
        self.control: list[bytes] = []
        self.is_ending = False
        self.writing: asyncio.Task[None] | None = None

    async def end(self, *last: bytes) -> None:
        """Have the rest written; a write under way is not cancelled, or gRPC loses its count."""
        self.control += last
        self.is_ending = True
        self.has_news.set()
        if self.writing is not None:
            await asyncio.wait([self.writing], timeout=_ENDING_SECONDS)
            self.writing.cancel()


class Link:
    """A party as the hub knows it, over all its connections."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.status = LinkStatus()
        self.stream: Stream | None = None
        self.post: Post | None = None

    def detach(self) -> None:
        """It has no stream now."""
        self.stream = None
        self.status.is_connected = False
        _LOG.info("party '%s' is disconnected", self.name)

    async def read(self, stream: Stream) -> None:
        """Take in what the party says, until it or this stream ends."""
        while True:
            message = await stream.line.read()
            if message is grpc.aio.EOF or self.stream is not stream:
                return
            self.status.wire_bytes_up += len(message)
            for frame in decode_frames(message):
                if frame.kind is Kind.REFUSE and isinstance(frame.body, Notice):
                    raise ProtocolError(f"the party refused a message: {frame.body.message}")
                if frame.kind is Kind.OPEN and isinstance(frame.body, Opening):
                    stream.session = frame.body.session
                elif self.post is not None and stream.session == self.post.session:
                    self.post.take(frame)
                # Anything else belongs to a session that is over.

    async def write(self, stream: Stream, most_bytes: int) -> None:
        """Write out what there is, at most so many bytes of calls at a time, until the end."""
        try:
            while True:
                await stream.has_news.wait()
                stream.has_news.clear()
                while message := self._next_message(stream, most_bytes):
                    self.status.wire_bytes_down += len(message)
                    await stream.line.write(message)
                if stream.is_ending:
                    return
        except Exception as error:
            # A stream that can't be written to has ended; the reader finds out by itself.
            _LOG.info("writing to '%s' failed: %s", self.name, type(error).__name__)

    def _next_message(self, stream: Stream, most_bytes: int) -> bytes:
        frames, stream.control = stream.control, []
        # Where another stream has taken over, what is unsent is for that one.
        post = self.post if self.stream is stream and not stream.is_ending else None
        if post is not None and post.incarnation == stream.incarnation:
            if post.seen > post.acknowledged:
                post.acknowledged = post.seen
                frames.append(encode_frame(Kind.ACKNOWLEDGE, seen=post.seen))
            frames += post.outbox.take(most_bytes)
        return frames[0] if len(frames) == 1 else b"".join(frames)
