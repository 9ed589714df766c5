"""Serving and training at once, by the same agents: what each costs the other."""

from __future__ import annotations

import json
import statistics
import time
from contextlib import ExitStack
from typing import Any

from colonnade.bench.callers import Calls, call_at_rate
from colonnade.bench.quiet import Quiet
from colonnade.bench.served_federation import FIRST_ID, NUM_ROWS, ServedFederation
from colonnade.core.errors import RunError

__all__ = ["beside_rows"]

_RATE = 50.0
_START_SECONDS = 120.0


def beside_rows(served: ServedFederation, fast: bool) -> list[dict[str, Any]]:
    """Rows ``beside-p99`` and ``beside-training``: in turns with and without the other.

    Turns are short and many, since what disturbs the machine lasts for longer: the middle one of
    the turns' own ratios counts. Whether it is quiet can't be looked at while parties train.
    """
    seconds = 5.0 if fast else 15.0
    num_turns = 1 if fast else 6
    num_requests = int(_RATE * seconds)
    quiet = Quiet()
    calm: list[float] = []
    for _ in range(num_turns):
        quiet.wait()
        calm.append(_late(_calls(served, num_requests)))
    with ExitStack() as around:
        served.train_beside(around)
        _wait_for_training(served)
        alone: list[float] = []
        busy: list[float] = []
        together: list[float] = []
        for _ in range(num_turns):
            alone.append(_speed(served, lambda: time.sleep(seconds)))
            together.append(
                _speed(served, lambda: busy.append(_late(_calls(served, num_requests))))
            )
    ratios = [both / one for both, one in zip(together, alone, strict=True)]
    late, idle, slow, fast_rate = map(statistics.median, (busy, calm, together, alone))
    return [
        {
            "case": "beside-p99",
            "ratio": late / idle,
            "unit": f"p99 of predictions while the parties train / idle, {_RATE:.0f} a second",
            "against": "the same service without a training",
            "runs": len(busy),
            "milliseconds_p99": late * 1e3,
            "milliseconds_p99_against": idle * 1e3,
            **quiet.told(),
        },
        {
            "case": "beside-training",
            "ratio": statistics.median(ratios),
            "unit": f"exchanges a second of training beside {_RATE:.0f} requests a second / alone",
            "against": "the same training without requests",
            "runs": len(together),
            "exchanges_a_second": slow,
            "exchanges_a_second_against": fast_rate,
            "ratios_by_turn": ratios,
        },
    ]


def _calls(served: ServedFederation, num_requests: int) -> Calls:
    def request(number: int) -> dict[str, Any]:
        return {"ids": [FIRST_ID + number % NUM_ROWS], "deadline_ms": 2000}

    calls = call_at_rate(served.port, rate=_RATE, num_requests=num_requests, content=request)
    if calls.num_failed:
        raise RunError(f"requests failed, so there is nothing to compare: {calls.told_statuses()}")
    return calls


def _late(calls: Calls) -> float:
    return statistics.quantiles(calls.seconds, n=100)[98]


def _num_exchanges(served: ServedFederation) -> int:
    path = served.place / "beside" / "metrics.jsonl"
    if not path.exists():
        return 0
    lines = path.read_text().splitlines()
    for line in reversed(lines):
        if line.endswith("}") and '"exchange"' in line:
            return int(json.loads(line)["exchange"])
    return 0


def _speed(served: ServedFederation, during: Any) -> float:
    began, before = time.monotonic(), _num_exchanges(served)
    during()
    done = _num_exchanges(served) - before
    if not done:
        raise RunError("the training beside the service stands still")
    return done / (time.monotonic() - began)


def _wait_for_training(served: ServedFederation) -> None:
    end = time.monotonic() + _START_SECONDS
    while _num_exchanges(served) < 3:
        if time.monotonic() > end:
            raise RunError("the training beside the service did not begin")
        time.sleep(0.1)
