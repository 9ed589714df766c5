"""LASER-VFL, Table 3: blocks that go missing unevenly, on HAPT in four blocks.

Each block's probability of being missing is drawn from Beta(2, 2), for training and for inference
by itself, against one probability of 0.5 for all.
"""

from __future__ import annotations

import sys
from pathlib import Path

from colonnade.reproduce import Experiment, Job

sys.path.append(str(Path(__file__).parent))
from _laser import BETA, METHODS, TABLES, measure
from laser_table1 import settings_of

NAMES = ("Local", "Standard VFL", "Ensemble", "PlugVFL", "LASER-VFL")
INFERENCE = {BETA: (0.0, 0.1, 0.5, BETA), 0.5: (0.0, 0.1, 0.5)}


def job(name: str, train: float | str, inference: float | str) -> Job:
    method = METHODS[name]
    return Job(
        coordinates={"method": name, "train p": train, "inference p": inference},
        measure=lambda seed, fast: measure(
            TABLES["HAPT"],
            method,
            train,
            inference,
            INFERENCE[train],
            settings_of("HAPT", method, train, fast),
            seed,
        ),
    )


def experiment() -> Experiment:
    return Experiment(
        name="laser-beta",
        title="Blocks that go missing unevenly (HAPT)",
        metric="quality",
        better="higher",
        along="inference p",
        note=(
            "Accuracy in %, averaged over the parties that have the sample. Data, networks and "
            "settings of laser-table1. The paper has CIFAR-10 (88.8, 88.2, 81.1, 81.7 for "
            "LASER-VFL trained at Beta(2, 2), 87.4, 86.4, 79.4 trained at 0.5), so there is no "
            "column of it. The slowest methods are left out."
        ),
        jobs=[
            job(name, train, inference)
            for name in NAMES
            for train, several in INFERENCE.items()
            for inference in several
        ],
        seeds=5,
    )
