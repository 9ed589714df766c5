"""The party's side of a link: dials out, keeps one stream, executes calls in order, replies.

An agent keeps over a cut: the session, the number of the last call received, and every reply that
the hub has not acknowledged. A call is executed at most once: a number that was seen before is
dropped, a skipped number ends the stream. The incarnation, drawn when the process starts, tells it
from an earlier process of the same party.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Callable

import grpc
import grpc.aio

from colonnade.core.errors import ColonnadeError, IdentityRefused, ProtocolError
from colonnade.core.printable import printable
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.event_loop import event_loop
from colonnade.fabrics.grpc.execution import AgentStatus, Execution, PartySession, where_it_happened
from colonnade.fabrics.grpc.frames import (
    RELEASE,
    CallBody,
    Frame,
    FrameKind,
    Hello,
    Notice,
    Opening,
    decode_frames,
    encode_frame,
)
from colonnade.fabrics.grpc.identity import HUB_NAME, Identity
from colonnade.fabrics.grpc.link_settings import METHOD, SWEEP_SECONDS, LinkSpec
from colonnade.fabrics.grpc.stream_operations import StreamOperations

__all__ = ["Agent"]

# How long an agent that ends tries to hand over its last replies.
LEAVE_SECONDS = 5.0
# How long an agent waits for the hub's reason when a stream ends.
_LAST_WORDS_SECONDS = 1.0

_LOG = logging.getLogger("colonnade.agent")

# gRPC's words for a ping that was not answered.
_MUTE = "ping timeout"


class Agent:
    """One party's agent; ``respondent_for`` gives the respondent for a session's purpose.

    ``lane`` tells a party's links to one hub apart: each has an agent, and a session, of its own.
    ``serve`` executes calls in the thread that called it, until ``stop``. It raises a refusal that
    dialling again can't mend.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        address: str,
        respondent_for: Callable[[str], Respondent],
        links: LinkSpec | None = None,
        lane: int = 0,
    ) -> None:
        self.status = AgentStatus()
        # Called on the event loop whenever a link was made; it must not block.
        self.on_connect: Callable[[], None] = lambda: None
        self._identity = identity
        self._address = address
        self._lane = lane
        self._spec = links or LinkSpec()
        self._incarnation = secrets.randbits(63) | 1
        self._execution = Execution(
            party=identity.name,
            respondent_for=respondent_for,
            message_bytes=self._spec.message_bytes,
            call_timeout=self._spec.call_timeout,
            status=self.status,
            has_replied=self._wake,
        )
        # Owned by the event loop's thread.
        self._session = PartySession(Opening(0, ""), self._spec.outbox_bytes)
        self._attempt: asyncio.Task[None] | None = None
        self._control: list[bytes] = []
        self._is_last_message = False
        self._is_leaving = asyncio.Event()
        self._has_progressed = False
        self._has_news = asyncio.Event()
        self._error: ColonnadeError | None = None

    def serve(self) -> None:
        """Answer calls until ``stop``: in this thread, in order."""
        dialling = asyncio.run_coroutine_threadsafe(self._stay_connected(), event_loop())
        try:
            self._execution.run()
            # The call that was under way counts only if the hub has its reply.
            self._session.replies.drain(LEAVE_SECONDS)
        finally:
            event_loop().call_soon_threadsafe(self._leave)
            with contextlib.suppress(Exception):
                dialling.result(timeout=10)
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        event_loop().call_soon_threadsafe(self._has_news.set)

    def stop(self) -> None:
        """End ``serve`` after the call that is under way; from any thread or signal handler.

        A call that takes longer than a few seconds more is given up between two local steps.
        """
        self._execution.end(hurries=True)

    def reconnect(self) -> None:
        """Cut the stream and dial again, e.g. with a renewed identity."""
        event_loop().call_soon_threadsafe(self._cut)

    def renew(self, identity: Identity) -> None:
        """Use another certificate from the next dial on."""
        if identity.name != self._identity.name:
            raise IdentityRefused(
                f"'{identity.name}' can't replace the identity of '{self._identity.name}'"
            )
        self._identity = identity

    # The event loop's thread

    def _leave(self) -> None:
        self._is_leaving.set()
        self._cut()

    def _cut(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()

    async def _stay_connected(self) -> None:
        wait = 0.0
        draw = random.Random()
        sweeping = asyncio.ensure_future(self._sweep())
        try:
            while not self._is_leaving.is_set():
                self._has_progressed = False
                began = time.monotonic()
                self._attempt = asyncio.ensure_future(self._connect())
                await asyncio.wait([self._attempt])
                self._error = self._note_ending(self._attempt)
                if self._error is not None:
                    return
                # A stream that carried calls, or lasted, is replaced at once.
                was_long = time.monotonic() - began > self._spec.backoff_most
                wait = 0.0 if self._has_progressed or was_long else wait
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait * (1 - draw.random() / 2)):
                        await self._is_leaving.wait()
                wait = min(max(2 * wait, self._spec.backoff), self._spec.backoff_most)
        finally:
            sweeping.cancel()
            self._execution.end()
            self._session.replies.close()

    def _note_ending(self, attempt: asyncio.Task[None]) -> ColonnadeError | None:
        """Log why a stream ended; returns the error if dialling again can't mend it."""
        error = None if attempt.cancelled() else attempt.exception()
        if error is None:
            return None
        if isinstance(error, _Refused):
            self._note(f"{error.kind}: {error}")
            # Dialling again can't mend this one.
            return IdentityRefused(str(error)) if error.kind == "IdentityRefused" else None
        if isinstance(error, grpc.aio.AioRpcError):
            details = str(error.details())
            is_slow = " (or slow: raise link.ping_timeout, here and there)"
            self._note(f"{error.code().name}: {details}{is_slow if _MUTE in details else ''}")
        elif isinstance(error, TimeoutError):
            self._note(f"no answer within {self._spec.hello_timeout:g} s (link.hello_timeout)")
        elif isinstance(error, ProtocolError | EOFError | asyncio.InvalidStateError):
            self._note(f"{type(error).__name__}: {error}")
        else:
            # Nothing that happens on a link ends the process.
            self._note(f"{type(error).__name__}\n{where_it_happened(error)}")
        return None

    def _note(self, what: str) -> None:
        what = printable(what, keep="\n")
        if what != self.status.last_error:
            _LOG.warning("link to %s: %s", self._address, what)
        self.status.last_error = what

    async def _connect(self) -> None:
        """One stream, from dialling to its end."""
        identity = self._identity
        credentials = grpc.ssl_channel_credentials(
            identity.authority, identity.key, identity.certificate
        )
        options = [
            *self._spec.options(),
            ("grpc.ssl_target_name_override", HUB_NAME),
            # Every dial is independent: gRPC adds no waits to ours.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ]
        async with grpc.aio.secure_channel(self._address, credentials, options=options) as channel:
            call = channel.stream_stream(METHOD)()
            wire = StreamOperations(call)
            try:
                async with asyncio.timeout(self._spec.hello_timeout):
                    # A call that is cancelled before there is a connection leaves an operation
                    # behind that never ends. This wait is Python's alone and can be cancelled.
                    await call.wait_for_connection()
                    await self._greet(wire)
                await self._converse(wire)
            finally:
                if self.status.is_connected:
                    self.status.is_connected = False
                    self.status.num_cuts += 1
                call.cancel()
                await wire.settle(_LAST_WORDS_SECONDS)

    async def _converse(self, wire: StreamOperations) -> None:
        """Read and write until either ends; raises the reader's error first, which says why."""
        reading = asyncio.ensure_future(self._read(wire))
        writing = asyncio.ensure_future(self._write(wire))
        try:
            await asyncio.wait([reading, writing], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                # Writing fails at once on a stream that the hub has ended: read the reason.
                await asyncio.wait([reading], timeout=_LAST_WORDS_SECONDS)
            elif isinstance(error := reading.exception(), ProtocolError):
                notice = Notice("ProtocolError", str(error))
                self._control.append(encode_frame(FrameKind.REFUSE, notice))
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(_LAST_WORDS_SECONDS):
                        await self._finish_writing(wire, writing)
        finally:
            for task in (reading, writing):
                task.cancel()
            ends = await asyncio.gather(reading, writing, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _finish_writing(self, wire: StreamOperations, writing: asyncio.Future[None]) -> None:
        """Have the last frame written, and wait until the hub has ended the stream too."""
        self._is_last_message = True
        self._has_news.set()
        await asyncio.wait([writing])
        await wire.done_writing()
        while await wire.read() is not grpc.aio.EOF:
            pass

    async def _greet(self, wire: StreamOperations) -> None:
        session = self._session
        self._control.clear()
        self._is_last_message = False
        hello = Hello(self._identity.name, self._incarnation, session.id, RELEASE)
        greeting = encode_frame(FrameKind.HELLO, hello, id=self._lane, seen=session.received)
        await wire.write(greeting)
        message = await wire.read()
        if message is grpc.aio.EOF:
            raise EOFError("the hub closed the stream before it said anything")
        frames = list(decode_frames(message))
        welcome = frames[0]
        self._raise_refusal(welcome)
        if welcome.kind is not FrameKind.WELCOME or not isinstance(welcome.body, Opening):
            raise ProtocolError(f"the hub began with {welcome.kind.name}, not with WELCOME")
        if welcome.body.session == session.id:
            session.replies.acknowledge(welcome.seen)
            session.replies.rewind(welcome.seen)
            session.acknowledged = 0
        self.status.is_connected = True
        self.status.num_connects += 1
        self.status.last_error = ""
        _LOG.info("connected to %s", self._address)
        if welcome.body.release != RELEASE:
            _LOG.warning("the hub runs colonnade %s, this agent %s", welcome.body.release, RELEASE)
        self.on_connect()
        for frame in frames[1:]:
            self._take(frame)
        self._has_news.set()

    async def _read(self, wire: StreamOperations) -> None:
        await wire.read_all(self._take_message)
        raise EOFError("the hub closed the stream")

    def _take_message(self, message: bytes) -> bool:
        self.status.wire_bytes_down += len(message)
        for frame in decode_frames(message):
            self._take(frame)
        return True

    def _take(self, frame: Frame) -> None:
        self._raise_refusal(frame)
        kind, body, session = frame.kind, frame.body, self._session
        if kind in (FrameKind.CALL, FrameKind.BARRIER):
            if not session.id:
                raise ProtocolError("a call before any session was opened")
            if frame.id <= session.received:
                return  # sent again after a cut; it is here already, or done
            if frame.id != session.received + 1:
                raise ProtocolError(
                    f"call {frame.id} out of order; after {session.received} comes "
                    f"{session.received + 1}"
                )
            session.received = frame.id
            self._has_progressed = True
            call = body if isinstance(body, CallBody) else None
            self._execution.add(session, frame.id, call)
        elif kind is FrameKind.ACKNOWLEDGE:
            session.replies.acknowledge(frame.seen)
        elif kind is FrameKind.OPEN and isinstance(body, Opening) and body.session:
            if body.session != session.id:
                self._begin(body)
        elif kind is FrameKind.CLOSE:
            _LOG.info("the hub closed the session")
            self._begin(Opening(0, ""))
        else:
            raise ProtocolError(f"a hub does not send {kind.name} here")

    def _begin(self, opening: Opening) -> None:
        # This releases a thread that waits for room for a reply of the old session.
        self._session.replies.close()
        self._session = PartySession(opening, self._spec.outbox_bytes)
        self._has_progressed = True
        # Tells the hub that the frames after this one belong to the new session.
        self._control.append(encode_frame(FrameKind.OPEN, opening))
        self._has_news.set()
        if opening.session:
            _LOG.info("a session begins: %s", opening.purpose)
            self._execution.begin(self._session)

    def _raise_refusal(self, frame: Frame) -> None:
        if frame.kind is FrameKind.REFUSE and isinstance(frame.body, Notice):
            raise _Refused(frame.body)

    async def _write(self, wire: StreamOperations) -> None:
        await wire.write_all(self._has_news, self._next_message, lambda: self._is_last_message)

    def _next_message(self) -> bytes:
        session = self._session
        frames, self._control = self._control, []
        if session.taken > session.acknowledged:
            session.acknowledged = session.taken
            frames.append(encode_frame(FrameKind.ACKNOWLEDGE, seen=session.acknowledged))
        frames += session.replies.take(self._spec.message_bytes // 2)
        message = b"".join(frames)
        self.status.wire_bytes_up += len(message)
        return message

    async def _sweep(self) -> None:
        """Send acknowledgements that found no reply to travel with."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            if self._session.taken > self._session.acknowledged:
                self._has_news.set()


class _Refused(Exception):
    """The hub refused the stream, with a reason."""

    def __init__(self, notice: Notice) -> None:
        super().__init__(notice.message)
        self.kind = notice.kind
