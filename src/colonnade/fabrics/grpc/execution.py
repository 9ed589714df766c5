"""Execution of a party's calls: one thread, one call after the other, each once.

Another thread keeps the link alive meanwhile, so that a long computation is not mistaken for a dead
machine. Replies go to the session's outbox, from where the link takes them.
"""

from __future__ import annotations

import logging
import math
import queue
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from colonnade.core.errors import ColonnadeError, ConfigError, ProtocolError, Refused, RunError
from colonnade.core.fabric import num_payload_bytes
from colonnade.core.messages import Call, Failure, Value
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.frames import CallBody, FrameKind, Opening, ReplyBody, encode_frame
from colonnade.fabrics.grpc.outbox import Outbox

__all__ = ["AgentStatus", "Execution", "PartySession", "where_it_happened"]

_LOG = logging.getLogger("colonnade.agent")

# How often a thread that waits for room for a reply checks whether to go on waiting.
_LOOK_SECONDS = 5.0
# How long an agent that was told to end goes on with the call under way.
_GRACE_SECONDS = 5.0


@dataclass
class AgentStatus:
    """Counts and state of an agent, for health and metrics."""

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
    """A session at the party: numbers of calls, the respondent, replies to send."""

    def __init__(self, opening: Opening, outbox_bytes: int) -> None:
        self.id = opening.session
        self.purpose = opening.purpose
        self.replies = Outbox(outbox_bytes)
        # Numbers of calls. The event loop's thread receives and acknowledges them, the thread that
        # executes takes them up.
        self.received = 0
        self.acknowledged = 0
        self.taken = 0
        # For the thread that executes.
        self.respondent: Respondent | None = None
        self.failure: Failure | None = None
        self.seconds = 0.0


@dataclass(frozen=True, slots=True)
class _Task:
    """A call; without a body a barrier, which is answered when everything before is done."""

    session: PartySession
    id: int
    body: CallBody | None


class _GivenUp(RunError):
    """A call that ends between two steps, and whose answer nobody waits for."""


class Execution:
    """A queue of sessions and calls, which ``run`` executes.

    ``respondent_for`` gives the respondent for a session's purpose; ``has_replied`` is called when
    a reply is ready. A call ends between two of its steps when it has taken ``call_timeout``
    seconds, when its session is over, or a few seconds after ``end``.
    """

    def __init__(
        self,
        *,
        party: str,
        respondent_for: Callable[[str], Respondent],
        message_bytes: int,
        call_timeout: float,
        status: AgentStatus,
        has_replied: Callable[[], None],
    ) -> None:
        self._party = party
        self._respondent_for = respondent_for
        self._message_bytes = message_bytes
        self._status = status
        self._has_replied = has_replied
        self._work: queue.SimpleQueue[PartySession | _Task | None] = queue.SimpleQueue()
        self._call_timeout = call_timeout
        self._is_ending = False
        # By the monotonic clock.
        self._gives_up_at = math.inf
        self._began = 0.0

    # From any thread

    def begin(self, session: PartySession) -> None:
        """Calls that are added after this belong to the session."""
        self._work.put(session)

    def add(self, session: PartySession, number: int, body: CallBody | None) -> None:
        """Add a call; without a body, a barrier."""
        self._work.put(_Task(session, number, body))

    def end(self, *, hurries: bool = False) -> None:
        """End ``run`` after the call under way; ``hurries`` also ends a wait to send a reply."""
        if hurries and not self._is_ending:
            self._gives_up_at = time.monotonic() + _GRACE_SECONDS
            self._is_ending = True
        self._work.put(None)

    # The thread that executes

    def run(self) -> None:
        """Execute everything in order, until ``end``."""
        current = None
        while (item := self._work.get()) is not None:
            if isinstance(item, PartySession):
                current = item
                self._open(current)
            elif item.session is current:
                current.taken = item.id
                self._execute_task(item)

    def _open(self, session: PartySession) -> None:
        try:
            session.respondent = self._respondent_for(session.purpose)
            session.respondent.watch = lambda: self._watch(session)
        except ColonnadeError as error:
            _LOG.warning("opening a session failed: %s: %s", type(error).__name__, error)
            session.failure = Failure(type(error).__name__, error.told())
        except Exception as error:
            _LOG.warning(
                "opening a session failed: %s\n%s", type(error).__name__, where_it_happened(error)
            )
            session.failure = Failure(type(error).__name__, "when a session began; see its log")

    def _watch(self, session: PartySession) -> None:
        """Between two steps of a call: end it if nobody needs it any more, or for too long."""
        now = time.monotonic()
        if session.replies.is_closed or now > self._gives_up_at:
            raise _GivenUp("given up: the session is over, or the agent ends")
        if now - self._began > self._call_timeout:
            raise RunError(
                f"it took longer than {self._call_timeout:g} s (link.call_timeout) and was ended "
                "between two local steps; ask for fewer steps, or have the party raise its limit"
            )

    def _execute_task(self, item: _Task) -> None:
        session = item.session
        began = time.perf_counter()
        self._began = time.monotonic()
        value, failure = self._outcome(item, session)
        took = time.perf_counter() - began
        self._status.seconds_computing += took
        session.seconds += took
        if failure is not None and isinstance(failure.cause, _GivenUp):
            return  # as if the process had ended before the call
        if item.body is None or item.body.wants_reply or failure is not None:
            self._reply(item, ReplyBody(value, failure, session.seconds))
            session.seconds = 0.0

    def _outcome(self, item: _Task, session: PartySession) -> tuple[Value, Failure | None]:
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
            # Our own messages quote no data; other libraries' may.
            said = f": {cause}" if isinstance(cause, ColonnadeError) else ""
            # Who is refused can ask again and again: one line for each says enough.
            is_refusal = isinstance(cause, Refused | ProtocolError | ConfigError)
            where = "" if is_refusal else f"\n{where_it_happened(cause)}"
            _LOG.warning("verb %r failed: %s%s%s", body.verb, reply.failure.kind, said, where)
            if isinstance(cause, ColonnadeError):
                return None, Failure(reply.failure.kind, cause.told(), cause)
        return reply.value, reply.failure

    def _reply(self, item: _Task, body: ReplyBody) -> None:
        try:
            frame = encode_frame(FrameKind.REPLY, body, id=item.id)
            if len(frame) > self._message_bytes:
                raise ProtocolError(
                    f"a reply of {len(frame)} bytes; at most {self._message_bytes} "
                    "(message_bytes) may cross a link"
                )
        except ProtocolError as error:
            failure = Failure(type(error).__name__, str(error))
            frame = encode_frame(
                FrameKind.REPLY, ReplyBody(None, failure, body.seconds), id=item.id
            )
        self._status.payload_bytes_up += num_payload_bytes(body.value)
        replies = item.session.replies
        while not replies.put(item.id, frame, timeout=_LOOK_SECONDS):
            # No room, because the hub takes nothing. An agent that ends does not wait for that.
            if replies.is_closed or self._is_ending:
                return
        self._has_replied()


def where_it_happened(error: BaseException | None) -> str:
    """The traceback without the message: another library's message may quote data."""
    return "" if error is None else "".join(traceback.format_tb(error.__traceback__))
