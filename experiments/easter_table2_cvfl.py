"""EASTER, Table 2, the rows of C_VFL: SplitVFL with compressed embeddings and local steps."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from colonnade.reproduce import Experiment

sys.path.append(str(Path(__file__).parent))
from _easter import FMNIST, MNIST, SMALL
from _easter_table2 import jobs

STEPS = 2
METHOD = {"name": "cvfl", "local_steps": STEPS, "compression": "quantize", "bits": 4}
# As many steps as the others take, in half as many exchanges.
SETTINGS = {
    "MNIST": replace(MNIST, epochs=MNIST.epochs // STEPS),
    "FMNIST": replace(FMNIST, epochs=FMNIST.epochs // STEPS),
}
PAPER = {
    ("MNIST", "C_VFL"): (89.71, 94.72, 95.33),
    ("FMNIST", "C_VFL"): (83.92, 84.32, 84.53),
}


def experiment() -> Experiment:
    return Experiment(
        name="easter-table2-cvfl",
        title="Compressed SplitVFL, one network for all",
        metric="accuracy",
        better="higher",
        note=(
            f"As SplitVFL in easter-table2, with embeddings of 4 bits a value and {STEPS} local "
            "steps per exchange; half as many epochs, so that it takes as many steps as the others."
        ),
        jobs=jobs(SETTINGS, SMALL, PAPER, {"C_VFL": METHOD}),
        seeds=3,
    )
