"""EASTER, Table 2: heterogeneous EASTER against homogeneous baselines, small networks."""

from __future__ import annotations

import sys
from pathlib import Path

from colonnade.reproduce import Experiment, Job

sys.path.append(str(Path(__file__).parent))
from _easter import FMNIST, MNIST, SMALL, Setting
from _easter_table2 import NOTE, jobs

PAPER = {
    ("MNIST", "Local"): (23.47, 35.57, 31.89),
    ("MNIST", "SplitVFL"): (92.68, 94.18, 91.77),
    ("MNIST", "AggVFL"): (91.72, 86.03, 95.71),
    ("MNIST", "EASTER"): (97.58, 97.87, 97.73),
    ("FMNIST", "Local"): (65.55, 76.24, 70.40),
    ("FMNIST", "SplitVFL"): (72.62, 76.34, 73.86),
    ("FMNIST", "AggVFL"): (84.37, 84.68, 84.37),
    ("FMNIST", "EASTER"): (87.78, 88.33, 88.08),
}
SETTINGS: dict[str, Setting] = {"MNIST": MNIST, "FMNIST": FMNIST}


def experiment() -> Experiment:
    made: list[Job] = jobs(SETTINGS, SMALL, PAPER)
    return Experiment(
        name="easter-table2",
        title="EASTER with different networks, baselines with one network for all",
        metric="accuracy",
        better="higher",
        note=f"All 60,000 training pictures, {MNIST.epochs} epochs of MNIST and {FMNIST.epochs} of "
        f"Fashion-MNIST. {NOTE}",
        jobs=made,
        seeds=3,
    )
