"""Flex-VFL in bursts: machines that wake up and fall asleep, where the last exchange misleads."""

from __future__ import annotations

import sys
from pathlib import Path

from colonnade.reproduce import Experiment

sys.path.append(str(Path(__file__).parent))
from flex_adaptive import BURST_TIMEOUT, SPELL, TASKS, jobs_of

# Chosen on seeds that are not reported: with 0.1 hardly any run arrives.
RATES = (0.01, 0.03)


def experiment() -> Experiment:
    task = TASKS[4]
    return Experiment(
        name="flex-bursts",
        title="Adaptive Flex-VFL with machines that are idle or 95 % busy",
        metric="exchanges",
        better="lower",
        note=(
            f"Exchanges to {task.target:.0%} on the validation part of {task.dataset} (4 parties, "
            f"timeout {BURST_TIMEOUT}, round trip 1). Every party and the label holder is either "
            f"idle or 95 % busy, in spells of {SPELL} exchanges on average, so 20 local steps or "
            "one fit into an exchange. SGD; rows as in `flex-adaptive`. Algorithm 2 "
            "divides by the steps of the last exchange, so a machine that wakes up takes 20 steps "
            "with the rate for one. Seeds are paired. A row with a run that misses the target has "
            "the median of all runs, and no mean."
        ),
        jobs=jobs_of("bursts", RATES),
        seeds=10,
    )
