"""Missing blocks on data that LASER-VFL's paper does not have: six natural views, and quadrants.

mfeat describes the same 2000 digits in six ways, a party for each; Fashion-MNIST is cut into four
quadrants, 12,000 pictures of it for training and the official test part.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.reproduce import Experiment, Job

sys.path.append(str(Path(__file__).parent))
from _laser import METHODS, Table, measure
from laser_table1 import adam

MISSING = (0.0, 0.5)
NAMES = ("Local", "Standard VFL", "Ensemble", "PlugVFL", "LASER-VFL")
TABLES = {
    "mfeat": Table(
        dataset="mfeat",
        metric="mean_accuracy",
        hidden=(64,),
        embedding=32,
        batch_size=64,
        num_parties=None,
    ),
    "Fashion-MNIST": Table(
        dataset="fashion_mnist",
        metric="mean_accuracy",
        hidden=(128,),
        embedding=64,
        batch_size=128,
        num_train=12000,
    ),
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "mfeat": {"optimizer": adam(1e-3), "epochs": 30},
    "Fashion-MNIST": {"optimizer": adam(1e-3), "epochs": 8},
}


def job(task: str, name: str, train: float, inference: float) -> Job:
    def measured(seed: int, fast: bool) -> dict[str, float | None]:
        settings = {**SETTINGS[task], **({"epochs": 1} if fast else {})}
        return measure(TABLES[task], METHODS[name], train, inference, MISSING, settings, seed)

    return Job(
        coordinates={"task": task, "method": name, "train p": train, "inference p": inference},
        measure=measured,
    )


def experiment() -> Experiment:
    return Experiment(
        name="laser-views",
        title="Missing blocks: six views of digits, quadrants of pictures",
        metric="quality",
        better="higher",
        along="inference p",
        note=(
            "Accuracy in %, averaged over the parties that have the sample. mfeat: six parties, a "
            "stratified fifth for the test. Fashion-MNIST: quadrants, 12,000 pictures drawn for "
            "training, official test part. MLP encoders, Adam at 0.001, batches of 64 and 128, 30 "
            "and 8 epochs, the same for every method and not tuned. The paper has neither."
        ),
        jobs=[
            job(task, name, train, inference)
            for task in TABLES
            for name in NAMES
            for train in MISSING
            for inference in MISSING
        ],
        seeds=5,
    )
