"""Flex-VFL, Figure 4: learning rates that follow the pace, against fixed ones, on CPU traces."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.data.datasets import load_cpu_trace
from colonnade.reproduce import Experiment, Job

sys.path.append(str(Path(__file__).parent))
from _common import run
from _flex import TASKS, UNIT, method_settings, run_settings

ROUND_TRIP = 1
MOST = 200
# η_k at the largest τ, which is what a fixed rate has to be small enough for; A_k = η_k τ_max.
RATES = (0.03, 0.1)


def busy(parties: int, timeout: int, seed: int) -> tuple[list[dict[str, Any]], float]:
    """A step's duration for every party and the label holder: machines drawn from the trace."""
    shares = load_cpu_trace("google")
    machines = np.random.default_rng(seed).choice(len(shares), parties + 1, replace=False)
    # One value of the trace for every exchange.
    period = (ROUND_TRIP + timeout) * UNIT
    durations = [
        {
            "kind": "utilization",
            "values": [float(share) for share in shares[machine]],
            "unit": UNIT,
            "period": period,
        }
        for machine in machines
    ]
    return durations, float(shares[machines].mean())


def measure(
    parties: int, method: str, rate: float, seed: int, fast: bool
) -> dict[str, float | None]:
    task = TASKS[parties]
    durations, mean_use = busy(parties, task.timeout, seed)
    # SGD has weights of 1, and with an idle machine as many steps fit as the timeout has units.
    bound = rate * task.timeout
    optimizer = {"name": "sgd", "lr": bound if method == "Adaptive" else rate}
    settings = run_settings(
        task,
        method_settings(method, task.timeout),
        seed=seed,
        round_trip=ROUND_TRIP,
        steps=durations[:-1],
        fuse=durations[-1],
        stop={"exchanges": 3 if fast else MOST, "target": task.target, "evaluate_every": 1},
        optimizers=[optimizer] * (parties + 1),
    )
    ended = run(settings, task.sources)
    return {
        "time units": None if ended.exchanges is None else ended.ticks / UNIT,
        "exchanges": ended.exchanges,
        "mean CPU use": mean_use,
        "local steps": float(sum(ended.summary["local_steps"].values())),
        "test accuracy": ended.summary["quality"]["test"]["accuracy"],
    }


def experiment() -> Experiment:
    return Experiment(
        name="flex-adaptive",
        title="Adaptive Flex-VFL against fixed rates, speeds from CPU traces",
        metric="time units",
        better="lower",
        note=(
            "Time units to the targets of flex-table3 on mfeat (3 parties, timeout 20) and hapt "
            "(4 parties, timeout 10), round trip 1. Every party and the label holder has the CPU "
            "use c of a machine drawn at random from the Google cluster trace, a new value every "
            "exchange, and takes 1 / (1 - c) units per step. SGD; `rate` is the fixed learning "
            "rate of Flex; Adaptive has A = rate times the steps of an idle machine, so that both "
            "keep the same bound and differ in whether they use what room a busy machine leaves. "
            "The paper's Figure 4 has no numbers to put here; its text says 70 to 130 time units "
            "sooner, and up to 30 %."
        ),
        jobs=[
            Job(
                coordinates={
                    "data set": TASKS[parties].dataset,
                    "rate": rate,
                    "method": method,
                },
                measure=lambda seed, fast, k=parties, r=rate, m=method: measure(
                    k, m, r, seed, fast
                ),
            )
            for parties in (3, 4)
            for rate in RATES
            for method in ("Flex", "Adaptive")
        ],
        seeds=3,
    )
