"""A slow party over real processes: what it costs each method, and what the simulated clock says.

Wall time to a target on digits, three agents and the label holder on this machine. Every figure is
made of runs with lines, evaluations and checkpoints as they are by default.
"""

from __future__ import annotations

import logging
import math
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.bench.slow_federation import PARTIES, SLOW, Reached, SlowFederation
from colonnade.run.history import recorded_lines
from colonnade.run.measured_profile import measured_profile
from colonnade.run.storage import read_json
from colonnade.run.timeline_file import timeline_lines

__all__ = ["CASES", "bench_slow"]

# Seconds of the slow party's round trip: beside none, and where the simulation is compared.
_SLOW = 0.2
_COMPARED = 0.04
# The target is this share of the accuracy that SplitNN ends with, in one process, on another seed:
# chosen before anything is timed, and by nothing that is.
_SHARE = 0.9
_FAST_SHARE = 0.6
_SHARE_EXCHANGES = 1000
_SHARE_SEED = 2
# Ticks: an exchange of Flex, how long it waits for an upload, and how long so that the slow party
# takes part in every exchange.
_TIMEOUT = 20
_PATIENCE = 100
_WAITING = 1000
# So long each party stands still in its turn, in seconds, and so many uploads of everybody.
_TURN = 1.0
_ROUNDS = 100

# By method, its settings and a learning rate that reaches the target in some hundred exchanges.
_METHODS: Mapping[str, tuple[Any, float]] = {
    "splitnn": ("splitnn", 0.1),
    "fedbcd": ({"name": "fedbcd", "local_steps": 5}, 0.03),
    "async": ("async", 0.1),
    "vafl": ("vafl", 0.1),
    "flex": ({"name": "flex", "timeout": _TIMEOUT}, 0.01),
    "adaptive_flex": ({"name": "adaptive_flex", "timeout": _TIMEOUT}, 0.2),
    "laser": ({"name": "laser", "heads": "label_holder", "weights": "normalised"}, 0.1),
    "easter": ("easter", 0.1),
}
CASES = (
    *("splitnn", "async", "vafl", "flex", "flex-waiting", "flex-exchange"),
    *(f"simulated-{name}" for name in _METHODS),
    *("round-robin-splitnn", "round-robin-async"),
)


def bench_slow(fast: bool, cases: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Rows: methods with and without a slow party; Flex's exchange; simulations; taking turns."""
    logging.getLogger("colonnade").setLevel(logging.ERROR)
    runs = 1 if fast else 3
    with (
        tempfile.TemporaryDirectory() as place,
        SlowFederation(Path(place)).running() as federation,
    ):
        share = _FAST_SHARE if fast else _SHARE
        bench = _Bench(federation, _target(federation, share), runs)
        return [bench.measure(case) for case in CASES if not cases or case in cases]


def _target(federation: SlowFederation, share: float) -> float:
    """The share of SplitNN's last accuracy, in whole hundredths."""
    settings = _settings("splitnn") | {
        "seed": _SHARE_SEED,
        "stop": {"exchanges": _SHARE_EXCHANGES, "evaluate_every": _SHARE_EXCHANGES},
    }
    return math.floor(100 * share * federation.accuracy(settings)) / 100


def _settings(name: str) -> dict[str, Any]:
    method, rate = _METHODS[name]
    optimizer = {"name": "sgd", "lr": rate}
    fusion = {"kind": "mlp", "combine": "mean", "hidden": [256, 256]}
    return {
        "method": method,
        "data": {"batch_size": 128},
        "defaults": {
            "encoder": {"kind": "mlp", "hidden": [64], "embedding": 16},
            "optimizer": optimizer,
        },
        "label_holder": {"optimizer": optimizer, "fusion": fusion},
        **({"patience": {"timeout": _PATIENCE}} if "flex" in name else {}),
    }


class _Bench:
    def __init__(self, federation: SlowFederation, target: float, runs: int) -> None:
        self._federation = federation
        self._target = target
        self._runs = runs

    def measure(self, case: str) -> dict[str, Any]:
        """The row of a case."""
        if case == "flex-exchange":
            return self.flex_exchange()
        for prefix, measure in (
            ("simulated-", self.simulated),
            ("round-robin-", self.taking_turns),
        ):
            if case.startswith(prefix):
                return measure(case.removeprefix(prefix))
        if case == "flex-waiting":
            return self.slowed(case, "flex", {"patience": {"timeout": _WAITING}}, runs=1)
        return self.slowed(case, case, {}, runs=1 if case == "splitnn" else self._runs)

    def _settings(self, name: str) -> dict[str, Any]:
        return _settings(name) | {"stop": {"exchanges": 20_000, "target": self._target}}

    def slowed(
        self, case: str, name: str, other: Mapping[str, Any], *, runs: int
    ) -> dict[str, Any]:
        """Wall time to the target with a slow party over that without, in turns."""
        settings = {**self._settings(name), **other}
        pairs = [
            tuple(self._federation.train(settings, delay=delay) for delay in (_SLOW, 0.0))
            for _ in range(runs)
        ]
        slow, quick = ([pair[place] for pair in pairs] for place in (0, 1))
        return {
            "case": case,
            "ratio": _median(slow) / _median(quick),
            "unit": f"wall time to accuracy {self._target:g}, one party behind 200 ms / without",
            "against": "itself with no delay, in turns",
            "runs": len(pairs),
            "seconds": _median(slow),
            "seconds_against": _median(quick),
            "exchanges": [item.exchanges for item in slow],
            "exchanges_against": [item.exchanges for item in quick],
            # What the slow party missed, and for how long the others waited for it.
            "missed": [_attendance(item, "left_out") for item in slow],
            "held_up_seconds": [_attendance(item, "held_up_seconds") for item in slow],
            "target": self._target,
            "curves": [_curve(item.directory) for item in slow],
            "curves_against": [_curve(item.directory) for item in quick],
        }

    def flex_exchange(self) -> dict[str, Any]:
        """A whole exchange of Flex over its timeout and one round trip."""
        run = self._train("flex", 0.0)
        lines = [line for line in timeline_lines(run.directory) if line["kind"] == "intervals"]
        ends: dict[int, float] = {}
        trips, lasts, rests, between = [], [], [], []
        for line in lines:
            waits = line["label_holder"].get("waiting", ())
            own = [(begin, end) for begin, end, *party in waits if party]
            # The wait until the timeout is for nobody.
            until = [(begin, end) for begin, end, *party in waits if not party]
            if own:
                trips.append(sum(end - begin for begin, end in own))
            if until:
                ends[line["exchange"]] = until[-1][1]
                rests.append(until[-1][1] - until[-1][0])
            if own and until:
                lasts.append(until[-1][1] - own[-1][1])
                if (before := ends.get(line["exchange"] - 1)) is not None:
                    between.append(own[0][0] - before)
        whole = [ends[number + 1] - ends[number] for number in ends if number + 1 in ends]
        took, trip = statistics.median(whole), statistics.median(trips)
        return {
            "case": "flex-exchange",
            "ratio": took / (_TIMEOUT / 1000 + trip),
            "unit": f"time of an exchange with timeout {_TIMEOUT} ms / timeout + a round trip",
            "against": "its own median wait for uploads",
            "runs": len(whole),
            "seconds": took,
            "seconds_round_trip": trip,
            # Where the rest goes, by medians: from the last upload to the end of the timeout, of
            # that doing nothing, and from there to the next wait for an upload.
            "seconds_local_steps": statistics.median(lasts),
            "seconds_idle": statistics.median(rests),
            "seconds_between": statistics.median(between),
        }

    def simulated(self, name: str) -> dict[str, Any]:
        """Predicted wall time over real: the profile of each run predicts another one.

        One more or fewer correct answers among the validation samples moves the time to the target
        by ten exchanges, so there are as many predictions as runs.
        """
        real = [self._train(name, _COMPARED) for _ in range(max(2, self._runs))]
        predicted = [
            self._federation.simulate(self._settings(name), measured_profile(item.directory))
            for item in real
        ]
        others = [*real[1:], real[0]]
        ratios = [a.seconds / b.seconds for a, b in zip(predicted, others, strict=True)]
        return {
            "case": f"simulated-{name}",
            "ratio": statistics.median(ratios),
            "unit": f"predicted / real wall time to accuracy {self._target:g}, one party behind "
            "40 ms",
            "against": "the same run over real processes; the profile is of another one",
            "runs": len(real),
            "ratios": ratios,
            "seconds": _median(predicted),
            "seconds_against": _median(real),
            "exchanges": [item.exchanges for item in predicted],
            "exchanges_against": [item.exchanges for item in real],
        }

    def taking_turns(self, name: str) -> dict[str, Any]:
        """The thesis's round-robin delay, on the simulated clock over real processes."""
        rounds = _ROUNDS if name == "async" else _ROUNDS // 5
        exchanges = rounds * (len(PARTIES) if name == "async" else 1)
        settings = self._settings(name) | {"stop": {"exchanges": exchanges}}
        profile = measured_profile(self._federation.train(settings).directory)
        with self._federation.round_robin(_TURN):
            real = self._federation.train(settings)
        ticks = round(_TURN * 1_000_000)
        for turn, party in enumerate(PARTIES):
            profile["party"][party]["sleep"] = {
                "kind": "round_robin",
                "turn": turn,
                "of": len(PARTIES),
                "ticks": ticks,
            }
        predicted = self._federation.simulate(settings, profile)
        return {
            "case": f"round-robin-{name}",
            "ratio": predicted.seconds / real.seconds,
            "unit": f"predicted / real wall time of {exchanges} exchanges while one of three "
            f"parties stands still at a time, {_TURN:g} s each",
            "against": "real processes, stopped and continued in turn",
            "runs": 1,
            "seconds": predicted.seconds,
            "seconds_against": real.seconds,
            "exchanges": exchanges,
        }

    def _train(self, name: str, delay: float) -> Reached:
        return self._federation.train(self._settings(name), delay=delay)


def _median(runs: list[Reached]) -> float:
    return statistics.median(item.seconds for item in runs)


def _attendance(run: Reached, what: str) -> float:
    """A figure of the slow party."""
    return float(read_json(run.directory / "summary.json")["attendance"][what][SLOW])


def _curve(directory: Path) -> list[list[float]]:
    """Wall seconds and accuracy of every evaluation."""
    return [
        [line["elapsed"], line["metrics"]["accuracy"]]
        for line in recorded_lines(directory)
        if line["kind"] == "evaluation"
    ]
