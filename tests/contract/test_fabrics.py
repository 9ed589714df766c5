"""What every fabric must do and must not do; a new fabric adds one line to FABRICS."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.core.errors import Deadlock, PartyFailed, ProtocolError
from colonnade.core.parties import Parties, each
from colonnade.core.timeline import Timeline
from messages import says
from probes import APART, BATCH, FABRICS, NAMES, VIRTUAL, Bench, Noisy, assert_plain


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    Bench.close_all()


@pytest.fixture(params=FABRICS)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


@pytest.fixture(params=FABRICS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


class TestAsk:
    def test_answers_are_in_party_order_whatever_the_arrival_order(self, bench: Bench) -> None:
        assert bench.fabric.names == bench.parties.names == NAMES
        assert list(bench.ask("total")) == list(NAMES)
        assert list(bench.ask("total", among=["c", "a"])) == ["a", "c"]
        assert bench.ask("total", among=[]) == {}

    def test_each_gives_everyone_its_own(self, bench: Bench) -> None:
        own = {name: torch.full((2,), float(number)) for number, name in enumerate(NAMES)}
        answers = bench.ask("echo", each(own))
        assert all(torch.equal(answers[name], own[name]) for name in NAMES)

    def test_each_may_stand_beside_what_all_get(self, bench: Bench) -> None:
        bench.tell("accumulate", each({"a": 1.0, "c": 3.0}), among=["a", "c"])
        bench.tell("accumulate", 10.0)
        assert bench.ask("total") == {"a": 11.0, "b": 10.0, "c": 13.0}

    def test_stranger_is_refused(self, bench: Bench) -> None:
        with pytest.raises(ProtocolError, match=says(["x"], ["a", "b", "c"])):
            bench.ask("total", among=["a", "x"])
        with pytest.raises(ProtocolError, match="'x'"):
            bench.parties.start("x", "total")

    def test_each_without_a_chosen_party_is_refused(self, bench: Bench) -> None:
        with pytest.raises(ProtocolError, match="'c'"):
            bench.ask("echo", each({"a": torch.ones(1), "b": torch.ones(1)}))

    def test_party_that_did_not_answer_in_time_is_absent(self, bench: Bench) -> None:
        assert bench.ask("total", deadline=bench.fabric.now() - 1) == {}
        bench.tell("accumulate", 1.0)
        assert bench.ask("total") == {"a": 1.0, "b": 1.0, "c": 1.0}
        assert bench.parties.num_dropped == 3

    def test_tables_cross_both_ways(self, bench: Bench) -> None:
        table = bench.ask("table")["b"]
        assert list(table) == ["held", "twice"]
        assert torch.equal(table["twice"], 2.0 * torch.arange(4.0))
        assert bench.ask("scores", {"x": 1.5})["c"] == {"x": 3.0}

    def test_waiting_for_nothing_is_a_deadlock(self, bench: Bench) -> None:
        with pytest.raises(Deadlock):
            bench.arrival()
        assert bench.arrival(deadline=bench.fabric.now()) is None


class TestTimeline:
    def test_it_says_who_computed_and_for_whom_the_label_holder_waited(self, bench: Bench) -> None:
        bench.ask("total")  # nobody has asked for a timeline yet
        timeline = bench.fabric.timeline = Timeline()
        began = bench.fabric.elapsed_seconds()
        bench.ask("work", 3)
        ended = bench.fabric.elapsed_seconds()
        noted = timeline.take()
        assert {item.party for item in noted if item.state == "computing"} == set(NAMES)
        waits = [item for item in noted if item.party is None]
        assert waits
        assert {item.party_awaited for item in waits} <= set(NAMES)
        # A tick is a millisecond; over a network answers come at whole ticks.
        assert all(began - 0.001 <= item.begin < item.end <= ended + 0.001 for item in noted)
        assert timeline.take() == []


class TestOrder:
    @settings(max_examples=15)
    @given(script=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-9, 9)), max_size=12))
    @pytest.mark.parametrize("kind", FABRICS)
    def test_tells_run_in_order_before_later_asks(
        self, kind: str, script: list[tuple[str, int]]
    ) -> None:
        bench = Bench(kind)
        sums = dict.fromkeys(NAMES, 0.0)
        for name, value in script:
            bench.tell("accumulate", float(value), among=[name])
            sums[name] += value
            if value % 2:
                assert bench.ask("last", among=[name]) == {name: value}
        assert bench.ask("total") == sums
        for name in NAMES:
            assert bench.behind[name].history == [value for who, value in script if who == name]

    def test_started_calls_stay_in_flight_across_exchanges(self, bench: Bench) -> None:
        for name, steps in (("a", 3), ("b", 1), ("a", 2)):
            bench.parties.start(name, "work", steps)
        bench.parties.exchange = 1
        assert bench.ask("total") == dict.fromkeys(NAMES, 0.0)
        assert bench.parties.in_flight() == {"a": 2, "b": 1}
        bench.parties.exchange = 2

        arrivals = [bench.arrival() for _ in range(3)]

        assert [arrival.value for arrival in arrivals if arrival.party == "a"] == [3, 2]
        assert [arrival.value for arrival in arrivals if arrival.party == "b"] == [1]
        assert [arrival.tick for arrival in arrivals] == sorted(item.tick for item in arrivals)
        assert bench.parties.in_flight() == {}
        assert bench.parties.num_dropped == 0

    def test_method_that_awaits_something_foreign_is_refused(self, bench: Bench) -> None:
        async def sleepy() -> None:
            await bench.parties.ask("total")
            await asyncio.sleep(0)

        with pytest.raises(ProtocolError, match=says("ask", "tell", "start", "arrival")):
            bench.fabric.run(sleepy())


class TestFailures:
    def test_failed_ask_names_party_exchange_and_verb(self, bench: Bench) -> None:
        bench.parties.exchange = 4
        with pytest.raises(PartyFailed, match=says("'b'", "exchange 5", "refuse")) as caught:
            bench.ask("refuse", among=["b"])
        assert caught.value.party == "b"
        assert "DataError: column 'age' is missing" in str(caught.value)

    def test_message_of_another_library_stays_at_the_party(self, bench: Bench) -> None:
        with pytest.raises(PartyFailed, match="ValueError") as caught:
            bench.ask("crash", among=["a"])
        assert "crash" in str(caught.value)
        assert "Secret" not in str(caught.value)

    @pytest.mark.parametrize("verb", ["refuse", "crash"])
    def test_failed_tell_is_raised_by_the_next_wait(self, bench: Bench, verb: str) -> None:
        bench.parties.exchange = 7
        bench.tell(verb, among=["c"])
        bench.parties.exchange = 8
        with pytest.raises(PartyFailed, match=says("'c'", "exchange 8", "told call")) as caught:
            bench.ask("total", among=["c"])
        assert caught.value.party == "c"
        assert "Secret" not in str(caught.value)

    def test_failed_tell_is_raised_by_an_arrival_too(self, bench: Bench) -> None:
        bench.tell("refuse", among=["a"])
        bench.parties.start("a", "total")
        with pytest.raises(PartyFailed, match=r"'a'.*told call"):
            bench.arrival()

    def test_failed_start_is_raised_by_its_arrival(self, bench: Bench) -> None:
        bench.parties.start("b", "crash")
        with pytest.raises(PartyFailed, match=says("'b'", "crash", "ValueError")):
            bench.arrival()

    def test_failure_leaves_the_fabric_usable(self, bench: Bench) -> None:
        with pytest.raises(PartyFailed):
            bench.ask("refuse")
        bench.tell("accumulate", 2.0)
        assert bench.ask("total") == dict.fromkeys(NAMES, 2.0)
        assert bench.parties.num_dropped == 2

    @pytest.mark.parametrize(
        "name",
        [
            *("nonsense", "_private", "public_but_no_verb", "state", "encode", "execute"),
            *("parts", "history", "__init__", "__class__", ""),
        ],
    )
    def test_what_is_no_verb_can_not_be_called(self, bench: Bench, name: str) -> None:
        with pytest.raises(PartyFailed, match=says("ProtocolError", f"'{name}'")):
            bench.ask(name, among=["a"])

    @pytest.mark.parametrize(
        ("verb", "arguments"),
        [
            ("echo", (1.0,)),
            ("echo", (None,)),
            ("echo", ()),
            ("total", (1,)),
            ("accumulate", ("1",)),
            ("accumulate", (True,)),
            ("work", (1.5,)),
            ("work", (True,)),
            ("embed", (0,)),
            ("scores", ({"x": "y"},)),
            ("scores", (1.0,)),
        ],
    )
    def test_wrong_arguments_are_refused_before_anything_runs(
        self, bench: Bench, verb: str, arguments: tuple[Any, ...]
    ) -> None:
        with pytest.raises(PartyFailed, match=says("ProtocolError", f"'{verb}'")):
            bench.ask(verb, *arguments, among=["a"])
        assert bench.behind["a"].history == []

    def test_what_may_not_cross_a_link_does_not(self, bench: Bench) -> None:
        for argument in ([1.0], object(), {7: 1.0}, {"x": {"y": 1.0}}):
            with pytest.raises((ProtocolError, PartyFailed)):
                bench.ask("scores", argument, among=["a"])
        for verb in ("smuggle", "mislabel"):
            with pytest.raises(PartyFailed, match="ProtocolError"):
                bench.ask(verb, among=["a"])


class TestNoAliasing:
    def test_receiver_can_not_change_what_was_sent(self, bench: Bench) -> None:
        sent = torch.arange(3.0)
        bench.tell("scribble", sent)
        bench.ask("total")
        assert torch.equal(sent, torch.arange(3.0))

    def test_sender_can_not_change_what_was_received(self, bench: Bench) -> None:
        sent = torch.arange(3.0)
        bench.tell("hold", sent)
        bench.ask("total")
        sent.fill_(9.0)
        assert torch.equal(bench.ask("lend")["a"], torch.arange(3.0))

    def test_two_receivers_do_not_share(self, bench: Bench) -> None:
        bench.tell("hold", torch.arange(3.0))
        bench.ask("total")
        bench.behind["a"].held.fill_(9.0)
        assert torch.equal(bench.ask("lend")["b"], torch.arange(3.0))

    def test_answers_are_no_window_into_the_party(self, bench: Bench) -> None:
        answer, table = bench.ask("lend")["a"], bench.ask("table")["a"]
        answer.fill_(9.0)
        table["held"].fill_(9.0)
        assert torch.equal(bench.behind["a"].held, torch.arange(4.0))

        answer = bench.ask("lend")["a"]
        bench.behind["a"].held.fill_(9.0)
        assert torch.equal(answer, torch.arange(4.0))

    def test_no_autograd_graph_crosses(self, bench: Bench) -> None:
        weight = torch.ones(4, requires_grad=True)
        bench.tell("hold", 2.0 * weight)
        for answer in (*bench.ask("embed", BATCH).values(), *bench.ask("table")["a"].values()):
            assert not answer.requires_grad
            assert answer.grad_fn is None
        held = bench.behind["a"].held
        assert not held.requires_grad
        assert held.grad_fn is None


def test_stray_repeated_and_foreign_replies_are_dropped_and_counted(kind: str) -> None:
    bench = Bench(kind, wrap=Noisy)
    own = {name: torch.full((1,), float(ord(name))) for name in NAMES}

    first = bench.ask("echo", each(own))
    bench.parties.start("b", "work", 2)
    arrival = bench.arrival()
    second = bench.ask("total", among=["a"])

    assert {name: item.item() for name, item in first.items()} == {"a": 97, "b": 98, "c": 99}
    assert (arrival.party, arrival.value) == ("b", 2)
    assert second == {"a": 0.0}
    # Two strays before each of the five replies and a repeat after each but the last.
    assert bench.parties.num_dropped == 5 * 2 + 4


class TestMeter:
    def test_bytes_are_those_of_the_payload(self, bench: Bench) -> None:
        bench.ask("echo", torch.zeros(3, 5))  # 60 each way
        bench.ask("echo", torch.zeros(2, dtype=torch.float64), among=["b"])  # 16 each way
        bench.ask("embed", BATCH)  # 8 down; 4 rows x 4 floats = 64 up
        bench.tell("accumulate", 1.0)  # 8 down, nothing up
        bench.tell("note", "tä", among=["c"])  # 3 bytes of UTF-8 down
        bench.ask("scores", {"xy": 1.0})  # 2 + 8 each way
        bench.ask("total")  # nothing down, 8 up

        found = {
            name: (traffic.bytes_down, traffic.bytes_up, traffic.calls)
            for name, traffic in bench.fabric.meter.parties.items()
        }
        down, up = 60 + 8 + 8 + 10, 60 + 64 + 10 + 8
        assert found == {
            "a": (down, up, 5),
            "b": (down + 16, up + 16, 6),
            "c": (down + 3, up, 6),
        }

    def test_own_block_of_the_label_holder_crosses_no_link(self, kind: str) -> None:
        bench = Bench(kind, local=frozenset({"b"}))
        bench.ask("echo", torch.zeros(4))

        found = bench.fabric.meter.parties
        assert (found["b"].bytes_down, found["b"].bytes_up, found["b"].calls) == (0, 0, 1)
        assert (found["a"].bytes_down, found["a"].bytes_up, found["a"].calls) == (16, 16, 1)

    def test_aside_is_neither_metered_nor_timed(self, bench: Bench) -> None:
        bench.ask("embed", BATCH)
        metered, now = copy.deepcopy(bench.fabric.meter), bench.fabric.now()

        aside = bench.fabric.aside()
        answers = aside.run(Parties(aside).ask("infer", BATCH))

        assert list(answers) == list(NAMES)
        assert bench.fabric.meter == metered
        if bench.kind in VIRTUAL:
            assert bench.fabric.now() == now


class TestState:
    def begin(self, bench: Bench) -> None:
        """Leave every kind of thing on its way: late, set aside, queueing, and large."""
        bench.ask("total", deadline=bench.fabric.now() - 1)
        for name, steps in (("c", 1), ("a", 3), ("b", 2)):
            bench.parties.start(name, "work", steps)
        bench.parties.start("b", "echo", torch.arange(200.0))
        bench.ask("total", among=["c"])

    def continued(self, bench: Bench) -> list[Any]:
        """What happens from there on."""
        for name in NAMES:
            bench.parties.start(name, "work", 4)
        seen: list[Any] = [bench.parties.in_flight(), bench.parties.num_dropped]
        arrivals: list[Any] = []
        for _ in range(7):
            party, value, tick = bench.arrival()
            value = value.tolist() if isinstance(value, torch.Tensor) else value
            arrivals.append((party, value, tick if bench.kind in VIRTUAL else None))
        # Between machines only the order of one party's answers is certain.
        seen += sorted(arrivals, key=itemgetter(0)) if bench.kind in APART else arrivals
        seen += [bench.ask("local_steps"), bench.parties.num_dropped, bench.parties.in_flight()]
        traffic = bench.fabric.meter.parties.items()
        seen += [(name, item.bytes_up, item.bytes_down, item.calls) for name, item in traffic]
        return [*seen, bench.fabric.now() if bench.kind in VIRTUAL else None]

    def test_restored_in_the_middle_continues_identically(self, kind: str) -> None:
        bench, restored = Bench(kind), Bench(kind)
        self.begin(bench)
        kept = bench.checkpoint()

        restored.parties.restore(kept["parties"])
        restored.fabric.restore(kept["fabric"])
        restored.fabric.meter.restore(kept["meter"])

        assert self.continued(restored) == self.continued(bench)

    def test_state_holds_tensors_and_plain_values_only(self, bench: Bench) -> None:
        for verb in ("table", "lend", "total"):
            bench.parties.start("a", verb)
        bench.parties.start("b", "embed", BATCH)
        bench.tell("crash", among=["c"])

        for state in (bench.parties.state(), bench.fabric.state(), bench.fabric.meter.state()):
            assert_plain(state)

    def test_failure_of_a_tell_outlives_a_checkpoint(self, kind: str) -> None:
        bench, restored = Bench(kind), Bench(kind)
        bench.tell("refuse", among=["c"])
        kept = bench.checkpoint()
        restored.parties.restore(kept["parties"])
        restored.fabric.restore(kept["fabric"])

        with pytest.raises(PartyFailed, match=says("'c'", "'age'")):
            restored.ask("total")

    def test_parties_keep_and_fetch_their_own_state(self, bench: Bench) -> None:
        party = bench.behind["a"]
        before = copy.deepcopy(party.model.state_dict())
        bench.ask("keep", "first")
        party.step(party.encode(BATCH), torch.ones(4, 4))

        bench.ask("fetch", "first")

        assert all(
            torch.equal(value, before[key]) for key, value in party.model.state_dict().items()
        )
        assert party.num_local_steps == 0


def test_reply_kept_on_a_machine_that_was_up_for_longer_is_not_late() -> None:
    bench, restored = Bench("in_process"), Bench("in_process")
    bench.parties.start("a", "total")
    kept = copy.deepcopy([bench.parties.state(), bench.fabric.state()])
    # The monotonic clock counts from the start of the machine: a year's worth of milliseconds.
    kept[1]["replies"][0]["tick"] += 365 * 24 * 3600 * 1000

    restored.parties.restore(kept[0])
    restored.fabric.restore(kept[1])

    arrival = restored.arrival(deadline=restored.fabric.now() + 10_000)
    assert arrival is not None
    assert arrival.party == "a"
