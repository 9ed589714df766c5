"""Calls to one party in a session, and its replies: each in order and once."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from colonnade.core.errors import PartyRestarted, ProtocolError, RunError
from colonnade.core.fabric import TICKS_PER_SECOND, Clock
from colonnade.core.messages import Call, Reply
from colonnade.fabrics.grpc.arrivals import Arrivals, Delivery, Lost
from colonnade.fabrics.grpc.frames import (
    CallBody,
    Frame,
    FrameKind,
    Opening,
    ReplyBody,
    encode_frame,
)
from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.fabrics.grpc.outbox import Outbox

__all__ = ["CallQueue", "Signs"]


class Signs:
    """When a party was last heard of, and since when it owes an answer; in ticks.

    One thread notes questions and another answers, each in fields of its own.
    """

    def __init__(self) -> None:
        self.heard = -1
        self._num_asked = 0
        self._num_answered = 0
        self._asked_at = 0

    def ask(self, tick: int) -> None:
        """A question goes out."""
        if self._num_asked == self._num_answered:
            self._asked_at = tick
        self._num_asked += 1

    def take_back(self) -> None:
        """The question does not go out after all."""
        self._num_asked -= 1

    def answer(self, tick: int, *, was_awaited: bool) -> None:
        """Something came; it counts as an answer if it was awaited."""
        self.heard = tick
        self._num_answered += was_awaited

    @property
    def silent_since(self) -> int | None:
        """Since when it owes an answer and nothing came; None if it owes none."""
        if self._num_asked == self._num_answered:
            return None
        return max(self._asked_at, self.heard)


class CallQueue:
    """Numbers calls to one party, and finds the call that a reply is for.

    The thread that runs the method calls ``send``, the event loop's thread everything else.
    """

    def __init__(
        self,
        party: str,
        opening: Opening,
        *,
        arrivals: Arrivals,
        clock: Clock,
        spec: LinkSpec,
        lane: int = 0,
    ) -> None:
        self.party = party
        self.lane = lane
        self.opening = opening
        self.session = opening.session
        self.outbox = Outbox(spec.outbox_bytes)
        # The party's process in this session; known from its first stream on.
        self.incarnation: int | None = None
        # The last reply that came, and the last that was acknowledged.
        self.seen = 0
        self.acknowledged = 0
        self.lost: RunError | None = None
        self.signs = Signs()
        self._arrivals = arrivals
        self._clock = clock
        self._message_bytes = spec.message_bytes
        self._num_sent = 0
        self._open: deque[tuple[int, Call | None, Any]] = deque()

    @property
    def owed_seconds(self) -> float:
        """How long the party has owed an answer without a sign; 0 if it owes none."""
        since = self.signs.silent_since
        return 0.0 if since is None else (self._clock.now() - since) / TICKS_PER_SECOND

    def send(self, call: Call | None, to: Any, timeout: float | None = None) -> bool:
        """Send a call; None sends a barrier, which is answered when all calls before are done.

        Waits while too much is unacknowledged; False if that lasts longer than the timeout.
        """
        number = self._num_sent + 1
        if call is None:
            frame = encode_frame(FrameKind.BARRIER, id=number)
        else:
            wants = call.wants_reply
            body = CallBody(call.verb, call.arguments, call.exchange, wants, call.summand)
            frame = encode_frame(FrameKind.CALL, body, id=number)
        if len(frame) > self._message_bytes:
            raise ProtocolError(
                f"'{'' if call is None else call.verb}' for party '{self.party}': {len(frame)} "
                f"bytes; at most {self._message_bytes} may cross a link (link.message_bytes)"
            )
        if self.lost is not None:
            raise self.lost
        # Before it is sent, because the reply may come at once.
        self._open.append((number, call, to))
        awaited = call is None or call.wants_reply
        if awaited:
            self.signs.ask(self._clock.now())
        if not self.outbox.put(number, frame, timeout):
            self._open.pop()
            if awaited:
                self.signs.take_back()
            if self.lost is not None:
                raise self.lost
            return False
        self._num_sent = number
        return True

    def take(self, frame: Frame) -> None:
        """Take in a frame of the party."""
        if frame.kind is FrameKind.ACKNOWLEDGE:
            if frame.seen > self._num_sent + 1:
                raise ProtocolError(f"acknowledges call {frame.seen}, which was never made")
            self.outbox.acknowledge(frame.seen)
        elif frame.kind is FrameKind.REPLY and isinstance(frame.body, ReplyBody):
            self._take_reply(frame.id, frame.body)
        else:
            raise ProtocolError(f"a party does not send {frame.kind.name} here")

    def _take_reply(self, number: int, body: ReplyBody) -> None:
        if number <= self.seen:
            return  # sent again after a cut; it is here already
        while self._open and self._open[0][0] < number:
            skipped, call, _ = self._open.popleft()
            if call is None or call.wants_reply:
                raise ProtocolError(f"reply {number} came before that to call {skipped}")
        if not self._open or self._open[0][0] != number:
            raise ProtocolError(f"a reply to call {number}, which was never made")
        _, call, to = self._open.popleft()
        self.seen = number
        tick = self._clock.now()
        if call is None:
            reply = Reply(-1, self.party, 0, None, body.failure, tick)
        else:
            at = time.perf_counter()
            reply = Reply(call.id, self.party, call.exchange, body.value, body.failure, tick, at)
        awaited = call is None or call.wants_reply
        self.signs.answer(tick, was_awaited=awaited)
        self._arrivals.put(Delivery(to, reply, body.seconds, awaited))

    def lose(self) -> None:
        """The party came back as another process, without its half of this session."""
        if self.lost is None:
            self.lost = PartyRestarted(
                f"party '{self.party}' came back without what it knew; go on from the last "
                "checkpoint that everybody has",
                party=self.party,
            )
            self._arrivals.put(Lost(self.lost))
            self.outbox.close()
