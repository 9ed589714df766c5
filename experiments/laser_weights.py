"""LASER-VFL's task weights: as in the paper, whose sum grows as 2^K / K per head, or normalised.

Not a table of the paper. Which learning rates work at K = 4, 8, 16 with either: plain SGD, since an
adaptive optimizer does not feel the scale of a loss.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from colonnade.reproduce import Experiment, Job

sys.path.append(str(Path(__file__).parent))
from _common import run, sources_of

NUM_PARTIES = (4, 8, 16)
RATES = (0.001, 0.01, 0.1, 0.3, 1.0)
EPOCHS = 10


def measure(
    num_parties: int, weights: str, rate: float, seed: int, fast: bool
) -> dict[str, float | None]:
    settings: dict[str, Any] = {
        "seed": seed,
        "threads": 1,
        "method": {"name": "laser", "labels": "shared", "heads": "all", "weights": weights},
        "data": {"batch_size": 64},
        "defaults": {
            "encoder": {"kind": "mlp", "hidden": [32], "embedding": 16},
            "optimizer": {"name": "sgd", "lr": rate},
        },
        "stop": {"epochs": 1 if fast else EPOCHS, "evaluate_every": 1_000_000},
    }
    summary = run(settings, sources_of("digits", num_parties)).summary
    return {"accuracy": summary["quality"]["test"]["mean_accuracy"]}


def experiment() -> Experiment:
    return Experiment(
        name="laser-weights",
        title="LASER-VFL's task weights and the learning rates that work with them",
        metric="accuracy",
        better="higher",
        note=(
            "Mean accuracy of the parties (appendix D) on the test part of digits, cut into K "
            "blocks of pixels, all of them there; MLP 32-16, linear heads, plain SGD, batch 64, "
            f"{EPOCHS} epochs; a run that diverges counts as not reached. Not in the paper."
        ),
        jobs=[
            Job(
                coordinates={"K": num_parties, "weights": weights, "learning rate": rate},
                measure=lambda seed, fast, k=num_parties, w=weights, r=rate: measure(
                    k, w, r, seed, fast
                ),
            )
            for num_parties in NUM_PARTIES
            for weights in ("paper", "normalised")
            for rate in RATES
        ],
        seeds=3,
    )
