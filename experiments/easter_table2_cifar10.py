"""EASTER, Table 2, CIFAR-10: as far as the pictures here go."""

from __future__ import annotations

import sys
from pathlib import Path

from colonnade.reproduce import Experiment

sys.path.append(str(Path(__file__).parent))
from _easter import SMALL, Setting
from _easter_table2 import NOTE, jobs

CIFAR10 = Setting(dataset="cifar10", epochs=8)
PAPER = {
    ("CIFAR10", "Local"): (37.35, 53.04, 32.33),
    ("CIFAR10", "SplitVFL"): (37.95, 53.71, 33.85),
    ("CIFAR10", "AggVFL"): (55.04, 60.11, 42.67),
    ("CIFAR10", "EASTER"): (62.38, 64.72, 64.64),
}


def experiment() -> Experiment:
    return Experiment(
        name="easter-table2-cifar10",
        title="The same on CIFAR-10, 20,000 of its 50,000 training pictures",
        metric="accuracy",
        better="higher",
        note=f"20,000 training and 5,000 test pictures (a part of the paper's), {CIFAR10.epochs} "
        f"epochs. {NOTE}",
        jobs=jobs({"CIFAR10": CIFAR10}, SMALL, PAPER),
        seeds=3,
    )
