"""What comes twice after a cut happens once: calls, openings and replies."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import grpc
import grpc.aio
import pytest

from authority import hub_identity
from colonnade.core.errors import ProtocolError
from colonnade.core.fabric import RealClock
from colonnade.core.messages import Call
from colonnade.fabrics.grpc.arrivals import Arrivals, Delivery
from colonnade.fabrics.grpc.call_queue import CallQueue
from colonnade.fabrics.grpc.event_loop import run_there
from colonnade.fabrics.grpc.frames import (
    CallBody,
    Frame,
    FrameKind,
    Opening,
    ReplyBody,
    decode_frames,
    encode_frame,
)
from colonnade.fabrics.grpc.link_settings import METHOD, LinkSpec
from colonnade.fabrics.grpc.outbox import Outbox
from networks import AgentThread
from probes import ProbeParty

WELCOME = encode_frame(FrameKind.WELCOME, Opening(0, ""))
OPEN = encode_frame(FrameKind.OPEN, Opening(5, "test"))
# Not a frame: the agent ends the stream when it comes here.
END = b"no frame"


def call(number: int, verb: str, *arguments: Any) -> bytes:
    return encode_frame(FrameKind.CALL, CallBody(verb, arguments, 0, True), id=number)


def barrier(number: int) -> bytes:
    return encode_frame(FrameKind.BARRIER, id=number)


class ScriptedHub:
    """Says the same to a party that dials, whatever it answers, and hears it out."""

    def __init__(self, *messages: bytes) -> None:
        self.heard: list[Frame] = []
        self._messages = messages
        self._is_over = threading.Event()
        self._port = run_there(self._listen())

    async def _listen(self) -> int:
        self._server = grpc.aio.server()
        service, _, method = METHOD[1:].partition("/")
        handler = grpc.stream_stream_rpc_method_handler(self._connected)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        own = hub_identity()
        credentials = grpc.ssl_server_credentials(
            [(own.key, own.certificate)], own.authority, require_client_auth=True
        )
        port: int = self._server.add_secure_port("127.0.0.1:0", credentials)
        await self._server.start()
        return port

    async def _connected(self, _: Any, context: Any) -> None:
        if self._is_over.is_set():
            return
        try:
            await context.read()
            for message in self._messages:
                await context.write(message)
            while (message := await context.read()) is not grpc.aio.EOF:
                self.heard += decode_frames(message)
        finally:
            self._is_over.set()

    def replies_of(self, party: ProbeParty) -> Counter[int]:
        """Have the party's agent dial; how often it answered which call."""
        agent = AgentThread(party, f"127.0.0.1:{self._port}")
        assert self._is_over.wait(60)
        agent.stop()
        assert agent.error is None

        async def stop() -> None:
            await self._server.stop(None)

        run_there(stop())
        return Counter(frame.id for frame in self.heard if frame.kind is FrameKind.REPLY)


class TestAtTheAgent:
    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """This hub acknowledges nothing, which an agent that ends would wait for."""
        monkeypatch.setattr("colonnade.fabrics.grpc.agent.LEAVE_SECONDS", 0.1)

    @pytest.mark.attack(
        what="Replay of a call",
        has="a recorded frame, sent again",
        before="nothing (held)",
        now="executed once",
    )
    def test_a_call_is_executed_once(self) -> None:
        first, second = call(1, "accumulate", 4.0), call(2, "accumulate", 5.0)
        hub = ScriptedHub(WELCOME, OPEN, first + first, second, first, second, END)
        party = ProbeParty(name="a")
        replies = hub.replies_of(party)
        assert party.history == [4.0, 5.0]
        assert max(replies.values(), default=0) <= 1

    def test_the_question_whether_all_is_done_is_answered_once(self) -> None:
        hub = ScriptedHub(WELCOME, OPEN, barrier(1), barrier(1), call(2, "accumulate", 1.0), END)
        party = ProbeParty(name="a")
        replies = hub.replies_of(party)
        assert party.history == [1.0]
        assert max(replies.values(), default=0) <= 1

    def test_an_opening_that_comes_again_begins_nothing_anew(self) -> None:
        first, second = call(1, "accumulate", 4.0), call(2, "accumulate", 5.0)
        hub = ScriptedHub(WELCOME, OPEN, first, OPEN, second, END)
        party = ProbeParty(name="a")
        hub.replies_of(party)
        # Numbers go on in the session that was open.
        assert party.history == [4.0, 5.0]
        assert [frame.kind for frame in hub.heard].count(FrameKind.OPEN) == 1

    def test_the_opening_of_another_session_begins_anew(self) -> None:
        other = encode_frame(FrameKind.OPEN, Opening(6, "test"))
        hub = ScriptedHub(
            WELCOME, OPEN, call(1, "note", "x"), other, call(1, "accumulate", 5.0), END
        )
        party = ProbeParty(name="a")
        hub.replies_of(party)
        assert party.history == [5.0]
        opened = [frame.body for frame in hub.heard if frame.kind is FrameKind.OPEN]
        assert opened == [Opening(5, "test"), Opening(6, "test")]


class TestAtTheHub:
    @pytest.fixture
    def arrivals(self) -> Arrivals:
        return Arrivals()

    @pytest.fixture
    def post(self, arrivals: Arrivals) -> CallQueue:
        post = CallQueue(
            "a",
            Opening(5, "test"),
            arrivals=arrivals,
            clock=RealClock(),
            spec=LinkSpec(),
        )
        for number in (10, 11, 12):
            assert post.send(Call(number, "a", "last", (), 0, True), "who asked")
        return post

    def reply(self, number: int) -> Frame:
        return Frame(FrameKind.REPLY, number, 0, ReplyBody(float(number), None, 0.0))

    def delivered(self, arrivals: Arrivals) -> list[tuple[int, Any]]:
        found = []
        while (item := arrivals.take(0.0)) is not None:
            assert isinstance(item, Delivery)
            found.append((item.reply.id, item.reply.value))
        return found

    def test_a_reply_is_delivered_once(self, post: CallQueue, arrivals: Arrivals) -> None:
        for number in (1, 1, 2, 1, 2, 3):
            post.take(self.reply(number))
        assert self.delivered(arrivals) == [(10, 1.0), (11, 2.0), (12, 3.0)]
        assert post.seen == 3

    def test_one_that_was_never_asked_for_is_refused(self, post: CallQueue) -> None:
        for number in (1, 2, 3):
            post.take(self.reply(number))
        with pytest.raises(ProtocolError, match="call 4"):
            post.take(self.reply(4))

    def test_none_is_skipped(self, post: CallQueue) -> None:
        with pytest.raises(ProtocolError, match="call 1"):
            post.take(self.reply(2))

    def test_a_call_is_acknowledged_only_if_it_was_made(self, post: CallQueue) -> None:
        post.take(Frame(FrameKind.ACKNOWLEDGE, 0, 3, None))
        with pytest.raises(ProtocolError, match="call 5"):
            post.take(Frame(FrameKind.ACKNOWLEDGE, 0, 5, None))


class TestWhatIsSentAgain:
    @pytest.fixture
    def outbox(self) -> Outbox:
        outbox = Outbox(100)
        for number in (1, 2, 3, 4):
            assert outbox.put(number, bytes([number]) * 10)
        assert [frame[0] for frame in outbox.take(30)] == [1, 2, 3]
        return outbox

    def test_is_what_did_not_arrive_in_its_order(self, outbox: Outbox) -> None:
        outbox.rewind(1)
        assert [frame[0] for frame in outbox.take(100)] == [2, 3, 4]
        assert outbox.take(100) == []

    def test_is_nothing_that_was_acknowledged(self, outbox: Outbox) -> None:
        outbox.acknowledge(1)
        assert outbox.num_bytes == 30
        outbox.acknowledge(2)
        assert outbox.num_bytes == 20
        outbox.rewind(0)
        assert [frame[0] for frame in outbox.take(100)] == [3, 4]

    def test_is_nothing_that_arrived_without_being_acknowledged(self, outbox: Outbox) -> None:
        outbox.rewind(3)
        assert [frame[0] for frame in outbox.take(100)] == [4]
        # It still counts as kept until it is acknowledged.
        assert outbox.num_bytes == 40
        outbox.acknowledge(4)
        assert outbox.num_bytes == 0
        assert outbox.drain(0.0)
