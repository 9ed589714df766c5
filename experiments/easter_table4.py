"""EASTER, Table 4: one network for all, and another optimizer for everybody."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.reproduce import Experiment, Job

sys.path.append(str(Path(__file__).parent))
from _easter import FMNIST, MNIST, MOMENTUM, PARTIES, RATE, SMALL, Setting, percent_of, run

OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "SGD": {"name": "sgd", "lr": RATE},
    "SGD_Momentum": MOMENTUM,
    "Adagrad": {"name": "adagrad", "lr": RATE},
    "Adam": {"name": "adam", "lr": RATE},
}
PAPER = {
    ("MNIST", "SGD"): (91.50, 96.48, 95.96),
    ("MNIST", "SGD_Momentum"): (91.65, 96.67, 95.92),
    ("MNIST", "Adagrad"): (91.34, 96.68, 95.93),
    ("MNIST", "Adam"): (91.25, 96.67, 95.31),
    ("FMNIST", "SGD"): (85.86, 84.14, 86.45),
    ("FMNIST", "SGD_Momentum"): (85.76, 83.88, 86.19),
    ("FMNIST", "Adagrad"): (85.48, 84.23, 86.44),
    ("FMNIST", "Adam"): (83.91, 84.06, 86.02),
}
SETTINGS: Mapping[str, Setting] = {"MNIST": MNIST, "FMNIST": FMNIST}


def measure(
    setting: Setting, optimizer: str, network: str, seed: int, fast: bool
) -> dict[str, float | None]:
    # Another optimizer at the active party with every seed.
    names = [*OPTIMIZERS]
    turned = names[seed % len(names) :] + names[: seed % len(names)]
    given = [OPTIMIZERS[name] for name in turned]
    summary = run(setting, {"name": "easter"}, (network,) * len(PARTIES), seed, fast, given)
    return {"accuracy": percent_of(summary, [PARTIES[turned.index(optimizer)]])}


def experiment() -> Experiment:
    return Experiment(
        name="easter-table4",
        title="EASTER with another optimizer at every party",
        metric="accuracy",
        better="higher",
        note=(
            "Test accuracy in percent of the model of the party with that optimizer; the four of a "
            "network are one run. Data, networks, epochs and batches as in easter-table2; who has "
            "which optimizer goes round with the seed."
        ),
        jobs=[
            Job(
                coordinates={"data set": dataset, "optimizer": optimizer, "network": network},
                measure=lambda seed, fast, s=setting, o=optimizer, n=network: measure(
                    s, o, n, seed, fast
                ),
                paper=PAPER[dataset, optimizer][place],
            )
            for dataset, setting in SETTINGS.items()
            for optimizer in OPTIMIZERS
            for place, network in enumerate(SMALL)
        ],
        seeds=3,
    )
