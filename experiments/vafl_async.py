"""VAFL, Figure 2: accuracy against time for asynchronous, t-synchronous and synchronous training.

Federated logistic regression on digits (7 parties) and voice recordings (3 parties). Delays are
exponential; party m of M has a mean of m / M seconds, as in the paper's appendix G.2.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from colonnade.reproduce import Experiment, Job
from colonnade.run.sources import Sources

sys.path.append(str(Path(__file__).parent))
from _common import LABEL_HOLDER, Ended, run, sources_of

LOGISTIC = {"kind": "mlp", "hidden": [], "activate_output": False}
SMALL_CNN = {"kind": "cnn", "channels": [8, 16], "hidden": 64}
STRIPS: dict[str, Any] = {
    "num_parties": 7,
    "num_samples": 4000,
    "encoder": {**LOGISTIC, "embedding": 10},
    "batch_size": 64,
    "validation": 0.15,
    "rate": 0.1,
    "num_uploads": 3,
    "seconds": (75, 100, 150, 200, 250, 300),
    "epochs": 20,
}
TASKS: dict[str, dict[str, Any]] = {
    "mnist": {"dataset": "mnist", **STRIPS},
    "fashion_mnist": {"dataset": "fashion_mnist", **STRIPS},
    "fashion_mnist, CNN": {
        "dataset": "fashion_mnist",
        **STRIPS,
        "num_parties": 4,
        "encoder": {**SMALL_CNN, "embedding": 32},
        "num_uploads": 2,
        "centralized": False,
    },
    "parkinsons": {
        "dataset": "parkinsons",
        "num_parties": None,
        "num_samples": None,
        "encoder": {**LOGISTIC, "embedding": 1},
        "batch_size": 16,
        "validation": 0.3,
        "rate": 0.1,
        "num_uploads": 2,
        "seconds": (15, 30, 60, 90, 120),
        "epochs": 100,
    },
}
METHODS = ("sync", "t-sync", "async", "async, private")
# Set once, before any run with it: section 4 of the paper gives a form and no value for these.
PERTURBATION = {"kind": "perturb", "noise": 0.3, "clip": 1.0}
TO_THE_END = "to the end"


def source(task: str) -> Sources:
    data = TASKS[task]
    return sources_of(data["dataset"], data["num_parties"], data["num_samples"])


@cache
def trained(task: str, method: str, seed: int, fast: bool) -> Ended:
    """A run up to the last of the times; the centralized one for its epochs."""
    data, sources = TASKS[task], source(task)
    num_parties = len(sources.blocks)
    uploads = {"sync": num_parties, "t-sync": data["num_uploads"], "async": 1}.get(method, 1)
    optimizer = {"name": "sgd", "lr": data["rate"], "options": {"weight_decay": 0.001}}
    settings: dict[str, Any] = {
        "seed": seed,
        "method": {
            "sync": {"name": "splitnn"},
            "t-sync": {"name": "vafl", "num_uploads": uploads},
            "async": {"name": "vafl"},
            "async, private": {"name": "vafl"},
            "centralized": {"name": "centralized"},
        }[method],
        "data": {
            "batch_size": data["batch_size"],
            "split": {"validation": data["validation"]},
        },
        "defaults": {
            # Linear here and at the label holder makes a logistic regression.
            "encoder": data["encoder"],
            "optimizer": optimizer,
            "protect": [PERTURBATION] if method == "async, private" else [],
        },
        "label_holder": {
            "name": LABEL_HOLDER,
            "fusion": {"kind": "linear"},
            "optimizer": optimizer,
        },
    }
    if method == "centralized":
        settings["stop"] = {"epochs": 1 if fast else data["epochs"]}
        return run(settings, sources)
    settings["fabric"] = {
        "name": "simulated",
        "fuse": 1,
        "party": {
            name: {
                "encode": {"kind": "exponential", "mean": 1000 * place / num_parties},
                "step": 1,
            }
            for place, name in enumerate(sources.blocks, 1)
        },
    }
    # An evaluation for every five uploads of every party.
    settings["stop"] = {
        "exchanges": 10**6,
        "evaluate_every": max(1, 5 * num_parties // uploads),
    }
    last = data["seconds"][0 if fast else -1]
    return run(settings, sources, last_tick=1000 * last)


def measure(
    task: str, method: str, until: int | str, seed: int, fast: bool
) -> dict[str, float | None]:
    ended = trained(task, method, seed, fast)
    if method == "centralized":
        return {"accuracy": ended.points[-1].quality, "exchanges": ended.points[-1].exchange}
    before = [point for point in ended.points if point.tick <= 1000 * int(until)]
    return {
        "accuracy": before[-1].quality if before else None,
        "exchanges": before[-1].exchange if before else 0,
        "seconds of initial uploads": ended.ticks / 1000 - ended.summary["elapsed_seconds"],
        # Of the whole run: the most that all releases of one sample amount to at any party.
        "mu at the end": _largest(ended.summary["privacy"], "mu"),
        "epsilon at the end": _largest(ended.summary["privacy"], "epsilon"),
    }


def _largest(privacy: Mapping[str, Mapping[str, float] | None], what: str) -> float | None:
    found = [spent[what] for spent in privacy.values() if spent]
    return max(found) if found else None


def experiment() -> Experiment:
    places = [
        (task, *place)
        for task, data in TASKS.items()
        for place in [
            *((method, until) for until in data["seconds"] for method in METHODS),
            # Pooling columns knows no pictures.
            *([("centralized", TO_THE_END)] if data.get("centralized", True) else []),
        ]
    ]
    return Experiment(
        name="vafl-async",
        title="Accuracy at simulated times: asynchronous, t-synchronous, synchronous",
        metric="accuracy",
        better="higher",
        along="seconds",
        note=(
            "Validation accuracy at the last evaluation before so many simulated seconds, of a "
            "logistic regression (a linear layer at each party, one at the label holder) or a "
            "small CNN (two convolutions of 8 and 16 channels at each party). The paper has "
            "curves and no numbers (Figure 2). 4000 pictures of MNIST and of Fashion-MNIST in 7 "
            "upright strips, 4 for the CNN; parkinsons with its 3 parties, 30 % of the training "
            "people's recordings for validation. An upload of party m of M takes exponentially "
            "long with mean m / M seconds (the paper: Poisson with the same mean). SGD 0.1 and "
            "weight decay 0.001 for all; t = 3 of 7, 2 of 4 and 2 of 3. VAFL's initial uploads of "
            "every batch are part of the time (how long they take is in the JSON). Centralized: "
            "20 and 100 epochs, the dashed line of the paper's figure and of ours; it pools "
            "columns, so the CNN has none. Private: every party perturbs its embeddings, in "
            "training and in evaluation alike, with noise 0.3 times the clipping norm 1; what that "
            "amounts to per sample is in the JSON (mu of Gaussian differential privacy, and "
            "epsilon at delta 1e-5). The LSTM part of the paper is not run."
        ),
        jobs=[
            Job(
                coordinates={"task": task, "seconds": until, "method": method},
                measure=lambda seed, fast, t=task, m=method, u=until: measure(t, m, u, seed, fast),
            )
            for task, method, until in places
        ],
        seeds=3,
    )
