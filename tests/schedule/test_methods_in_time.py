"""What the schedule methods cost in time, against values worked out by hand; every sum is in a
comment. On the simulated clock all of it is exact."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from colonnade.core import fabric as core_fabric
from colonnade.core.fabric import RealClock
from colonnade.core.federation import Federation, LoopState
from colonnade.core.method import Method
from colonnade.core.seeds import derive_seed
from colonnade.fabrics.durations import (
    Constant,
    Duration,
    Exponential,
    Shares,
    Trace,
    Utilization,
)
from colonnade.fabrics.simulated import Profile
from colonnade.fabrics.sleeps import RandomSleep, RoundRobinSleep, Sleep
from colonnade.methods.asynchronous import Asynchronous
from colonnade.methods.fedbcd import FedBCD
from colonnade.methods.flex import PBCD, AdaptiveFlex, Flex, Pace, SyncVFL
from colonnade.methods.splitnn import SplitNN
from colonnade.methods.vafl import VAFL
from federations import CountingClock, make_federation, mlp, train


def profile(
    step: int | Duration = 1, latency: int = 0, encode: int | Duration = 0, **more: Any
) -> Profile:
    def duration(ticks: int | Duration) -> Duration:
        return Constant(value=ticks) if isinstance(ticks, int) else ticks

    return Profile(step=duration(step), latency=duration(latency), encode=duration(encode), **more)


def timed(method: Method, *profiles: Profile, **settings: Any) -> Federation:
    """A federation whose parties p0, p1, ... have these profiles."""
    return make_federation(
        names=[f"p{number}" for number in range(len(profiles))],
        method=method,
        fabric="simulated",
        profiles={f"p{number}": item for number, item in enumerate(profiles)},
        **{"encoder": mlp(2, ()), "fusion_hidden": ()} | settings,
    )


def ends(federation: Federation, num_exchanges: int) -> list[int]:
    """The tick at which each exchange is over for the label holder."""
    state, ticks = LoopState(), []
    for number in range(1, num_exchanges + 1):
        train(federation, number, state)
        state.stopped_by = ""
        ticks.append(federation.fabric.now())
    return ticks


def steps_per_exchange(federation: Federation, num_exchanges: int) -> dict[str, list[int]]:
    """How many local steps each party took in each exchange."""
    parties = federation.fabric.parties
    counts: dict[str, list[int]] = {name: [] for name in parties}
    state = LoopState()
    for number in range(1, num_exchanges + 1):
        before = {name: party.num_local_steps for name, party in parties.items()}
        train(federation, number, state)
        state.stopped_by = ""
        for name, party in parties.items():
            counts[name].append(party.num_local_steps - before[name])
    return counts


# 5 ticks each way: 10 of communication. Steps of 3, 4 and 9 ticks.
LATENCY, COMM = 5, 10
UNEQUAL = (profile(3, LATENCY), profile(4, LATENCY), profile(9, LATENCY))


class TestExchange:
    @pytest.mark.parametrize("method", [Flex(timeout=20), AdaptiveFlex(timeout=20)])
    def test_flex_costs_communication_and_timeout(self, method: Method) -> None:
        # 10 + 20, whoever is slow.
        assert ends(timed(method, *UNEQUAL), 4) == [30, 60, 90, 120]

    @pytest.mark.parametrize("labels", ["private", "shared"])
    def test_labels_make_no_difference_in_time(self, labels: str) -> None:
        assert ends(timed(Flex(timeout=20, labels=labels), *UNEQUAL), 3) == [30, 60, 90]

    def test_synchronous_with_the_slowest_costs_communication_and_timeout(self) -> None:
        assert ends(timed(SyncVFL(steps="min", timeout=20), *UNEQUAL), 4) == [30, 60, 90, 120]

    def test_synchronous_with_the_fastest_costs_its_steps_at_the_slowest(self) -> None:
        # The fastest manages 20 // 3 = 6 steps; 6 of the slowest are 54. First exchange: nothing
        # to wait for but communication, 10. Then 10 + 54 each.
        federation = timed(SyncVFL(steps="max", timeout=20), *UNEQUAL)
        assert ends(federation, 4) == [10, 74, 138, 202]

    def test_fixed_number_of_steps_costs_them_at_the_slowest(self) -> None:
        # 10, then 10 + 5 · 9 = 55 each; FedBCD does the same.
        assert ends(timed(SyncVFL(local_steps=5), *UNEQUAL), 3) == [10, 65, 120]
        assert ends(timed(FedBCD(local_steps=5), *UNEQUAL), 3) == [10, 65, 120]

    def test_one_step_each_costs_the_slowest_step(self) -> None:
        # 10, then 10 + 9 each; SplitNN does the same.
        assert ends(timed(PBCD(), *UNEQUAL), 4) == [10, 29, 48, 67]
        assert ends(timed(SplitNN(), *UNEQUAL), 4) == [10, 29, 48, 67]

    def test_step_longer_than_the_timeout_is_waited_for(self) -> None:
        # The first exchange ends at 10 + 20. The next ask is at the party at 35, which stepped from
        # 15 to 65: answer at 70, and 20 more. Then 10 + 50 each.
        federation = timed(Flex(timeout=20), profile(3, LATENCY), profile(50, LATENCY))
        assert ends(federation, 4) == [30, 90, 150, 210]

    def test_label_holder_steps_while_the_parties_do(self) -> None:
        # Updates of 6 ticks fit into 20 three times: no time of their own.
        quick = timed(Flex(timeout=20), *UNEQUAL, fuse=Constant(value=6))
        assert ends(quick, 3) == [30, 60, 90]
        # One of 33 does not fit, and is done all the same: 10 + 33.
        slow = timed(Flex(timeout=20), *UNEQUAL, fuse=Constant(value=33))
        assert ends(slow, 3) == [43, 86, 129]
        # P-BCD: an update of 4 runs beside the slowest step of 9, and is all there is to wait for
        # at the end; one of 20 does not.
        assert ends(timed(PBCD(), *UNEQUAL, fuse=Constant(value=4)), 3) == [14, 33, 52]
        assert ends(timed(PBCD(), *UNEQUAL, fuse=Constant(value=20)), 3) == [30, 60, 90]

    def test_same_work_takes_flex_least_where_communication_is_dear(self) -> None:
        # comm 100, timeout 20: per exchange 120 (Flex, Min), 100 + 54 (Max), 100 + 9 (P-BCD).
        far = [profile(ticks, 50) for ticks in (3, 4, 9)]
        last = {
            "flex": ends(timed(Flex(timeout=20), *far), 11),
            "min": ends(timed(SyncVFL(steps="min", timeout=20), *far), 11),
            "max": ends(timed(SyncVFL(steps="max", timeout=20), *far), 11),
            "pbcd": ends(timed(PBCD(), *far), 11),
        }
        each = {name: (ticks[-1] - ticks[0]) / 10 for name, ticks in last.items()}
        assert each == {"flex": 120, "min": 120, "max": 154, "pbcd": 109}


class TestNumberOfSteps:
    @pytest.mark.parametrize("ticks", [1, 2, 3, 7, 10, 19, 20, 21, 400])
    def test_as_many_as_fit_and_at_least_one(self, ticks: int) -> None:
        federation = timed(Flex(timeout=20), profile(ticks))
        assert steps_per_exchange(federation, 3) == {"p0": [max(1, 20 // ticks)] * 3}

    def test_example_of_the_paper(self) -> None:
        # Section VII A: 5 and 10 units per step, timeout 20. Sync-VFL: two each; Flex: 4 and 2.
        pair = (profile(5), profile(10))
        flex = steps_per_exchange(timed(Flex(timeout=20), *pair), 2)
        least = steps_per_exchange(timed(SyncVFL(steps="min", timeout=20), *pair), 2)
        most = steps_per_exchange(timed(SyncVFL(steps="max", timeout=20), *pair), 2)
        assert flex == {"p0": [4, 4], "p1": [2, 2]}
        assert least == {"p0": [2, 2], "p1": [2, 2]}
        assert most == {"p0": [4, 4], "p1": [4, 4]}

    def test_speeds_of_table_three(self) -> None:
        # MOSEI: timeout of 20 units, 5, 10 and 15 steps, and 20 at the label holder. A unit is 60
        # ticks here, so that all of them are whole: 240, 120, 80 and 60 ticks.
        federation = timed(
            Flex(timeout=20 * 60),
            profile(240, 300),
            profile(120, 300),
            profile(80, 300),
            fuse=Constant(value=60),
        )
        assert steps_per_exchange(federation, 2) == {"p0": [5, 5], "p1": [10, 10], "p2": [15, 15]}
        assert federation.holder.memory.recall(Pace).num_steps == 20
        # tcomm = 10 units.
        assert federation.fabric.now() == 2 * (10 + 20) * 60

    def test_label_holder_whose_work_is_free_keeps_up_with_the_fastest(self) -> None:
        federation = timed(Flex(timeout=20), *UNEQUAL)
        train(federation, 1)
        assert federation.holder.memory.recall(Pace).num_steps == 6

    def test_pace_that_changes_within_an_exchange(self) -> None:
        # 3 + 9 + 3 = 15; 9 more would be 24. Then from the 9: 9 + 3 = 12; 9 more would be 21, so it
        # stays at 2, and again, since the next is a 9 once more: 9 + 3.
        federation = timed(Flex(timeout=20), profile(Trace(values=(3, 9))))
        assert steps_per_exchange(federation, 3) == {"p0": [3, 2, 2]}


class TestUtilization:
    def test_busy_machine_takes_its_unit_over_the_share_that_is_left(self) -> None:
        # Exchanges of exactly 100 ticks, and the next share of the trace in each. Steps of
        # 10 / (1 - c): 10, 20, 40, 100 ticks; 10, 5, 2 and 1 of them, as timeout · (1 - c) / 10.
        trace = Utilization(values=(0.0, 0.5, 0.75, 0.9), unit=10, period=100)
        federation = timed(Flex(timeout=100), profile(trace))
        counts = steps_per_exchange(federation, 8)["p0"]
        assert counts == [10, 5, 2, 1, 10, 5, 2, 1]
        assert federation.fabric.now() == 800

    def test_parties_have_traces_of_their_own(self) -> None:
        busy = Utilization(values=(0.8,), unit=4, period=50)
        mixed = Utilization(values=(0.0, 0.6), unit=4, period=30)
        # Latency 5, timeout 20: exchanges of 30. Steps: 4 / 0.2 = 20, one each. The other one: 4
        # ticks in even exchanges, five of them; 10 in odd ones, two of them. Local steps begin 15
        # ticks into the exchange and end by 35: the last ones of an even exchange begin at 27, and
        # 15 + 3 · 4 = 27 is the fourth. The fifth would begin at 31, in the next period: 10 ticks,
        # to 41 > 35. In odd ones: 15, 25 -> 35; the third would begin at 35.
        federation = timed(Flex(timeout=20), profile(busy, 5), profile(mixed, 5))
        assert steps_per_exchange(federation, 4) == {"p0": [1, 1, 1, 1], "p1": [4, 2, 4, 2]}

    def test_without_a_period_every_step_has_the_next_share(self) -> None:
        # 10, 20, 10, 20: three fit into 40, and 20 + 10 the next time.
        trace = Utilization(values=(0.0, 0.5), unit=10)
        federation = timed(Flex(timeout=40), profile(trace))
        assert steps_per_exchange(federation, 2) == {"p0": [3, 2]}


def sleepy(sleep: Sleep, step: int = 1, encode: int = 0) -> Profile:
    return profile(step, encode=encode, sleep=sleep)


class TestRoundRobinSleep:
    def parties(self, encode: int = 0) -> list[Profile]:
        return [
            sleepy(RoundRobinSleep(turn=turn, of=2, ticks=5000), encode=encode) for turn in range(2)
        ]

    @pytest.mark.parametrize("method", [SplitNN(), FedBCD(local_steps=3), PBCD()])
    def test_synchronous_methods_wait_out_every_turn(self, method: Method) -> None:
        # One of the two is asleep whenever both are asked: an exchange per turn.
        assert ends(timed(method, *self.parties()), 4) == [5000, 10000, 15000, 20000]

    @pytest.mark.parametrize("method", [Asynchronous(), VAFL()])
    def test_asynchronous_ones_go_on_with_whoever_is_awake(self, method: Method) -> None:
        # One batch. The initial upload waits for p0, to 5000 + 50. p1 sleeps until 10000, p0 is
        # there: encoding 50, then 1 + 50 per exchange.
        federation = timed(method, *self.parties(encode=50), num_samples=8, batch_size=8)
        found = ends(federation, 60)
        assert found == [5100 + 51 * number for number in range(60)]
        steps = {name: party.num_local_steps for name, party in federation.fabric.parties.items()}
        assert steps == {"p0": 60, "p1": 0}

    def test_and_then_with_the_other(self) -> None:
        # p0's upload number n is at 5100 + 51 n: number 96 begins at 9946 and ends at 9996, and the
        # next is asked of it at 9997, awake until 10000: encoding to 10047, begun in time. It then
        # sleeps to 15000. p1 wakes at 10000: 10050, and every 51.
        federation = timed(Asynchronous(), *self.parties(encode=50), num_samples=8, batch_size=8)
        found = ends(federation, 110)
        assert found[95:98] == [9945, 9996, 10047]
        assert found[98:] == [10050 + 51 * number for number in range(12)]


class TestRandomSleep:
    SEED = 3

    def sleeps(self, name: str, count: int, probability: float, ticks: int) -> list[int]:
        """How long a party sleeps before each of its calls."""
        shares = Shares(derive_seed(self.SEED, "simulated", name, "sleep"))
        return [ticks if shares.at(number) < probability else 0 for number in range(count)]

    def build(self, method: Method, probability: float, **changes: int) -> Federation:
        party = sleepy(RandomSleep(probability=probability, ticks=5000), **changes)
        return timed(method, party, party, num_samples=8, batch_size=8, fabric_seed=self.SEED)

    def test_synchronous_exchange_sleeps_if_anybody_does(self) -> None:
        # Work costs nothing here; an exchange takes 5000 if either of the two sleeps.
        federation = self.build(SplitNN(), 0.25, step=0)
        first, second = (self.sleeps(name, 40, 0.25, 5000) for name in ("p0", "p1"))
        longest = [max(pair) for pair in zip(first, second, strict=True)]
        assert ends(federation, 40) == [sum(longest[: number + 1]) for number in range(40)]
        # 1 - 0.75² = 0.44 of them.
        assert 10 <= sum(longest) / 5000 <= 25

    def test_always_asleep_once_per_call(self) -> None:
        assert ends(self.build(SplitNN(), 1.0, step=7), 3) == [5000, 10007, 15014]

    def test_asynchronous_party_sleeps_for_itself_alone(self) -> None:
        # Each party: sleep and 50 of encoding for the initial upload; both done, then the same for
        # every upload, and 1 per step in between. The label holder takes them as they come.
        federation = self.build(Asynchronous(), 0.25, step=1, encode=50)
        sleeps = {name: self.sleeps(name, 41, 0.25, 5000) for name in ("p0", "p1")}
        tick = max(item[0] for item in sleeps.values()) + 50
        arrivals = []
        for item in sleeps.values():
            now = tick
            for number in range(1, 41):
                now += item[number] + 50 + (1 if number > 1 else 0)
                arrivals.append(now)
        assert ends(federation, 40) == sorted(arrivals)[:40]


class TestPoissonActivations:
    def test_rates_are_those_of_the_parties(self) -> None:
        # Exponential times of mean 40, 80 and 160 between activations: 4/7, 2/7 and 1/7 of the
        # uploads, and 1000 · (1/40 + 1/80 + 1/160) = 43.75 in 1000 ticks.
        means = {"p0": 40.0, "p1": 80.0, "p2": 160.0}
        parties = [profile(0, encode=Exponential(mean=mean)) for mean in means.values()]
        federation = timed(VAFL(), *parties, num_samples=8, batch_size=8, fabric_seed=1)
        train(federation, 1)
        began = federation.fabric.now()
        count = 1400
        train(federation, count + 1, LoopState(exchange=1))
        steps = {name: party.num_local_steps for name, party in federation.fabric.parties.items()}
        lasted = federation.fabric.now() - began

        assert count / lasted * 1000 == pytest.approx(43.75, rel=0.08)
        for name, mean in means.items():
            share = (1 / mean) / sum(1 / other for other in means.values())
            # Four standard deviations of a binomial.
            margin = 4 * math.sqrt(count * share * (1 - share))
            assert steps[name] == pytest.approx(count * share, abs=margin)
        # Section 2.3: delays are geometrically distributed. The slowest is asked for its entry at
        # every upload of the others; a delay of d means that it was silent d - 1 times.
        delays: Counter[int] = Counter(federation.method.findings(federation.holder)["delays"])
        assert delays[1] > delays[2] > delays[4] > delays[8] > 0

    def test_no_two_parties_share_their_times(self) -> None:
        parties = [profile(0, encode=Exponential(mean=50.0)) for _ in range(2)]
        federation = timed(VAFL(), *parties, num_samples=8, batch_size=8)
        found = ends(federation, 30)
        gaps = {after - before for before, after in pairwise(found)}
        assert len(gaps) > 10


class TestRealTime:
    """In one process the party itself watches the clock; here the clock is in the test's hand."""

    def build(self, method: Method, **clocks: CountingClock) -> Federation:
        federation = make_federation(names=[*clocks], method=method, encoder=mlp(2, ()))
        for name, clock in clocks.items():
            federation.fabric.parties[name].clock = clock
        return federation

    @pytest.mark.parametrize("labels", ["private", "shared"])
    @pytest.mark.parametrize("method", [Flex, AdaptiveFlex])
    def test_party_stops_stepping_at_the_deadline(
        self, method: type[Flex] | type[AdaptiveFlex], labels: Any
    ) -> None:
        # A step begins while the clock is before the deadline: at 0, 7, 14 of 20, and not at 21.
        # The quick one begins at 0, 2, ..., 18. One that takes 500 is there once.
        federation = self.build(
            method(timeout=20, labels=labels),
            a=CountingClock(step=7),
            b=CountingClock(step=2),
            c=CountingClock(step=500),
        )
        assert steps_per_exchange(federation, 3) == {"a": [3] * 3, "b": [10] * 3, "c": [1] * 3}

    def test_first_steps_of_all_have_the_rate_of_many_once_the_clock_knows(self) -> None:
        class Unknowing(CountingClock):
            """Like the machine's: before the first step it knows of none."""

            def num_fitting(self, kind: str, timeout: int) -> int:
                return super().num_fitting(kind, timeout) if self.now() else 1

        federation = self.build(AdaptiveFlex(timeout=20), a=Unknowing(step=2))
        party = federation.fabric.parties["a"]
        configured = party.optimizer.param_groups[0]["lr"]
        assert steps_per_exchange(federation, 1) == {"a": [10]}
        assert party.optimizer.param_groups[0]["lr"] == pytest.approx(configured / 10)

    def test_encoding_takes_time_too(self) -> None:
        # The embedding that was sent serves the first step: 3. Then 4 + 3 each: 10, 17, 24.
        federation = self.build(Flex(timeout=20), a=CountingClock(step=3, encode=4))
        assert steps_per_exchange(federation, 2) == {"a": [4, 4]}

    def test_party_that_slows_down_does_less(self) -> None:
        clock = CountingClock(step=2)
        federation = self.build(Flex(timeout=20), a=clock)
        state = LoopState()
        counts = []
        for number, ticks in enumerate((2, 5, 30, 1), start=1):
            clock.costs["step"] = ticks
            before = federation.fabric.parties["a"].num_local_steps
            train(federation, number, state)
            state.stopped_by = ""
            counts.append(federation.fabric.parties["a"].num_local_steps - before)
        assert counts == [10, 4, 1, 20]

    def test_label_holder_stops_at_the_deadline_too(self) -> None:
        federation = self.build(Flex(timeout=20), a=CountingClock())
        federation.holder.clock = CountingClock(fuse=6)
        train(federation, 1)
        # At 0, 6, 12, 18.
        assert federation.holder.memory.recall(Pace).num_steps == 4

    def test_synchronous_forms_go_by_what_the_parties_say_that_fits(self) -> None:
        clocks = {"a": 7, "b": 2}
        for steps, count in {"min": 2, "max": 10}.items():
            federation = self.build(
                SyncVFL(steps=steps, timeout=20),
                **{name: CountingClock(step=ticks) for name, ticks in clocks.items()},
            )
            assert steps_per_exchange(federation, 2) == {"a": [count] * 2, "b": [count] * 2}

    def test_machines_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seconds = [10.0]

        class FakeTime:
            perf_counter = staticmethod(lambda: seconds[0])
            monotonic_ns = staticmethod(lambda: int(seconds[0] * 1e9))

        monkeypatch.setattr(core_fabric, "time", FakeTime)
        clock = RealClock()
        assert clock.now() == 10_000
        # Before there was any, one.
        assert clock.num_fitting("step", 500) == 1
        clock.begin()
        seconds[0] += 0.125
        clock.work("step")
        # 500 ms / 125 ms
        assert clock.num_fitting("step", 500) == 4
        assert clock.num_fitting("fuse", 500) == 1
        # It is 10,125 now, and a step ends when the deadline begins; of a fuse nothing is known.
        assert clock.fits("step", 10_250)
        assert not clock.fits("step", 10_249)
        assert clock.fits("fuse", 10_125)
        assert not clock.fits("fuse", 10_124)
        # One that was interrupted says nothing of the next; two in a row do.
        for took, fitting in ((2.0, 4), (1.0, 0), (1.0, 0), (0.125, 4)):
            clock.begin()
            seconds[0] += took
            clock.work("step")
            assert clock.num_fitting("step", 500) == fitting
        # Of the last five 2, 1, 1, 1/8, 1/8: all but one took at most a second, and a step begins
        # with an encoding, of 1/4. Of others only those of the last moments count.
        for kind, took in (("step", 0.125), ("encode", 0.25)):
            clock.begin()
            seconds[0] += took
            clock.work(kind)
        now = clock.now()
        assert clock.fits("step", now + 1250)
        assert not clock.fits("step", now + 1249)

    def test_units_that_others_interrupt_are_not_forgotten_at_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seconds = [10.0]

        class FakeTime:
            perf_counter = staticmethod(lambda: seconds[0])
            monotonic_ns = staticmethod(lambda: round(seconds[0] * 1e9))

        monkeypatch.setattr(core_fabric, "time", FakeTime)
        clock = RealClock()

        def work(took: float) -> None:
            clock.begin()
            seconds[0] += took
            clock.work("fuse")

        # Another process takes its turn twice within twelve units.
        for took in (0.001, 0.004, *[0.001] * 5, 0.004, *[0.001] * 5):
            work(took)
        now = round(seconds[0] * 1000)
        assert clock.fits("fuse", now + 4)
        assert not clock.fits("fuse", now + 3)
        # Half a second later only the last five are known, and none was interrupted.
        seconds[0] += 0.5
        now = round(seconds[0] * 1000)
        assert clock.fits("fuse", now + 1)

    def test_what_is_done_meanwhile_is_no_part_of_a_unit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seconds = [10.0]

        class FakeTime:
            perf_counter = staticmethod(lambda: seconds[0])

        monkeypatch.setattr(core_fabric, "time", FakeTime)
        clock = RealClock()
        clock.begin()
        seconds[0] += 0.25
        with clock.interrupted():
            seconds[0] += 8.0
            clock.begin()
        seconds[0] += 0.5
        clock.work("fuse")
        assert clock.seconds == {"fuse": 0.75}
