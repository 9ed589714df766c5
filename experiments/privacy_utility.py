"""What differential privacy costs: accuracy against ε with perturbed embeddings.

Not a table of a paper: VAFL perturbs embeddings (section 4) and gives no figures for it. SplitNN,
VAFL and LASER-VFL on three data sets, each party's Gaussian as large as the ε asked for needs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from colonnade.protect.accounting import epsilon_of
from colonnade.reproduce import Experiment, Job

sys.path.append(str(Path(__file__).parent))
from _common import LABEL_HOLDER, run
from _laser import Table, sources_of

METHODS = {"SplitNN": "splitnn", "VAFL": "vafl", "LASER-VFL": "laser"}
# VAFL's parties upload before training begins, to fill the label holder's table, and the last
# upload of each is still under way when training ends.
FURTHER_UPLOADS = {"vafl": 2}
EPSILONS: tuple[float | str, ...] = ("none", 1000.0, 100.0, 30.0, 10.0, 3.0)
DELTA = 1e-5
RATE = 0.003


def small_networks(**changes: Any) -> Table:
    return Table(metric="accuracy", hidden=(64,), embedding=8, **changes)


TASKS: Mapping[str, Table] = {
    "mfeat": small_networks(dataset="mfeat", num_parties=None, batch_size=64),
    "HAPT": small_networks(dataset="hapt", num_columns=560, num_parties=4, batch_size=128),
    "Fashion-MNIST": small_networks(dataset="fashion_mnist", num_train=12000, batch_size=128),
}
# As often every sample's embedding leaves its parties in training.
EPOCHS = {"mfeat": 8, "HAPT": 4, "Fashion-MNIST": 4}


@cache
def noise_for(epsilon: float, num_releases: int) -> float:
    """The smallest noise, to a thousandth, with which so many releases spend no more than ε."""
    low, high = 0.0, 1.0
    while epsilon_of(num_releases, high, DELTA) > epsilon:
        low, high = high, 2 * high
    while high - low > high / 1000:
        middle = (low + high) / 2
        spends_more = epsilon_of(num_releases, middle, DELTA) > epsilon
        low, high = (middle, high) if spends_more else (low, middle)
    return high


def measure(
    task: str, method: str, epsilon: float | str, seed: int, fast: bool
) -> dict[str, float | None]:
    table, epochs = TASKS[task], 1 if fast else EPOCHS[task]
    # Nobody's block is at the label holder, where it would go in without noise.
    sources = replace(sources_of(table, seed), label_holder=LABEL_HOLDER)
    num_releases = epochs + FURTHER_UPLOADS.get(method, 0)
    protect = []
    if not isinstance(epsilon, str):
        noise = noise_for(epsilon, num_releases)
        protect = [{"kind": "perturb", "noise": noise, "delta": DELTA}]
    optimizer = {"name": "adam", "lr": RATE}
    settings: dict[str, Any] = {
        "seed": seed,
        "threads": 1,
        "method": {"name": method},
        "data": {"batch_size": table.batch_size, "split": {"validation": 0.0}},
        "defaults": {
            "encoder": {
                "kind": "mlp",
                "hidden": list(table.hidden),
                "embedding": table.embedding,
                "activate_output": False,
            },
            "optimizer": optimizer,
            "protect": protect,
        },
        "label_holder": {
            "name": LABEL_HOLDER,
            "fusion": {"kind": "mlp", "hidden": [32]},
            "optimizer": optimizer,
        },
        "stop": {"epochs": epochs},
    }
    summary = run(settings, sources).summary
    spent = [item for item in summary["privacy"].values() if item]
    return {
        "accuracy": 100 * summary["quality"]["test"]["accuracy"],
        "epsilon spent": max((item["epsilon"] for item in spent), default=None),
        "releases": max((item["releases"] for item in spent), default=None),
        "noise": None if isinstance(epsilon, str) else noise,
    }


def experiment() -> Experiment:
    return Experiment(
        name="privacy-utility",
        title="Accuracy against ε with perturbed embeddings",
        metric="accuracy",
        better="higher",
        along="epsilon",
        beside=("noise", "epsilon spent"),
        note=(
            f"Accuracy in % on the test part, by ε for δ = {DELTA:g}: what the label holder may "
            "learn of one sample's columns at one party from all of its embeddings in training "
            "together (docs/protection.md says what that bounds and what not). Every party "
            "perturbs, nobody's block is at the label holder; `noise` is the smallest with which "
            "the run spends no more than ε. mfeat: six views, "
            f"{EPOCHS['mfeat']} epochs; HAPT: four blocks, {EPOCHS['HAPT']} epochs; "
            f"Fashion-MNIST: quadrants of 12,000 pictures, {EPOCHS['Fashion-MNIST']} epochs. "
            "MLP 64-8, Adam at 0.003, clipping norm 1, no noise in inner layers: set once, the "
            "same for every method, not tuned for any ε; fewer epochs would need less noise. VAFL "
            "releases each sample twice more (before training and after its last step), so its "
            "noise is larger."
        ),
        jobs=[
            Job(
                coordinates={"task": task, "method": name, "epsilon": epsilon},
                measure=lambda seed, fast, t=task, m=method, e=epsilon: measure(
                    t, m, e, seed, fast
                ),
            )
            for task in TASKS
            for name, method in METHODS.items()
            for epsilon in EPSILONS
        ],
        seeds=3,
    )
