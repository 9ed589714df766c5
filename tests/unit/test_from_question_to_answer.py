"""What stands between a question to parties and their answers: who is woken, and when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest
import torch

from colonnade.core.errors import PartyRestarted, ProtocolError
from colonnade.core.fabric import RealClock
from colonnade.core.messages import Call, Reply
from colonnade.core.parties import Patience
from colonnade.core.respondent import Respondent
from colonnade.core.verbs import verb
from colonnade.fabrics.grpc.arrivals import Arrivals, Delivery, Lost
from colonnade.fabrics.grpc.event_loop import run_there
from colonnade.fabrics.grpc.front import Front, _End
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.fabrics.grpc.local_party import LocalParty
from colonnade.fabrics.grpc.stream_operations import StreamOperations


def delivery(number: int) -> Delivery:
    return Delivery(None, Reply(number, "a", 0), 0.0, True)


def number_of(item: Any) -> int:
    assert isinstance(item, Delivery)
    return item.reply.id


class TestArrivals:
    def test_they_come_in_order_and_end_with_the_time(self) -> None:
        arrivals = Arrivals()
        assert arrivals.take(0.0) is None
        for number in range(3):
            arrivals.put(delivery(number))
        assert [number_of(arrivals.take(None)) for _ in range(3)] == [0, 1, 2]
        assert arrivals.take(0.01) is None

    def test_whoever_wants_several_is_woken_once_they_are_here(self) -> None:
        arrivals = Arrivals()
        found: list[int] = []

        def take() -> None:
            found.append(number_of(arrivals.take(20.0, num_wanted=3)))

        thread = threading.Thread(target=take)
        thread.start()
        for number in range(3):
            assert not found
            arrivals.put(delivery(number))
        thread.join(20)
        assert found == [0]
        # The others are here: nobody waits for more of them.
        assert [number_of(arrivals.take(20.0, num_wanted=2 - n)) for n in range(2)] == [1, 2]

    def test_fewer_are_taken_when_the_time_is_over(self) -> None:
        arrivals = Arrivals()
        arrivals.put(delivery(7))
        assert number_of(arrivals.take(0.01, num_wanted=4)) == 7
        assert arrivals.take(0.0, num_wanted=4) is None

    def test_a_loss_is_told_at_once(self) -> None:
        arrivals = Arrivals()
        arrivals.put(delivery(1))
        arrivals.put(Lost(PartyRestarted("back", party="a")))
        assert number_of(arrivals.take(20.0, num_wanted=4)) == 1
        assert isinstance(arrivals.take(20.0, num_wanted=4), Lost)
        assert arrivals.take(0.0, num_wanted=4) is None

    def test_whatever_is_wanted_all_come_once_and_nobody_is_told_of_an_end(self) -> None:
        arrivals = Arrivals()
        sent: list[Delivery | Lost] = [
            Lost(PartyRestarted("back", party="a")) if number % 50 == 49 else delivery(number)
            for number in range(5000)
        ]

        def put() -> None:
            for item in sent:
                arrivals.put(item)

        thread = threading.Thread(target=put)
        thread.start()
        found = []
        while len(found) < len(sent):
            # More than are left are never wanted: the end would be waited for.
            wanted = 1 + len(found) % 7 if len(found) < len(sent) - 7 else 1
            found.append(arrivals.take(20.0, num_wanted=wanted))
        thread.join(20)
        assert all(one is other for one, other in zip(found, sent, strict=True))
        assert arrivals.take(0.0) is None


class TestArrivalsOnTheLoop:
    def test_whoever_wants_several_goes_on_once_they_are_here(self) -> None:
        async def taken() -> tuple[list[int], int]:
            arrivals = Arrivals()
            waiting = asyncio.ensure_future(arrivals.come(20.0, num_wanted=3))
            for number in range(2):
                arrivals.put(delivery(number))
                await asyncio.sleep(0)
                assert not waiting.done()
            arrivals.put(delivery(2))
            first = number_of(await waiting)
            # The others are here: nobody waits for them.
            return [first, number_of(await arrivals.come(0.0))], number_of(arrivals.take(0.0))

        assert asyncio.run(taken()) == ([0, 1], 2)

    def test_fewer_are_taken_when_the_time_is_over_and_none_is_none(self) -> None:
        async def taken() -> None:
            arrivals = Arrivals()
            assert await arrivals.come(0.01) is None
            arrivals.put(delivery(7))
            assert number_of(await arrivals.come(0.01, num_wanted=4)) == 7

        asyncio.run(taken())

    def test_a_loss_is_told_at_once(self) -> None:
        async def taken() -> None:
            arrivals = Arrivals()
            waiting = asyncio.ensure_future(arrivals.come(20.0, num_wanted=4))
            await asyncio.sleep(0)
            arrivals.put(Lost(PartyRestarted("back", party="a")))
            assert isinstance(await waiting, Lost)

        asyncio.run(taken())

    def test_after_it_a_thread_waits_as_before(self) -> None:
        arrivals = Arrivals()
        assert asyncio.run(arrivals.come(0.001)) is None
        arrivals.put(delivery(1))
        assert number_of(arrivals.take(20.0)) == 1


class Counting(Respondent):
    def __init__(self) -> None:
        super().__init__(name="a")
        self.threads: list[int] = []

    @verb
    def count(self) -> int:
        self.threads.append(threading.get_ident())
        return len(self.threads)


@pytest.mark.parametrize("waits", [True, False])
def test_a_party_at_the_side_answers_in_order_here_or_in_a_thread(waits: bool) -> None:
    arrivals, party = Arrivals(), Counting()
    local = LocalParty(party, arrivals, RealClock(), waits=waits)
    for number in range(3):
        local.send(Call(number, "a", "count", (), 0, number != 1), "who asked")
    if waits:
        assert not party.threads
        local.catch_up()
    found = [arrivals.take(20.0) for _ in range(2)]
    assert [number_of(item) for item in found] == [0, 2]
    assert [item.reply.value for item in found if isinstance(item, Delivery)] == [1, 3]
    # What is left is done before the end.
    local.send(Call(3, "a", "count", (), 0, False), "who asked")
    local.close()
    assert len(party.threads) == 4
    assert (set(party.threads) == {threading.get_ident()}) is waits


class TestFront:
    def test_megabytes_pass_both_ways_whoever_is_slow(self) -> None:
        """A listener that echoes, and a caller that sends all before it reads any of it."""
        content = torch.arange(1_000_000, dtype=torch.int32).numpy().tobytes()

        async def there_and_back() -> bytes:
            is_over = asyncio.Event()

            async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                while piece := await reader.read(65536):
                    writer.write(piece)
                    await writer.drain()
                writer.close()
                is_over.set()

            front = Front()
            listener = await asyncio.start_unix_server(echo, str(front.socket))
            port = await front.start("127.0.0.1:0")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(content)
            found = await asyncio.wait_for(reader.readexactly(len(content)), 60)
            # The end of one way passes, too.
            writer.write_eof()
            await asyncio.wait_for(is_over.wait(), 60)
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
            await writer.wait_closed()
            await front.stop()
            listener.close()
            return found

        assert asyncio.run(there_and_back()) == content

    def test_another_event_loops_connections_pass_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Transports of uvloop are of no class of asyncio's; a hub on such a loop heard nobody."""

        class Foreign:
            def __init__(self, inner: Any) -> None:
                self._inner = inner

            def __getattr__(self, name: str) -> Any:
                return getattr(self._inner, name)

        own = _End.connection_made

        def made(end: _End, transport: asyncio.BaseTransport) -> None:
            foreign: Any = Foreign(transport)
            own(end, foreign)

        monkeypatch.setattr(_End, "connection_made", made)

        async def there_and_back() -> bytes:
            async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(await reader.readexactly(5))
                writer.close()

            front = Front()
            listener = await asyncio.start_unix_server(echo, str(front.socket))
            port = await front.start("127.0.0.1:0")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello")
            found = await asyncio.wait_for(reader.read(5), 60)
            writer.close()
            await writer.wait_closed()
            await front.stop()
            listener.close()
            return found

        assert asyncio.run(there_and_back()) == b"hello"

    def test_a_stranger_who_floods_is_read_once_until_it_is_passed_on(self) -> None:
        """Before a connection is passed on, no more of it is kept than one read has."""

        async def flood() -> int:
            may_pass = asyncio.Event()

            async def waiting() -> None:
                await may_pass.wait()

            front = Front(before_passing=waiting)
            ends: list[Any] = []
            arrived = front._arrived
            front._arrived = lambda end: (ends.append(end), arrived(end))  # type: ignore[method-assign]
            port = await front.start("127.0.0.1:0")
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(bytes(32 << 20))
            await asyncio.wait_for(_until(lambda: bool(ends)), 60)
            await asyncio.wait_for(ends[0].has_begun.wait(), 60)
            # Turns of the loop in which it could read more.
            for _ in range(100):
                await asyncio.sleep(0)
            kept = len(ends[0]._first)
            writer.transport.abort()
            await front.stop()
            return kept

        assert 0 < asyncio.run(flood()) <= 256 * 1024


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0)


class Stream:
    """A stream whose messages come one by one, and which takes all."""

    def __init__(self, *messages: Any) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        for item in messages:
            self.messages.put_nowait(item)
        self.written: list[bytes] = []

    async def read(self) -> Any:
        return await self.messages.get()

    async def write(self, message: bytes) -> None:
        await asyncio.sleep(0)
        self.written.append(message)


class TestOneTaskForAStream:
    def test_every_message_is_handed_over_until_the_end_or_until_enough(self) -> None:
        async def read(*messages: Any, enough: int) -> list[bytes]:
            found: list[bytes] = []

            def take(message: bytes) -> bool:
                found.append(message)
                return len(found) < enough

            await StreamOperations(Stream(*messages)).read_all(take)
            return found

        assert asyncio.run(read(b"a", b"b", grpc.aio.EOF, enough=9)) == [b"a", b"b"]
        assert asyncio.run(read(b"a", b"b", grpc.aio.EOF, enough=1)) == [b"a"]

    def test_what_the_taker_raises_is_raised_to_whoever_reads(self) -> None:
        def refuse(message: bytes) -> bool:
            raise ProtocolError("no")

        with pytest.raises(ProtocolError):
            asyncio.run(StreamOperations(Stream(b"a")).read_all(refuse))

    def test_whoever_was_cancelled_is_handed_nothing_more_and_its_read_goes_on(self) -> None:
        async def cancelled() -> list[bytes]:
            found: list[bytes] = []
            stream = Stream()
            wire = StreamOperations(stream)
            reading = asyncio.ensure_future(wire.read_all(lambda item: not found.append(item)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            stream.messages.put_nowait(b"late")
            # The read under way was not cancelled: it ends by itself.
            await wire.settle(20)
            assert stream.messages.empty()
            return found

        assert asyncio.run(cancelled()) == []

    def test_messages_are_written_in_order_until_the_last_or_until_cancelled(self) -> None:
        async def written(is_cancelled: bool) -> list[bytes]:
            stream, news, left = Stream(), asyncio.Event(), [b"a", b"b"]
            wire = StreamOperations(stream)
            news.set()
            writing = asyncio.ensure_future(
                wire.write_all(news, lambda: left.pop(0) if left else b"", lambda: not is_cancelled)
            )
            if is_cancelled:
                while len(stream.written) < 2:
                    await asyncio.sleep(0)
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
                left.append(b"too late")
            else:
                await writing
            await wire.settle(20)
            return stream.written

        assert asyncio.run(written(False)) == [b"a", b"b"]
        assert asyncio.run(written(True)) == [b"a", b"b"]


class FullLane:
    """A lane whose parties take up nothing more."""

    links = LinkSpec()

    def __init__(self) -> None:
        self.waited: list[float | None] = []

    def open(self, parties: Any, **_: Any) -> dict[str, Any]:
        return dict.fromkeys(parties, self)

    def send(self, call: Any, to: Any, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        return False

    def wake(self, queues: Any) -> None:
        """Nothing gets away."""

    def close_session(self, queues: Any) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("is_on_loop", [False, True])
def test_the_event_loop_never_waits_for_room_that_it_makes_itself(is_on_loop: bool) -> None:
    lane: Any = FullLane()
    patience = Patience(timeout=1, then="continue")
    session = Session(lane, ["a"], purpose="predict", patience=patience)
    to: Any = None

    async def send_there() -> bool:
        return session.send("a", Call(0, "a", "infer", (), 0, True), to)

    if is_on_loop:
        assert not run_there(send_there())
        assert lane.waited == [0.0]
    else:
        assert not session.send("a", Call(0, "a", "infer", (), 0, True), to)
        assert lane.waited == [0.0, 0.001]
    assert session.num_lost == 1
