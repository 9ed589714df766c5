"""Simulated time against values worked out by hand; every sum is in a comment.

Unless a test says otherwise: an encoding takes 2 ticks, a local step 3, a message 5 on its way, and
bandwidth is unlimited.
"""

from __future__ import annotations

from functools import partial

import pytest

from colonnade.core.errors import ConfigError, Deadlock, NoAnswer
from colonnade.core.federation import LoopState, Stop
from colonnade.core.messages import Batch, Call
from colonnade.core.parties import Arrival, Parties, Patience
from colonnade.fabrics.durations import Constant, Duration, Exponential, Stopwatch, Trace, Uniform
from colonnade.fabrics.simulated import Engine, Profile, Simulated
from colonnade.methods.asynchronous import Asynchronous
from colonnade.methods.flex import Flex, Pace
from colonnade.quality.evaluation import evaluate
from federations import make_federation, mlp, train
from messages import says
from probes import ProbeParty


def profile(
    encode: int = 2,
    step: int = 3,
    latency: int | Duration = 5,
    bandwidth: int | None = None,
) -> Profile:
    return Profile(
        encode=Constant(value=encode),
        step=Constant(value=step),
        latency=Constant(value=latency) if isinstance(latency, int) else latency,
        bandwidth=bandwidth,
    )


def makespan(num_exchanges: int, **settings: object) -> int:
    """The tick at which the label holder is done with this many exchanges of SplitNN."""
    settings = {"default_profile": profile(), "num_parties": 1} | settings
    federation = make_federation(fabric="simulated", **settings)
    train(federation, num_exchanges)
    return federation.fabric.now()


def probes(*names: str, parts_per_tick: int = 1, **profiles: Profile) -> tuple[Simulated, Parties]:
    """Parties with the verbs of ProbeParty on a simulated clock."""
    fabric = Simulated(
        {name: ProbeParty(name=name) for name in names},
        profiles=profiles,
        default=profile(),
        parts_per_tick=parts_per_tick,
    )
    return fabric, Parties(fabric)


class TestSplitNN:
    def test_first_exchange_is_one_round_trip_and_one_encoding(self) -> None:
        # 5 down + 2 encode + 5 up
        assert makespan(1) == 12

    @pytest.mark.parametrize("num_exchanges", [1, 2, 3, 10])
    def test_every_further_exchange_is_one_round_trip_one_step_and_one_encoding(
        self, num_exchanges: int
    ) -> None:
        # The gradient and the next ask travel together: 5 down + 3 step + 2 encode + 5 up = 15.
        assert makespan(num_exchanges) == 12 + 15 * (num_exchanges - 1)

    def test_parties_work_at_the_same_time(self) -> None:
        assert makespan(4, num_parties=6) == makespan(4, num_parties=1)

    def test_party_with_the_slow_link_dominates(self) -> None:
        # First 50 + 2 + 50 = 102, then 50 + 3 + 2 + 50 = 105 each.
        slow = {"p1": profile(latency=50)}
        assert makespan(3, num_parties=3, profiles=slow) == 102 + 2 * 105

    def test_party_with_slow_steps_dominates_once_there_are_steps(self) -> None:
        # p0: first 10 + 2 + 10 = 22, then 10 + 3 + 2 + 10 = 25.
        # p1: first  5 + 2 +  5 = 12, then  5 + 30 + 2 + 5 = 42.
        # The label holder waits for the slower of the two each time: 22, then 42.
        profiles = {"p0": profile(latency=10), "p1": profile(step=30)}
        assert makespan(1, num_parties=2, profiles=profiles) == 22
        assert makespan(4, num_parties=2, profiles=profiles) == 22 + 3 * 42

    def test_update_of_the_label_holder_takes_its_time(self) -> None:
        # 12 + 7, then 15 + 7 each.
        assert makespan(1, fuse=Constant(value=7)) == 19
        assert makespan(3, fuse=Constant(value=7)) == 19 + 2 * 22

    def test_bandwidth_counts_the_bytes_of_every_message(self) -> None:
        # 8 rows x 4 floats x 4 bytes = 128 bytes for an embedding or a gradient; a batch is 8.
        # 16 bytes per tick.
        # First: ask 8 bytes = 1 tick, + 5 -> at 6; encode -> 8; 128 bytes = 8 ticks -> 16,
        # + 5 = 21.
        # Then, from 0 = when the last reply came: the gradient with its batch is 136 bytes =
        # 9 ticks, + 5 -> at 14; step -> 17. The ask is behind it in the lane: 9 + 1 = 10, + 5 -> at
        # 15, but the party is busy until 17; encode -> 19; 8 ticks -> 27, + 5 = 32.
        settings = {
            "default_profile": profile(bandwidth=16),
            "encoder": mlp(embedding=4),
            "num_samples": 24,
            "batch_size": 8,
        }
        assert makespan(1, **settings) == 21
        assert makespan(4, **settings) == 21 + 3 * 32

    def test_gradient_holds_up_the_ask_behind_it_on_a_thin_link(self) -> None:
        # 1 byte per tick, no latency, no work.
        # First: 8 down + 128 up = 136. Then 136 + 8 down, 128 up = 272.
        thin = profile(encode=0, step=0, latency=0, bandwidth=1)
        assert makespan(3, default_profile=thin) == 136 + 2 * 272

    def test_own_block_of_the_label_holder_has_no_link(self) -> None:
        # First 2 encode, then 3 step + 2 encode: neither latency nor bandwidth count.
        far = {"holder": profile(latency=1000, bandwidth=1)}
        assert makespan(4, names=["holder"], profiles=far) == 2 + 3 * 5

    def test_latency_is_drawn_for_every_message(self) -> None:
        # Latencies 1, 10, 1, 10, ... in the order in which messages set out.
        # Exchange 1: ask 1 -> at 1, encode -> 3, reply 10 -> 13.
        # Exchange 2: gradient 1 -> 14, step -> 17; ask 10 -> 23, encode -> 25; reply 1 -> 26.
        # Exchange 3: gradient 10 -> 36, step -> 39; the ask is not done before the step, encode ->
        # 41; reply 10 -> 51.
        trace = profile(latency=Trace(values=(1, 10)))
        ticks = [makespan(number, default_profile=trace) for number in (1, 2, 3)]
        assert ticks == [13, 26, 51]

    def test_step_takes_one_tick_and_the_rest_nothing_by_default(self) -> None:
        assert makespan(5, default_profile=None) == 4

    def test_evaluation_takes_no_time(self) -> None:
        assert makespan(6, num_validation=10) == makespan(6)

    def test_time_computing_is_what_each_party_did(self) -> None:
        federation = make_federation(
            2,
            fabric="simulated",
            default_profile=profile(),
            profiles={"p1": profile(encode=20, step=30)},
        )
        train(federation, 4)

        computing = {
            name: traffic.seconds_computing
            for name, traffic in federation.fabric.meter.parties.items()
        }
        assert computing == pytest.approx({"p0": 4 * 0.005, "p1": 4 * 0.050})
        # p1: 5 + 20 + 5 = 30 first, then 5 + 30 + 20 + 5 = 60.
        assert federation.fabric.elapsed_seconds() == pytest.approx((30 + 3 * 60) / 1000)


class TestDeadlines:
    def test_reply_exactly_at_the_deadline_counts(self) -> None:
        fabric, parties = probes("a")
        # 5 down + 2 encode + 5 up = 12
        answers = fabric.run(parties.ask("embed", Batch("train", 0), deadline=12))

        assert answers.keys() == {"a"}
        assert (fabric.now(), parties.num_dropped) == (12, 0)

    def test_one_tick_later_does_not_and_is_dropped_when_it_comes(self) -> None:
        fabric, parties = probes("a")
        assert fabric.run(parties.ask("embed", Batch("train", 0), deadline=11)) == {}
        assert (fabric.now(), parties.num_dropped) == (11, 0)

        # Sent at 11: 16 there, 21 back; the late embedding comes at 12 and counts for nothing.
        assert fabric.run(parties.ask("total")) == {"a": 0.0}
        assert (fabric.now(), parties.num_dropped) == (21, 1)

    def test_only_those_in_time_are_present(self) -> None:
        fabric, parties = probes("a", "b", "c", b=profile(latency=6), c=profile(encode=1))
        # a at 12, b at 6 + 2 + 6 = 14, c at 5 + 1 + 5 = 11
        answers = fabric.run(parties.ask("embed", Batch("train", 0), deadline=13))

        assert list(answers) == ["a", "c"]
        assert fabric.now() == 13

    def test_all_in_time_means_no_waiting_for_the_deadline(self) -> None:
        fabric, parties = probes("a", "b")
        fabric.run(parties.ask("embed", Batch("train", 0), deadline=100))
        assert fabric.now() == 12

    def test_ties_are_first_sent_first_served(self) -> None:
        fabric, parties = probes("a", "b", "c")
        for name in ("b", "c", "a"):
            parties.start(name, "work", 0)

        arrivals = [fabric.run(parties.arrival()) for _ in range(3)]

        assert arrivals == [Arrival("b", 0, 10), Arrival("c", 0, 10), Arrival("a", 0, 10)]

    def test_tie_of_calls_that_set_out_at_different_ticks(self) -> None:
        fabric, parties = probes("a", "b", b=profile(latency=3))
        parties.start("a", "work", 0)  # 5 + 5 = 10
        assert fabric.run(parties.arrival(deadline=4)) is None
        parties.start("b", "work", 0)  # 4 + 3 + 3 = 10

        assert fabric.run(parties.arrival()) == Arrival("a", 0, 10)
        assert fabric.run(parties.arrival()) == Arrival("b", 0, 10)

    def test_arrivals_come_by_tick_not_by_order_of_sending(self) -> None:
        fabric, parties = probes("a", "b")
        parties.start("a", "work", 4)  # 5 + 4 x 3 + 5 = 22
        parties.start("b", "work", 1)  # 5 + 3 + 5 = 13

        assert fabric.run(parties.arrival(deadline=13)) == Arrival("b", 1, 13)
        assert fabric.run(parties.arrival(deadline=21)) is None
        assert fabric.run(parties.arrival(deadline=22)) == Arrival("a", 4, 22)

    def test_nothing_in_flight_lets_time_pass_to_the_deadline(self) -> None:
        fabric, parties = probes("a")
        assert fabric.run(parties.arrival(deadline=40)) is None
        assert fabric.now() == 40

    def test_deadline_in_the_past_does_not_turn_time_back(self) -> None:
        fabric, parties = probes("a")
        fabric.run(parties.arrival(deadline=40))
        assert fabric.run(parties.arrival(deadline=30)) is None
        assert fabric.now() == 40

    def test_one_party_does_one_call_after_the_other(self) -> None:
        fabric, parties = probes("a")
        parties.start("a", "work", 2)  # at 5, done at 11, back at 16
        parties.start("a", "work", 1)  # at 5, begins at 11, done at 14, back at 19

        ticks = [fabric.run(parties.arrival()).tick for _ in range(2)]
        assert ticks == [16, 19]

    def test_replies_do_not_overtake_each_other_on_a_link(self) -> None:
        fabric, parties = probes("a", a=profile(latency=Trace(values=(0, 10, 0, 1))))
        parties.start("a", "work", 0)  # 0 there, 10 back
        parties.start("a", "work", 0)  # 0 there, 1 back: waits for the one before it

        assert [fabric.run(parties.arrival()).tick for _ in range(2)] == [10, 10]

    def test_deadlock_reports_its_tick(self) -> None:
        fabric, parties = probes("a")
        fabric.run(parties.ask("embed", Batch("train", 0)))

        with pytest.raises(Deadlock, match="tick 12") as caught:
            fabric.run(parties.arrival())
        assert caught.value.tick == 12


class TestPatience:
    def test_runs_out_with_an_error_that_names_the_silent(self) -> None:
        federation = make_federation(
            3,
            fabric="simulated",
            default_profile=profile(),
            profiles={"p1": profile(latency=50)},
            patience=Patience(timeout=60),
        )
        with pytest.raises(NoAnswer, match=says("'p1'", "'embed'", "exchange 1", 60)) as caught:
            train(federation, 1)
        assert caught.value.parties == ("p1",)
        assert federation.fabric.now() == 60

    def test_continue_goes_on_without_them(self) -> None:
        federation = make_federation(
            3,
            fabric="simulated",
            combine="mean",
            default_profile=profile(),
            profiles={"p1": profile(latency=50)},
            patience=Patience(timeout=60, then="continue"),
        )
        ends = []
        for _ in federation.train(Stop(exchanges=6), LoopState(), evaluate):
            ends.append(federation.fabric.now())

        # p1 answers 102 ticks after being asked. The first exchange waits for it, until 60; the
        # next ones don't. In the fourth its answer comes (at 102), so the fifth asks it again and
        # waits in vain once more; then it is away again.
        assert ends == [60, 75, 90, 105, 165, 180]
        attendance = federation.parties.attendance
        assert federation.parties.num_dropped == 1
        assert attendance.late == {"p0": 0, "p1": 1, "p2": 0}
        assert attendance.left_out == {"p0": 0, "p1": 6, "p2": 0}
        assert attendance.away == ("p1",)
        steps = {name: party.num_local_steps for name, party in federation.fabric.parties.items()}
        assert steps == {"p0": 6, "p1": 0, "p2": 6}

    def test_a_question_to_the_absent_alone_costs_nothing_while_others_are_here(self) -> None:
        fabric, parties = probes("a", "b", a=profile(latency=50))
        ask = partial(parties.ask, "embed", Batch("train", 0))

        assert set(fabric.run(ask(deadline=60))) == {"b"}
        assert fabric.now() == 60
        # VAFL asks whoever is behind for a fresh embedding: it must not wait for that every time.
        assert fabric.run(ask(among=["a"], deadline=200)) == {}
        assert fabric.now() == 60
        assert parties.attendance.left_out == {"a": 2, "b": 0}

    def test_a_question_waits_where_everybody_is_away(self) -> None:
        fabric, parties = probes("a", a=profile(latency=50))
        ask = partial(parties.ask, "embed", Batch("train", 0))

        assert fabric.run(ask(deadline=60)) == {}
        assert fabric.run(ask(deadline=90)) == {}
        assert fabric.now() == 90

    def test_who_is_always_late_is_starving(self) -> None:
        federation = make_federation(
            3,
            fabric="simulated",
            combine="mean",
            default_profile=profile(),
            profiles={"p1": profile(latency=50)},
            patience=Patience(timeout=60, then="continue"),
        )
        train(federation, 8)
        assert federation.parties.attendance.starving == ()
        train(federation, 12, LoopState(exchange=8))
        assert federation.parties.attendance.late["p1"] == 3
        assert federation.parties.attendance.starving == ("p1",)

    def test_who_starves_is_asked_and_not_waited_for_until_it_is_faster(self) -> None:
        slow = Trace(values=(50,) * 12 + (1,) * 100)
        fabric, parties = probes("a", "b", a=profile(latency=slow))
        ask = partial(parties.ask, "embed", Batch("train", 0))
        spent, came = [], []
        for _ in range(80):
            began = fabric.now()
            came.append(set(fabric.run(ask(deadline=began + 60))))
            spent.append(fabric.now() - began)
        # Three times it is waited for, then it costs nobody anything; it is asked all the same.
        assert spent.count(60) == 3
        assert parties.attendance.late["a"] > 3
        assert came[-1] == {"a", "b"}
        assert parties.attendance.starving == ()

    def test_who_starves_does_so_whatever_it_answers_beside_the_exchanges(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        federation = make_federation(
            3,
            fabric="simulated",
            combine="mean",
            default_profile=profile(),
            profiles={"p1": profile(latency=50)},
            patience=Patience(timeout=60, then="continue"),
        )
        train(federation, 12)
        # As on a network, where whoever is away for training is away for a checkpoint too.
        monkeypatch.setattr(Simulated, "answers_at_once", False)
        beside = federation.beside(federation.fabric.aside(), Patience())
        # A checkpoint and an evaluation wait for everybody, so nobody is late for them.
        assert set(federation.fabric.run(beside.ask("local_steps"))) == {"p0", "p1", "p2"}
        assert federation.parties.attendance.starving == ("p1",)
        assert beside.holds_up  # SplitNN stands still meanwhile

    def test_an_answer_that_nobody_waits_for_holds_nobody_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fabric, parties = probes("a", "b", a=profile(latency=50))
        parties.holds_up = False
        assert set(fabric.run(parties.ask("embed", Batch("train", 0)))) == {"a", "b"}
        assert parties.attendance.held_up == {"a": 0, "b": 0}
        monkeypatch.setattr(Simulated, "answers_at_once", False)
        federation = make_federation(3, method=Flex(), fabric="simulated")
        assert not federation.beside(federation.fabric.aside(), Patience()).holds_up

    def test_time_that_a_party_alone_takes_is_held_up_by_it(self) -> None:
        federation = make_federation(
            3, fabric="simulated", default_profile=profile(), profiles={"p1": profile(latency=50)}
        )
        train(federation, 3)
        # The others answer after 12 ticks, then 15; p1 90 later, every time.
        assert federation.parties.attendance.held_up == {"p0": 0, "p1": 3 * 90, "p2": 0}

    def test_the_first_table_takes_one_round_trip_and_not_one_a_batch(self) -> None:
        federation = make_federation(
            2, method=Asynchronous(), fabric="simulated", default_profile=profile(latency=50)
        )
        num_batches = federation.holder.parts["train"].plan.num_batches
        assert num_batches > 2
        federation.fabric.run(federation.method.begin(federation.holder, federation.parties))
        # 50 down, an encoding of 2 a batch, 50 up
        assert federation.fabric.now() == 100 + 2 * num_batches

    def test_flex_hands_out_its_orders_before_it_takes_steps_of_its_own(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        federation = make_federation(2, method=Flex(), fabric="simulated")
        done: list[str] = []
        hand_out, step = federation.fabric.hand_out, federation.holder.step
        monkeypatch.setattr(federation.fabric, "hand_out", lambda: (done.append("out"), hand_out()))
        monkeypatch.setattr(federation.holder, "step", lambda: (done.append("step"), step()))
        train(federation, 1)
        assert done[:2] == ["out", "step"]

    def test_exactly_patient_enough(self) -> None:
        assert makespan(3, patience=Patience(timeout=15)) == 12 + 2 * 15


class TestPartsOfATick:
    """Durations in microseconds: the same sums, and methods still see whole ticks."""

    def test_an_exchange_takes_its_parts(self) -> None:
        costs = {"encode": 0, "step": 3000, "latency": 2000}
        federation = make_federation(
            2,
            fabric="simulated",
            default_profile=profile(**costs),
            fuse=Constant(value=1000),
            engine=Engine(exchange=Constant(value=500)),
            parts_per_tick=1000,
        )
        train(federation, 11)
        # Two ways, a step and an update, and the last exchange's engine: the others' is over while
        # gradients travel. The first has no step to do.
        assert federation.fabric.elapsed_seconds() == pytest.approx(11 * 8e-3 - 3e-3 + 0.5e-3)
        assert federation.fabric.now() == 85

    def test_an_exchange_of_flex_ends_as_its_deadline_begins(self) -> None:
        costs = {"encode": 0, "step": 1000, "latency": 2250}
        federation = make_federation(
            1,
            method=Flex(timeout=20),
            fabric="simulated",
            default_profile=profile(**costs),
            fuse=Constant(value=1000),
            parts_per_tick=1000,
        )
        train(federation, 1)
        # The upload is here after 4.5 ms, so the timeout counts from tick 4. The last update ends
        # at 23.5 ms. The order is there after 6.75 ms, and the party's last step ends at 25.75.
        assert federation.fabric.elapsed_seconds() == pytest.approx(24e-3)
        assert federation.holder.memory.recall(Pace).num_steps == 19
        assert federation.fabric.parties["p0"].num_local_steps == 19

    def test_a_tick_that_has_begun_is_not_over(self) -> None:
        fabric, parties = probes("a", a=profile(latency=Constant(value=2450)), parts_per_tick=1000)
        parties.start("a", "work", 0)
        assert fabric.run(parties.arrival(deadline=3)) is None
        assert fabric.run(parties.arrival(deadline=4)).tick == 4

    def test_evaluations_and_checkpoints_take_time_where_they_cost_some(self) -> None:
        federation = make_federation(
            2,
            fabric="simulated",
            num_validation=8,
            default_profile=profile(),
            engine=Engine(evaluation=Constant(value=100)),
        )
        loop = LoopState()
        for _ in federation.train(Stop(exchanges=4, evaluate_every=2), loop, evaluate):
            pass
        assert loop.evaluating == pytest.approx(0.2)
        assert loop.elapsed == pytest.approx(federation.fabric.elapsed_seconds())


class TestDurations:
    @pytest.mark.parametrize(
        "duration",
        [Uniform(low=2, high=5), Exponential(mean=7.0, least=1), Trace(values=(4, 0, 9))],
    )
    def test_nth_draw_depends_on_seed_and_number_alone(self, duration: Duration) -> None:
        whole = Stopwatch(duration, seed=3)
        drawn = [whole.draw() for _ in range(600)]
        late = Stopwatch(duration, seed=3)
        late.num_draws = 500

        assert [late.draw() for _ in range(100)] == drawn[500:]
        late.num_draws = 10
        assert late.draw() == drawn[10]

    def test_uniform_takes_every_value_and_no_other(self) -> None:
        watch = Stopwatch(Uniform(low=2, high=5), seed=0)
        drawn = [watch.draw() for _ in range(400)]
        assert set(drawn) == {2, 3, 4, 5}
        assert all(70 < drawn.count(value) < 130 for value in (2, 3, 4, 5))

    def test_exponential_has_its_mean_and_least(self) -> None:
        watch = Stopwatch(Exponential(mean=50.0, least=3), seed=0)
        drawn = [watch.draw() for _ in range(4000)]
        assert min(drawn) == 3
        assert sum(drawn) / len(drawn) == pytest.approx(50.0, rel=0.05)

    def test_trace_begins_again_at_its_end(self) -> None:
        watch = Stopwatch(Trace(values=(4, 0, 9)), seed=0)
        assert [watch.draw() for _ in range(7)] == [4, 0, 9, 4, 0, 9, 4]

    def test_trace_with_a_period_goes_by_time(self) -> None:
        watch = Stopwatch(Trace(values=(4, 0, 9), period=10), seed=0)
        assert [watch.draw(now) for now in (0, 9, 10, 29, 30)] == [4, 4, 0, 9, 4]

    def test_streams_of_seeds_are_unlike(self) -> None:
        first, second = (Stopwatch(Uniform(low=0, high=10**6), seed=seed) for seed in (1, 2))
        assert [first.draw() for _ in range(5)] != [second.draw() for _ in range(5)]

    def test_kinds_and_parties_draw_apart(self) -> None:
        drawn = Uniform(low=1, high=10**9)
        same = Profile(encode=drawn, step=drawn, latency=drawn)
        fabric = Simulated(
            {name: ProbeParty(name=name) for name in "ab"},
            default=same,
            fuse=drawn,
            engine=Engine(exchange=drawn, evaluation=drawn, checkpoint=drawn),
            seed=1,
        )
        watches = [
            *(watch for name in "ab" for watch in fabric._sites[name].watches.values()),
            *(fabric._fuse, *fabric._engine.values()),
        ]
        assert len(watches) == 10
        assert len({watch.draw() for watch in watches}) == 10

    def test_a_checkpoint_of_before_there_were_engines_is_taken(self) -> None:
        engine = Engine(exchange=Uniform(low=1, high=10**9))
        before, parties = probes("a")
        before.run(parties.ask("total"))
        before.send(Call(7, "a", "total", (), 0, wants_reply=True))
        state = before.state()
        assert [item["part"] for item in state["replies"]] == [20]
        del state["engine_draws"], state["replies"][0]["part"]
        after = Simulated({"a": ProbeParty(name="a")}, default=profile(), engine=engine)
        after.restore(state)
        assert after.now() == before.now() == 10
        assert after.state()["engine_draws"] == dict.fromkeys(
            ("exchange", "evaluation", "checkpoint"), 0
        )
        assert [item["part"] for item in after.state()["replies"]] == [20]

    def test_what_can_not_be_is_refused(self) -> None:
        for wrong in (
            lambda: Constant(value=-1),
            lambda: Uniform(low=3, high=2),
            lambda: Uniform(low=-1, high=2),
            lambda: Exponential(mean=0.0),
            lambda: Trace(values=()),
            lambda: Trace(values=(1, -1)),
            lambda: Trace(values=(1,), period=0),
            lambda: Profile(bandwidth=0),
            lambda: Simulated({"a": ProbeParty(name="a")}, profiles={"b": profile()}),
        ):
            with pytest.raises(ConfigError):
                wrong()
