"""A served federation of four parties under load: with all there, one frozen, one killed."""

from __future__ import annotations

import signal
import statistics
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from colonnade.bench.bare_round_trip import bare_parties
from colonnade.bench.callers import Calls, call_at_rate, call_in_turn, call_together
from colonnade.bench.served_federation import (
    FIRST_ID,
    NUM_ROWS,
    PARTIES,
    ServedFederation,
    serving_process,
)
from colonnade.bench.serving_beside_training import beside_rows
from colonnade.core.errors import RunError

__all__ = ["deadline_rows"]

_DEADLINE_MS = 200
_LATE_SECONDS = 0.025
# Of an embedding, by default.
_WIDTH = 32


def deadline_rows(fast: bool) -> list[dict[str, Any]]:
    """Rows ``p50``, ``tail``, ``beside-p99``, ``beside-training``, ``frozen`` and ``killed``."""
    with tempfile.TemporaryDirectory() as place, ServedFederation(Path(place)).running() as served:
        call_together(served.port, num_callers=8, seconds=1.0, content=_request)
        rows = [_middle(served, 200 if fast else 1000), _tail(served, 500 if fast else 3000)]
        rows += beside_rows(served, fast)
        calls = call_together(served.port, num_callers=16, seconds=3.0, content=_request)
        rate = min(1000.0, len(calls.seconds) / 3.0 / 2)
        num_requests = 500 if fast else 10_000
        rows.append(_frozen(served, rate, num_requests))
        rows.append(_killed(served, rate, num_requests))
        return rows


def _request(number: int) -> dict[str, Any]:
    return {"ids": [FIRST_ID + number % NUM_ROWS], "deadline_ms": _DEADLINE_MS}


def _middle(served: ServedFederation, per_turn: int) -> dict[str, Any]:
    """One caller, one request after the other; the three take turns."""
    ours: list[float] = []
    echoes: list[float] = []
    trips: list[float] = []
    with ExitStack() as around:
        _, echo = serving_process(around, "colonnade.bench.bare_echo")
        bare = around.enter_context(bare_parties(len(PARTIES), _WIDTH))
        for turn in range(6):
            found = [
                _in_turn(served.port, per_turn),
                _in_turn(echo, per_turn),
                bare.times(per_turn),
            ]
            if turn:
                for times, more in zip((ours, echoes, trips), found, strict=True):
                    times += more
    mine, one, two = (statistics.median(times) for times in (ours, echoes, trips))
    return {
        "case": "p50",
        "ratio": mine / (one + two),
        "unit": "median time of a served prediction / of an echo and a round trip to 4 parties",
        "against": "FastAPI and uvicorn, then gRPC with mutual TLS, the same bytes, concurrently",
        "runs": len(ours),
        "milliseconds": mine * 1e3,
        "milliseconds_echo": one * 1e3,
        "milliseconds_round_trip": two * 1e3,
    }


def _in_turn(port: int, num_requests: int) -> list[float]:
    calls = call_in_turn(port, num_requests=num_requests, content=_request)
    if calls.num_failed:
        raise RunError(f"requests failed, so there is nothing to compare: {calls.told_statuses()}")
    return calls.seconds


def _tail(served: ServedFederation, num_requests: int) -> dict[str, Any]:
    calls = call_at_rate(served.port, rate=100.0, num_requests=num_requests, content=_request)
    middle = statistics.median(calls.seconds)
    late = statistics.quantiles(calls.seconds, n=100)[98]
    return {
        "case": "tail",
        "ratio": late / middle,
        "unit": "p99 / p50 of served predictions at 100 requests a second",
        "against": "itself",
        "runs": num_requests,
        "milliseconds_p50": middle * 1e3,
        "milliseconds_p99": late * 1e3,
        "statuses": calls.told_statuses(),
    }


def _frozen(served: ServedFederation, rate: float, num_requests: int) -> dict[str, Any]:
    process = served.agents[PARTIES[0]]
    process.send_signal(signal.SIGSTOP)
    try:
        calls = call_at_rate(served.port, rate=rate, num_requests=num_requests, content=_request)
    finally:
        process.send_signal(signal.SIGCONT)
    return _share("frozen", "one party stopped (SIGSTOP)", calls, rate)


def _killed(served: ServedFederation, rate: float, num_requests: int) -> dict[str, Any]:
    name = PARTIES[1]

    def kill_and_start() -> None:
        served.agents[name].kill()
        served.agents[name].wait()
        served.start(name)

    third = num_requests / rate / 3
    timer = threading.Timer(third, kill_and_start)
    timer.start()
    calls = call_at_rate(served.port, rate=rate, num_requests=num_requests, content=_request)
    timer.join()
    return _share("killed", "one party killed and started again", calls, rate)


def _share(case: str, what: str, calls: Calls, rate: float) -> dict[str, Any]:
    limit = _DEADLINE_MS / 1000 + _LATE_SECONDS
    in_time = sum(
        seconds <= limit and status == 200
        for seconds, status in zip(calls.seconds, calls.in_order, strict=True)
    )
    return {
        "case": case,
        "ratio": in_time / len(calls.seconds),
        "unit": f"requests answered by deadline + 25 ms with {what} / all, at half capacity",
        "against": f"{len(calls.seconds)} requests at {rate:.0f} a second",
        "runs": len(calls.seconds),
        "milliseconds_slowest": max(calls.seconds) * 1e3,
        "num_contradictions": calls.num_contradictions,
        "statuses": calls.told_statuses(),
    }
