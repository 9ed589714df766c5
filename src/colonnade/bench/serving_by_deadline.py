"""A served federation of four parties under load: with all there, one frozen, one killed."""

from __future__ import annotations

import signal
import statistics
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.bench.bare_round_trip import bare_parties
from colonnade.bench.callers import Calls, call_at_rate, call_in_turn, call_together
from colonnade.bench.minimal_service import minimal_service
from colonnade.bench.quiet import Quiet
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
_LATE_SECONDS, _LATEST_SECONDS = 0.025, 0.1
_MIDDLE = ("p50", "p50-bare")
_BESIDE = ("beside-p99", "beside-p99-bare", "beside-training", "beside-training-bare")
_FROZEN = ("frozen", "frozen-bare", "frozen-slowest", "frozen-wrong")
_KILLED = ("killed", "killed-bare", "killed-slowest", "killed-wrong")
# Requests of a turn.
_PER_TURN = 200
# Of an embedding, by default.
_WIDTH = 32


def deadline_rows(fast: bool, wants: Callable[..., bool]) -> list[dict[str, Any]]:
    """Rows of one served federation, from ``p50`` to ``killed``; those that are wanted."""
    if not wants(*_MIDDLE, "tail", *_BESIDE, *_FROZEN, *_KILLED):
        return []
    rows = []
    with ExitStack() as around:
        place = around.enter_context(tempfile.TemporaryDirectory())
        served = around.enter_context(ServedFederation(Path(place)).running())
        call_together(served.port, num_callers=8, seconds=1.0, content=_request)
        if wants(*_MIDDLE):
            rows += _middle(served, 5 if fast else 25)
        if wants("tail"):
            rows.append(_tail(served, 500 if fast else 3000))
        if wants(*_BESIDE):
            rows += beside_rows(served, fast, _WIDTH)
        if wants(*_FROZEN, *_KILLED):
            calls = call_together(served.port, num_callers=16, seconds=3.0, content=_request)
            _, echo = serving_process(around, "colonnade.bench.bare_echo")
            load = _Load(
                service=served.port,
                echo=echo,
                rate=min(1000.0, len(calls.seconds) / 3.0 / 2),
                num_requests=500 if fast else 10_000,
            )
            if wants(*_FROZEN):
                rows += _frozen(served, load)
            if wants(*_KILLED):
                rows += _killed(served, load)
    return rows


def _request(number: int) -> dict[str, Any]:
    return {"ids": [FIRST_ID + number % NUM_ROWS], "deadline_ms": _DEADLINE_MS}


def _middle(served: ServedFederation, num_turns: int) -> list[dict[str, Any]]:
    """One caller, one request after the other; the four take turns.

    Each turn waits for a quiet machine. What disturbs it lasts for seconds, longer than a turn: so
    each has ratios of its own, and the middle one of them counts.
    """
    quiet = Quiet()
    # By turn, the median seconds of ours, an echo, a round trip, and the minimal service.
    turns: list[tuple[float, float, float, float]] = []
    with ExitStack() as around:
        _, echo = serving_process(around, "colonnade.bench.bare_echo")
        bare = around.enter_context(bare_parties(len(PARTIES), _WIDTH))
        minimal = around.enter_context(minimal_service(len(PARTIES), _WIDTH))
        # Whoever is asked for the first time costs more: not what is measured here.
        for port in (served.port, minimal, echo):
            _in_turn(port, range(NUM_ROWS))
        for turn in range(num_turns):
            asked = range(turn * _PER_TURN, (turn + 1) * _PER_TURN)
            quiet.wait()
            turns.append(
                (
                    _in_turn(served.port, asked),
                    _in_turn(echo, asked),
                    statistics.median(bare.times(_PER_TURN)),
                    _in_turn(minimal, asked),
                )
            )
    mine, one, two, least = (statistics.median(times) for times in zip(*turns, strict=True))
    ours = [turn[0] / (turn[1] + turn[2]) for turn in turns]
    bounds = [turn[3] / (turn[1] + turn[2]) for turn in turns]
    row = {
        "against": "FastAPI and uvicorn, then gRPC with mutual TLS, the same bytes, concurrently",
        "runs": num_turns * _PER_TURN,
        "milliseconds_echo": one * 1e3,
        "milliseconds_round_trip": two * 1e3,
        **quiet.told(),
    }
    return [
        {
            **row,
            "case": "p50",
            "ratio": statistics.median(ours),
            "unit": "median time of a served prediction / of an echo and a round trip to 4 parties",
            "milliseconds": mine * 1e3,
            "ratios_by_turn": ours,
        },
        {
            **row,
            "case": "p50-bare",
            "ratio": statistics.median(bounds),
            "unit": "the same of a minimal service of the same libraries: the bound",
            "milliseconds": least * 1e3,
            "ratios_by_turn": bounds,
        },
    ]


def _in_turn(port: int, asked: range) -> float:
    """The median seconds of requests, one after the other."""
    calls = call_in_turn(
        port, num_requests=len(asked), content=lambda number: _request(asked[number])
    )
    if calls.num_failed:
        raise RunError(f"requests failed, so there is nothing to compare: {calls.told_statuses()}")
    return statistics.median(calls.seconds)


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


def _frozen(served: ServedFederation, load: _Load) -> list[dict[str, Any]]:
    process = served.agents[PARTIES[0]]
    process.send_signal(signal.SIGSTOP)
    try:
        return load.rows("frozen", "one party stopped (SIGSTOP)")
    finally:
        process.send_signal(signal.SIGCONT)


def _killed(served: ServedFederation, load: _Load) -> list[dict[str, Any]]:
    name = PARTIES[1]

    def kill_and_start() -> None:
        served.agents[name].kill()
        served.agents[name].wait()
        served.start(name)

    return load.rows("killed", "one party killed and started again", kill_and_start)


@dataclass(frozen=True, kw_only=True)
class _Load:
    """Requests at a rate: to the service, then to a bare echo on the same machine.

    The echo waits for nobody. It is late by what the machine and the callers are late by, and no
    service can do better.
    """

    service: int
    echo: int
    rate: float
    num_requests: int

    def rows(
        self, case: str, what: str, in_between: Callable[[], None] = lambda: None
    ) -> list[dict[str, Any]]:
        """What came of the requests; something happens after a third of the time."""
        ours, bare = (self._calls(port, in_between) for port in (self.service, self.echo))
        about = (
            f"{self.num_requests} requests at {self.rate:.0f} a second, half of capacity; {what}"
        )
        row = {"against": about, "runs": self.num_requests}
        deadline = _DEADLINE_MS / 1000
        return [
            {
                **row,
                "case": case,
                "ratio": _share_by(ours, deadline + _LATE_SECONDS),
                "unit": "requests answered by deadline + 25 ms / all",
                "statuses": ours.told_statuses(),
                "milliseconds_callers_late": max(ours.late) * 1e3,
            },
            {
                **row,
                "case": f"{case}-bare",
                "ratio": _share_by(bare, _LATE_SECONDS),
                "unit": "requests to a bare echo answered within 25 ms / all: the bound",
                "milliseconds_callers_late": max(bare.late) * 1e3,
            },
            {
                **row,
                "case": f"{case}-slowest",
                "ratio": max(ours.seconds) / (deadline + _LATEST_SECONDS),
                "unit": "slowest request / deadline + 100 ms",
                "milliseconds_slowest": max(ours.seconds) * 1e3,
                "milliseconds_slowest_bare": max(bare.seconds) * 1e3,
            },
            {
                **row,
                "case": f"{case}-wrong",
                "ratio": float(ours.num_contradictions),
                "unit": "answers that differ from another one for the same id and blocks",
            },
        ]

    def _calls(self, port: int, in_between: Callable[[], None]) -> Calls:
        timer = threading.Timer(self.num_requests / self.rate / 3, in_between)
        timer.start()
        calls = call_at_rate(port, rate=self.rate, num_requests=self.num_requests, content=_request)
        timer.join()
        return calls


def _share_by(calls: Calls, seconds: float) -> float:
    """The share of requests that were answered well and within so many seconds."""
    both = zip(calls.seconds, calls.in_order, strict=True)
    return sum(taken <= seconds and status == 200 for taken, status in both) / len(calls.seconds)
