"""What stands between a question to parties and their answers: who is woken, and when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from colonnade.core.errors import PartyRestarted
from colonnade.core.fabric import RealClock
from colonnade.core.messages import Call, Reply
from colonnade.core.respondent import Respondent
from colonnade.core.verbs import verb
from colonnade.fabrics.grpc.arrivals import Arrivals, Delivery, Lost
from colonnade.fabrics.grpc.front import Front
from colonnade.fabrics.grpc.local_party import LocalParty


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
