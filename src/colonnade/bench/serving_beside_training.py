"""Serving and training at once, by the same agents: what each costs the other."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from colonnade.bench.callers import call_at_rate
from colonnade.bench.minimal_service import minimal_service
from colonnade.bench.quiet import Quiet
from colonnade.bench.served_federation import FIRST_ID, NUM_ROWS, PARTIES, ServedFederation
from colonnade.core.errors import RunError

__all__ = ["beside_rows"]

T = TypeVar("T")

_RATE = 50.0
_START_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """Seconds of the slowest predictions, and exchanges a second, without the other and with it.

    Of our service, and of the minimal one of ``p50-bare`` beside the same training.
    """

    idle: float
    minimal_idle: float
    alone: float
    together: float
    busy: float
    minimal_together: float
    minimal_busy: float


def beside_rows(served: ServedFederation, fast: bool, width: int) -> list[dict[str, Any]]:
    """Rows ``beside-p99`` and ``beside-training``, each with that of the minimal service.

    Each turn has a training of its own, so that both sides of a ratio meet the same machine. What
    disturbs it lasts for longer than a turn: the middle one of the turns' own ratios counts.
    Whether it is quiet can't be looked at while parties train.
    """
    seconds = 5.0 if fast else 15.0
    quiet = Quiet()
    with minimal_service(len(PARTIES), width) as minimal:
        # Whoever is asked for the first time costs more: not what is measured here.
        _late(minimal, NUM_ROWS / _RATE)
        turns = [
            _turn(served, minimal, seconds, quiet, f"beside-{number}")
            for number in range(1 if fast else 8)
        ]
    minimal_one = {"unit": "the same with a minimal service of the same libraries"}
    return [
        _slowest("beside-p99", [(turn.busy, turn.idle) for turn in turns], quiet),
        _slowest(
            "beside-p99-bare", [(turn.minimal_busy, turn.minimal_idle) for turn in turns], quiet
        )
        | minimal_one,
        _speeds("beside-training", [(turn.together, turn.alone) for turn in turns]),
        _speeds("beside-training-bare", [(turn.minimal_together, turn.alone) for turn in turns])
        | minimal_one,
    ]


def _turn(served: ServedFederation, minimal: int, seconds: float, quiet: Quiet, run: str) -> _Turn:
    quiet.wait()
    idle = _late(served.port, seconds)
    minimal_idle = _late(minimal, seconds)
    with ExitStack() as around:
        training = served.train_beside(around, run)
        _wait_for_training(training)
        alone, _ = _speed(training, lambda: time.sleep(seconds))
        together, busy = _speed(training, lambda: _late(served.port, seconds))
        minimal_together, minimal_busy = _speed(training, lambda: _late(minimal, seconds))
        return _Turn(
            idle=idle,
            minimal_idle=minimal_idle,
            alone=alone,
            together=together,
            busy=busy,
            minimal_together=minimal_together,
            minimal_busy=minimal_busy,
        )


def _slowest(case: str, turns: list[tuple[float, float]], quiet: Quiet) -> dict[str, Any]:
    beside, idle = map(statistics.median, zip(*turns, strict=True))
    return {
        "case": case,
        **_ratios(turns),
        "unit": f"p99 of predictions while the parties train / idle, {_RATE:.0f} a second",
        "against": "the same service without a training",
        "milliseconds_p99": beside * 1e3,
        "milliseconds_p99_against": idle * 1e3,
        **quiet.told(),
    }


def _speeds(case: str, turns: list[tuple[float, float]]) -> dict[str, Any]:
    beside, alone = map(statistics.median, zip(*turns, strict=True))
    return {
        "case": case,
        **_ratios(turns),
        "unit": f"exchanges a second of training beside {_RATE:.0f} requests a second / alone",
        "against": "the same training without requests",
        "exchanges_a_second": beside,
        "exchanges_a_second_against": alone,
    }


def _ratios(turns: list[tuple[float, float]]) -> dict[str, Any]:
    ratios = [beside / without for beside, without in turns]
    return {"ratio": statistics.median(ratios), "runs": len(turns), "ratios_by_turn": ratios}


def _late(port: int, seconds: float) -> float:
    """The seconds that one request of a hundred takes longer than."""

    def request(number: int) -> dict[str, Any]:
        return {"ids": [FIRST_ID + number % NUM_ROWS], "deadline_ms": 2000}

    calls = call_at_rate(port, rate=_RATE, num_requests=int(_RATE * seconds), content=request)
    if calls.num_failed:
        raise RunError(f"requests failed, so there is nothing to compare: {calls.told_statuses()}")
    return statistics.quantiles(calls.seconds, n=100)[98]


def _num_exchanges(training: Path) -> int:
    path = training / "metrics.jsonl"
    if not path.exists():
        return 0
    lines = path.read_text().splitlines()
    for line in reversed(lines):
        if line.endswith("}") and '"exchange"' in line:
            return int(json.loads(line)["exchange"])
    return 0


def _speed(training: Path, during: Callable[[], T]) -> tuple[float, T]:
    """Exchanges a second meanwhile, and what was found."""
    began, before = time.monotonic(), _num_exchanges(training)
    found = during()
    done = _num_exchanges(training) - before
    if not done:
        raise RunError("the training beside the service stands still")
    return done / (time.monotonic() - began), found


def _wait_for_training(training: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while _num_exchanges(training) < 3:
        if time.monotonic() > end:
            raise RunError("the training beside the service did not begin")
        time.sleep(0.1)
