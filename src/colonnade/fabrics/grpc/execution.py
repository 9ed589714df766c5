"""Where a party's calls are executed: one thread, one call after the other, each once.

Another thread keeps the link alive meanwhile, so that a long computation is not mistaken for a dead
machine. Replies are left in the session's outbox, from where the link takes them.
"""

from __future__ import annotations

import logging
import queue
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from colonnade.core.errors import ColonnadeError, ProtocolError
from colonnade.core.messages import Call, Failure, Value, num_payload_bytes
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.frames import CallBody, Kind, Opening, ReplyBody, encode_frame
from colonnade.fabrics.grpc.outbox import Outbox

__all__ = ["AgentStatus", "Execution", "PartySession", "where_it_happened"]

_LOG = logging.getLogger("colonnade.agent")

# So often a thread that waits for room for a reply looks whether it still should.
_LOOK_SECONDS = 5.0


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


class PartySession:
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

    session: PartySession
    id: int
    body: CallBody | None


class _Stop:
    """Execute nothing more."""


class Execution:
    """A queue of sessions and calls, and the thread that works them off in ``run``.

    ``respondent_for`` gives who answers in a session of some purpose; ``has_replied`` is called
    when a reply is ready.
    """

    def __init__(
        self,
        *,
        party: str,
        respondent_for: Callable[[str], Respondent],
        message_bytes: int,
        status: AgentStatus,
        has_replied: Callable[[], None],
    ) -> None:
        self._party = party
        self._respondent_for = respondent_for
        self._message_bytes = message_bytes
        self._status = status
        self._has_replied = has_replied
        self._work: queue.SimpleQueue[PartySession | _Do | _Stop] = queue.SimpleQueue()
        self._is_ending = False

    # From any thread

    def begin(self, session: PartySession) -> None:
        """What follows belongs to this session."""
        self._work.put(session)

    def add(self, session: PartySession, number: int, body: CallBody | None) -> None:
        """A call; without a body the question whether everything before it is done."""
        self._work.put(_Do(session, number, body))

    def end(self, *, hurries: bool = False) -> None:
        """End ``run`` after the call that is under way.

        Who hurries waits no longer for a hub that takes no replies.
        """
        self._is_ending = self._is_ending or hurries
        self._work.put(_Stop())

    # The thread that executes

    def run(self) -> None:
        """Execute everything in order, until the end."""
        current = None
        while not isinstance(item := self._work.get(), _Stop):
            if isinstance(item, PartySession):
                current = item
                self._open(current)
            elif item.session is current:
                current.taken = item.id
                self._do(item)

    def _open(self, session: PartySession) -> None:
        try:
            session.respondent = self._respondent_for(session.purpose)
        except ColonnadeError as error:
            _LOG.warning("opening a session failed: %s: %s", type(error).__name__, error)
            session.failure = Failure(type(error).__name__, error.told())
        except Exception as error:
            _LOG.warning(
                "opening a session failed: %s\n%s", type(error).__name__, where_it_happened(error)
            )
            session.failure = Failure(type(error).__name__, "when a session began; see its log")

    def _do(self, item: _Do) -> None:
        session = item.session
        began = time.perf_counter()
        value, failure = self._executed(item, session)
        took = time.perf_counter() - began
        self._status.seconds_computing += took
        session.seconds += took
        if item.body is None or item.body.wants_reply or failure is not None:
            self._reply(item, ReplyBody(value, failure, session.seconds))
            session.seconds = 0.0

    def _executed(self, item: _Do, session: PartySession) -> tuple[Value, Failure | None]:
        body = item.body
        if body is None:
            return None, None
        if session.respondent is None:
            return None, session.failure
        self._status.num_calls += 1
        reply = session.respondent.execute(
            Call(
                item.id,
                self._party,
                body.verb,
                body.arguments,
                body.exchange,
                body.wants_reply,
                body.summand,
            )
        )
        if reply.failure is not None:
            self._status.num_failures += 1
            cause = reply.failure.cause
            # Own words name a file, say; other libraries' words may quote data.
            said = f": {cause}" if isinstance(cause, ColonnadeError) else ""
            where = where_it_happened(cause)
            _LOG.warning("verb %r failed: %s%s\n%s", body.verb, reply.failure.kind, said, where)
            if isinstance(cause, ColonnadeError):
                return None, Failure(reply.failure.kind, cause.told())
        return reply.value, reply.failure

    def _reply(self, item: _Do, body: ReplyBody) -> None:
        try:
            frame = encode_frame(Kind.REPLY, body, id=item.id)
            if len(frame) > self._message_bytes:
                raise ProtocolError(
                    f"a reply of {len(frame)} bytes; at most {self._message_bytes} "
                    "(message_bytes) may cross a link"
                )
        except ProtocolError as error:
            failure = Failure(type(error).__name__, str(error))
            frame = encode_frame(Kind.REPLY, ReplyBody(None, failure, body.seconds), id=item.id)
        self._status.payload_bytes_up += num_payload_bytes(body.value)
        replies = item.session.replies
        while not replies.put(item.id, frame, timeout=_LOOK_SECONDS):
            # No room: the hub takes nothing. That is waited for, but not by an agent that ends.
            if replies.is_closed or self._is_ending:
                return
        self._has_replied()


def where_it_happened(error: BaseException | None) -> str:
    """Where it happened, not what was said: another library's message may quote data."""
    return "" if error is None else "".join(traceback.format_tb(error.__traceback__))
