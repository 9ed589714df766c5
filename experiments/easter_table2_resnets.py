"""EASTER, Table 2, the three ResNets: on a part of the pictures, for the time it takes."""

from __future__ import annotations

import sys
from pathlib import Path

from colonnade.reproduce import Experiment

sys.path.append(str(Path(__file__).parent))
from _easter import RESNETS, Setting
from _easter_table2 import NOTE, jobs

MNIST = Setting(dataset="mnist", epochs=6, num_train=10_000)
PAPER = {
    ("MNIST", "Local"): (95.06, 94.72, 93.24),
    ("MNIST", "SplitVFL"): (97.01, 94.82, 95.29),
    ("MNIST", "AggVFL"): (98.28, 97.81, 97.73),
    ("MNIST", "EASTER"): (98.54, 97.84, 97.89),
}


def experiment() -> Experiment:
    return Experiment(
        name="easter-table2-resnets",
        title="The same with ResNets, on 10,000 of MNIST's training pictures",
        metric="accuracy",
        better="higher",
        note=f"10,000 of 60,000 training pictures, {MNIST.epochs} epochs; ResNets an eighth as "
        f"wide, with the stem for large images, so that a run takes minutes on one core. {NOTE}",
        jobs=jobs({"MNIST": MNIST}, RESNETS, PAPER),
        seeds=3,
    )
