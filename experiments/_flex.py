"""What the experiments of Flex-VFL share: tasks, speeds, the clock, and the choice of rates."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from colonnade.run.sources import Sources

sys.path.append(str(Path(__file__).parent))
from _common import LABEL_HOLDER, TUNING_SEED, Ended, best_rates, run, sources_of

# Ticks per time unit; every cost is then a whole number.
UNIT = 60
# Tried first, most likely first: a run stops where it can't be the best any more.
GRID = (0.1, 0.3, 0.03)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data in blocks, a target on the validation part, and the paper's speeds."""

    dataset: str
    target: float
    # Time units.
    timeout: int
    # Of each party, within the timeout.
    local_steps: tuple[int, ...]
    num_parties: int | None = None
    num_samples: int | None = None

    @property
    def sources(self) -> Sources:
        return sources_of(self.dataset, self.num_parties, self.num_samples)

    @property
    def ticks_per_step(self) -> list[int]:
        return [self.timeout * UNIT // steps for steps in self.local_steps]


# By number of parties; speeds of MOSEI, ImageNet100 and ModelNet40.
TASKS = {
    3: Task(dataset="mfeat", num_parties=3, target=0.95, timeout=20, local_steps=(5, 10, 15)),
    4: Task(dataset="hapt", target=0.90, timeout=10, local_steps=(2, 4, 6, 8)),
    12: Task(
        dataset="fashion_mnist",
        num_parties=12,
        num_samples=6000,
        target=0.75,
        timeout=20,
        local_steps=(5, 5, 5, 10, 10, 10, 15, 15, 15, 20, 20, 20),
    ),
}

# Exchanges at most, and between two evaluations.
LENGTHS = {
    "P-BCD": (600, 5),
    "VAFL": (400, 1),  # times the number of parties: an exchange is one upload
    "Sync-Min": (200, 1),
    "Sync-Max": (100, 1),
    "Flex": (600, 1),
}
METHODS = tuple(LENGTHS)


def method_settings(method: str, timeout: int) -> dict[str, Any]:
    """Of the paper's names; ``timeout`` in time units."""
    ticks = timeout * UNIT
    return {
        "P-BCD": {"name": "pbcd", "labels": "shared"},
        "VAFL": {"name": "vafl"},
        "Sync-Min": {"name": "sync_vfl", "labels": "shared", "steps": "min", "timeout": ticks},
        "Sync-Max": {"name": "sync_vfl", "labels": "shared", "steps": "max", "timeout": ticks},
        "Flex": {"name": "flex", "labels": "shared", "timeout": ticks},
        "Adaptive": {"name": "adaptive_flex", "labels": "shared", "timeout": ticks},
        "Adaptive, now": {
            "name": "adaptive_flex",
            "labels": "shared",
            "timeout": ticks,
            "pace": "now",
        },
    }[method]


def run_settings(
    task: Task,
    method: Mapping[str, Any],
    *,
    seed: int,
    round_trip: int,
    steps: Sequence[Any],
    stop: Mapping[str, Any],
    optimizers: Sequence[Mapping[str, Any]],
    fuse: Any = UNIT,
) -> dict[str, Any]:
    """A run; ``steps`` and ``optimizers`` by party, the label holder's optimizer last."""
    # VAFL encodes anew for every upload, the initial ones too; elsewhere a local step is all.
    kind = "encode" if method["name"] == "vafl" else "step"
    other = "step" if kind == "encode" else "encode"
    *of_parties, of_label_holder = optimizers
    names = list(task.sources.blocks)
    return {
        "seed": seed,
        "method": dict(method),
        "data": {"batch_size": 64},
        "defaults": {"encoder": {"kind": "mlp", "hidden": [32], "embedding": 16}},
        "party": {
            name: {"optimizer": dict(item)} for name, item in zip(names, of_parties, strict=True)
        },
        "label_holder": {
            "name": LABEL_HOLDER,
            "fusion": {"kind": "linear"},
            "optimizer": dict(of_label_holder),
        },
        "fabric": {
            "name": "simulated",
            "fuse": fuse,
            "party": {
                name: {kind: ticks, other: 0, "latency": round_trip * UNIT // 2}
                for name, ticks in zip(names, steps, strict=True)
            },
        },
        "stop": dict(stop),
    }


@cache
def trained(
    parties: int, method: str, rate: float, seed: int, round_trip: int, timeout: int, most: int
) -> Ended:
    """A run of one of the methods up to the target, with plain SGD."""
    task = TASKS[parties]
    factor = parties if method == "VAFL" else 1
    stop = {
        "exchanges": most * factor,
        "target": task.target,
        "evaluate_every": LENGTHS[method][1] * factor,
    }
    settings = run_settings(
        task,
        method_settings(method, timeout),
        seed=seed,
        round_trip=round_trip,
        steps=task.ticks_per_step,
        stop=stop,
        optimizers=[{"name": "sgd", "lr": rate}] * (parties + 1),
    )
    return run(settings, task.sources)


@cache
def units_per_exchange(parties: int, method: str, round_trip: int, timeout: int) -> float:
    """How long a synchronous exchange takes, by the clock: it is the same for each."""
    second, third = (
        trained(parties, method, GRID[0], TUNING_SEED, round_trip, timeout, exchange).ticks
        for exchange in (2, 3)
    )
    return (third - second) / UNIT


@cache
def tuned_rate(parties: int, method: str, timeout: int) -> float:
    """The rate with the fewest exchanges to the target on the tuning seed."""
    most = LENGTHS[method][0]

    def exchanges_at(rates: tuple[float, ...]) -> int | None:
        nonlocal most
        found = trained(parties, method, rates[0], TUNING_SEED, 10, timeout, most).exchanges
        if found is not None:
            most = min(most, -(-found // (parties if method == "VAFL" else 1)))
        return found

    return best_rates([GRID], exchanges_at)[0]


def measure(
    parties: int,
    method: str,
    round_trip: int,
    seed: int,
    fast: bool,
    *,
    timeout: int | None = None,
    rate: float | None = None,
) -> dict[str, float | None]:
    """Time units to the target; the task's own timeout and a tuned rate unless given."""
    timeout = timeout or TASKS[parties].timeout
    if rate is None:
        rate = GRID[0] if fast else tuned_rate(parties, method, timeout)
    most = 2 if fast else LENGTHS[method][0]
    # Training depends on the round trip in VAFL only.
    at = round_trip if method == "VAFL" else 10
    ended = trained(parties, method, rate, seed, at, timeout, most)
    units: float | None = None
    if ended.exchanges is not None:
        if method == "VAFL":
            units = ended.ticks / UNIT
        else:
            units = ended.exchanges * units_per_exchange(parties, method, round_trip, timeout)
    return {
        "time units": units,
        "exchanges": ended.exchanges,
        "learning rate": rate,
        "test accuracy": ended.summary["quality"]["test"]["accuracy"],
    }
