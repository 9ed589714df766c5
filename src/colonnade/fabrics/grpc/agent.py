"""The party's side of a link: dials out, keeps one stream, executes calls in order, replies.

What survives a cut: the session, the number of the last call received, and every reply that the
hub has not acknowledged. A call is executed at most once: one whose number was seen before is not
executed again, one that skips a number ends the stream. The process itself is told apart from an
earlier one of the same party by its incarnation, drawn when it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import random
import secrets
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio

from colonnade.core.errors import ColonnadeError, IdentityRefused, ProtocolError
from colonnade.core.messages import Call, Failure, Value, num_payload_bytes
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.event_loop import event_loop
from colonnade.fabrics.grpc.frames import (
    CallBody,
    Frame,
    Hello,
    Kind,
    Notice,
    Opening,
    ReplyBody,
    decode_frames,
    encode_frame,
)
from colonnade.fabrics.grpc.identity import HUB_NAME, Identity
from colonnade.fabrics.grpc.lines import Line
from colonnade.fabrics.grpc.outbox import Outbox
from colonnade.fabrics.grpc.settings import LinkSpec

__all__ = ["METHOD", "Agent", "AgentStatus"]

METHOD = "/colonnade.Link/Connect"
# How often frames that wait for company, and acknowledgements, are sent on their own.
SWEEP_SECONDS = 0.02
# How long an agent that ends tries to hand over its last replies.
LEAVE_SECONDS = 5.0
# How long a stream that ends is listened to for why.
_LAST_WORDS_SECONDS = 1.0

_LOG = logging.getLogger("colonnade.agent")

# Refusals that dialling again can't mend.
_FINAL = ("IdentityRefused",)


@dataclass
class AgentStatus:
    """What an agent has been doing, for health and metrics."""

    is_connected: bool = False
    num_connects: int = 0
    num_cuts: int = 0
    num_calls: int = 0
    num_failures: int = 0
    seconds_computing: float = 0.0
    payload_bytes_up: int = 0
    wire_bytes_up: int = 0
    wire_bytes_down: int = 0
    last_error: str = ""


class _Session:
    """What was received, taken up and answered since the hub opened it."""

    def __init__(self, opening: Opening, outbox_bytes: int) -> None:
        self.id = opening.session
        self.purpose = opening.purpose
        self.replies = Outbox(outbox_bytes)
        # Numbers of calls: received and acknowledged to the hub by the event loop's thread, taken
        # up by the thread that executes.
        self.received = 0
        self.acknowledged = 0
        self.taken = 0
        # For the thread that executes.
        self.respondent: Respondent | None = None
        self.failure: Failure | None = None
        self.seconds = 0.0


@dataclass(frozen=True, slots=True)
class _Do:
    """A call, or without a body: answer that everything before it is done."""

    session: _Session
    id: int
    body: CallBody | None


class _Stop:
    """Execute nothing more."""


class Agent:
    """One party's agent; ``respondent_for`` gives who answers in a session of some purpose.

    ``serve`` executes calls in the thread that called it, until ``stop``. A refusal that dialling
    again can't mend is raised from there.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        address: str,
        respondent_for: Callable[[str], Respondent],
        links: LinkSpec | None = None,
    ) -> None:
        self.status = AgentStatus()
        self._identity = identity
        self._address = address
        self._respondent_for = respondent_for
        self._spec = links or LinkSpec()
        self._incarnation = secrets.randbits(63) | 1
        self._work: queue.SimpleQueue[_Session | _Do | _Stop] = queue.SimpleQueue()
        self._is_ending = False
        # Owned by the event loop's thread.
        self._session = _Session(Opening(0, ""), self._spec.outbox_bytes)
        self._attempt: asyncio.Task[None] | None = None
        self._control: list[bytes] = []
        self._is_last_message = False
        self._is_leaving = asyncio.Event()
        self._has_progressed = False
        self._has_news = asyncio.Event()
        self._error: ColonnadeError | None = None

    def serve(self) -> None:
        """Answer calls until told to stop; every call in this thread, in order."""
        dialling = asyncio.run_coroutine_threadsafe(self._stay_connected(), event_loop())
        try:
            self._answer()
            # The call that was under way counts only if the hub has its reply.
            self._session.replies.drain(LEAVE_SECONDS)
        finally:
            event_loop().call_soon_threadsafe(self._leave)
            with contextlib.suppress(Exception):
                dialling.result(timeout=10)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End ``serve`` after the call that is under way; from any thread or signal handler."""
        self._is_ending = True
        self._work.put(_Stop())

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

    # The thread that executes

    def _answer(self) -> None:
        current = None
        while not isinstance(item := self._work.get(), _Stop):
            if isinstance(item, _Session):
                current = item
                self._open(current)
            elif item.session is current:
                current.taken = item.id
                self._do(item)

    def _open(self, session: _Session) -> None:
        try:
            session.respondent = self._respondent_for(session.purpose)
        except ColonnadeError as error:
            session.failure = Failure(type(error).__name__, str(error))
        except Exception as error:
            _LOG.warning("opening a session failed: %s\n%s", type(error).__name__, _where(error))
            session.failure = Failure(type(error).__name__, "when a session began; see its log")

    def _do(self, item: _Do) -> None:
        session = item.session
        began = time.perf_counter()
        value, failure = self._executed(item, session)
        took = time.perf_counter() - began
        self.status.seconds_computing += took
        session.seconds += took
        if item.body is None or item.body.wants_reply or failure is not None:
            self._reply(item, ReplyBody(value, failure, session.seconds))
            session.seconds = 0.0

    def _executed(self, item: _Do, session: _Session) -> tuple[Value, Failure | None]:
        body = item.body
        if body is None:
            return None, None
        if session.respondent is None:
            return None, session.failure
        self.status.num_calls += 1
        reply = session.respondent.execute(
            Call(
                item.id,
                self._identity.name,
                body.verb,
                body.arguments,
                body.exchange,
                body.wants_reply,
            )
        )
        if reply.failure is not None:
            self.status.num_failures += 1
            where = _where(reply.failure.cause)
            _LOG.warning("verb %r failed: %s\n%s", body.verb, reply.failure.kind, where)
        return reply.value, reply.failure

    def _reply(self, item: _Do, body: ReplyBody) -> None:
        try:
            frame = encode_frame(Kind.REPLY, body, id=item.id)
            if len(frame) > self._spec.message_bytes:
                raise ProtocolError(
                    f"a reply of {len(frame)} bytes; at most {self._spec.message_bytes} "
                    "(message_bytes) may cross a link"
                )
        except ProtocolError as error:
            failure = Failure(type(error).__name__, str(error))
            frame = encode_frame(Kind.REPLY, ReplyBody(None, failure, body.seconds), id=item.id)
        self.status.payload_bytes_up += num_payload_bytes(body.value)
        replies = item.session.replies
        while not replies.put(item.id, frame, timeout=LEAVE_SECONDS):
            # No room: the hub takes nothing. That is waited for, but not by an agent that ends.
            if replies.is_closed or self._is_ending:
                return
        event_loop().call_soon_threadsafe(self._has_news.set)

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
                self._attempt = asyncio.ensure_future(self._connect())
                await asyncio.wait([self._attempt])
                self._error = self._said_at_the_end(self._attempt)
                if self._error is not None:
                    return
                wait = 0.0 if self._has_progressed else wait
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait * (1 - draw.random() / 2)):
                        await self._is_leaving.wait()
                wait = min(max(2 * wait, self._spec.backoff), self._spec.backoff_most)
        finally:
            sweeping.cancel()
            self._work.put(_Stop())
            self._session.replies.close()

    def _said_at_the_end(self, attempt: asyncio.Task[None]) -> ColonnadeError | None:
        """Note why a stream ended; what dialling again can't mend."""
        error = None if attempt.cancelled() else attempt.exception()
        if error is None:
            return None
        if isinstance(error, _Refused):
            self._note(f"{error.kind}: {error}")
            return IdentityRefused(str(error)) if error.kind in _FINAL else None
        if isinstance(error, grpc.aio.AioRpcError):
            self._note(f"{error.code().name}: {error.details()}")
        elif isinstance(error, ProtocolError | TimeoutError | EOFError | asyncio.InvalidStateError):
            self._note(f"{type(error).__name__}: {error}")
        else:
            # Nothing that happens on a link ends the process.
            self._note(f"{type(error).__name__}\n{_where(error)}")
        return None

    def _note(self, what: str) -> None:
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
            # Every dial stands for itself: no waiting of gRPC's own on top of ours.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ]
        async with grpc.aio.secure_channel(self._address, credentials, options=options) as channel:
            call = channel.stream_stream(METHOD)()
            line = Line(call)
            try:
                async with asyncio.timeout(self._spec.hello_timeout):
                    await self._greet(line)
                await self._converse(line)
            finally:
                if self.status.is_connected:
                    self.status.is_connected = False
                    self.status.num_cuts += 1
                call.cancel()
                await line.settle(_LAST_WORDS_SECONDS)

    async def _converse(self, line: Line) -> None:
        """Read and write until either ends; why is what the reader found, if it found anything."""
        reading = asyncio.ensure_future(self._read(line))
        writing = asyncio.ensure_future(self._write(line))
        try:
            await asyncio.wait([reading, writing], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                # Writing fails at once on a stream that the hub has ended; why is yet to be read.
                await asyncio.wait([reading], timeout=_LAST_WORDS_SECONDS)
            elif isinstance(error := reading.exception(), ProtocolError):
                notice = Notice("ProtocolError", str(error))
                self._control.append(encode_frame(Kind.REFUSE, notice))
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(_LAST_WORDS_SECONDS):
                        await self._hear_out(line, writing)
        finally:
            for task in (reading, writing):
                task.cancel()
            ends = await asyncio.gather(reading, writing, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _hear_out(self, line: Line, writing: asyncio.Future[None]) -> None:
        """Have the last frame written, and wait until the hub has ended the stream too."""
        self._is_last_message = True
        self._has_news.set()
        await asyncio.wait([writing])
        await line.done_writing()
        while await line.read() is not grpc.aio.EOF:
            pass

    async def _greet(self, line: Line) -> None:
        session = self._session
        self._control.clear()
        self._is_last_message = False
        hello = Hello(self._identity.name, self._incarnation, session.id)
        await line.write(encode_frame(Kind.HELLO, hello, seen=session.received))
        message = await line.read()
        if message is grpc.aio.EOF:
            raise EOFError("the hub closed the stream before it said anything")
        frames = list(decode_frames(message))
        welcome = frames[0]
        self._mind_refusal(welcome)
        if welcome.kind is not Kind.WELCOME or not isinstance(welcome.body, Opening):
            raise ProtocolError(f"the hub began with {welcome.kind.name}, not with WELCOME")
        if welcome.body.session == session.id:
            session.replies.acknowledge(welcome.seen)
            session.replies.rewind(welcome.seen)
            session.acknowledged = 0
        self.status.is_connected = True
        self.status.num_connects += 1
        self.status.last_error = ""
        _LOG.info("connected to %s", self._address)
        for frame in frames[1:]:
            self._take(frame)
        self._has_news.set()

    async def _read(self, line: Line) -> None:
        while True:
            message = await line.read()
            if message is grpc.aio.EOF:
                raise EOFError("the hub closed the stream")
            self.status.wire_bytes_down += len(message)
            for frame in decode_frames(message):
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        self._mind_refusal(frame)
        self._has_progressed = True
        kind, body, session = frame.kind, frame.body, self._session
        if kind in (Kind.CALL, Kind.BARRIER):
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
            call = body if isinstance(body, CallBody) else None
            self._work.put(_Do(session, frame.id, call))
        elif kind is Kind.ACKNOWLEDGE:
            session.replies.acknowledge(frame.seen)
        elif kind is Kind.OPEN and isinstance(body, Opening) and body.session:
            if body.session != session.id:
                self._begin(body)
        elif kind is Kind.CLOSE:
            _LOG.info("the hub closed the session")
            self._begin(Opening(0, ""))
        else:
            raise ProtocolError(f"a hub does not send {kind.name} here")

    def _begin(self, opening: Opening) -> None:
        # A thread that waits for room for a reply of the old session waits no longer.
        self._session.replies.close()
        self._session = _Session(opening, self._spec.outbox_bytes)
        # What follows belongs to the new session.
        self._control.append(encode_frame(Kind.OPEN, opening))
        self._has_news.set()
        if opening.session:
            _LOG.info("a session begins: %s", opening.purpose)
            self._work.put(self._session)

    def _mind_refusal(self, frame: Frame) -> None:
        if frame.kind is Kind.REFUSE and isinstance(frame.body, Notice):
            raise _Refused(frame.body)

    async def _write(self, line: Line) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            while message := self._next_message():
                self.status.wire_bytes_up += len(message)
                await line.write(message)
            if self._is_last_message:
                return

    def _next_message(self) -> bytes:
        session = self._session
        frames, self._control = self._control, []
        if session.taken > session.acknowledged:
            session.acknowledged = session.taken
            frames.append(encode_frame(Kind.ACKNOWLEDGE, seen=session.acknowledged))
        frames += session.replies.take(self._spec.message_bytes // 2)
        return frames[0] if len(frames) == 1 else b"".join(frames)

    async def _sweep(self) -> None:
        """Send acknowledgements that found no reply to travel with."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            if self._session.taken > self._session.acknowledged:
                self._has_news.set()


class _Refused(Exception):
    """The hub ended the stream, and said why."""

    def __init__(self, notice: Notice) -> None:
        super().__init__(notice.message)
        self.kind = notice.kind


def _where(error: BaseException | None) -> str:
    """Where it happened, not what was said: another library's message may quote data."""
    return "" if error is None else "".join(traceback.format_tb(error.__traceback__))
