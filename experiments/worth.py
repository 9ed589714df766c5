"""What each party is worth: of one trained model, and with training again for every set of parties.

Not in a paper. ``colonnade worth`` values sets of parties by one model that answers from any set.
Whoever could train again for every set would value them by the best model of each.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.core.federation import LoopState
from colonnade.data.datasets import load_dataset
from colonnade.quality.evaluation import evaluate
from colonnade.quality.worth import exact_shapley
from colonnade.reproduce import Experiment, Job
from colonnade.run.fitting import fit_blueprint
from colonnade.run.party_worth import measure_worth
from colonnade.run.samples import arrange
from colonnade.run.sources import Sources
from colonnade.run.spec import parse_spec

sys.path.append(str(Path(__file__).parent))
from _common import as_before

DATASETS = {
    "breast_cancer": ("clinic", "laboratory", "pathology"),
    "digits": ("bottom", "middle", "top"),
}


def trained(dataset: str, some: tuple[str, ...], seed: int, epochs: int) -> Any:
    """Blueprint, data and federation of a training with the blocks of these parties."""
    spec = parse_spec(
        as_before(
            {
                "seed": seed,
                "threads": 1,
                "method": "laser",
                "data": {"batch_size": 32, "split": {"validation": 0.0, "test": 0.3}},
                "defaults": {
                    "encoder": {"kind": "mlp", "hidden": [32], "embedding": 16},
                    "optimizer": {"name": "adam", "lr": 0.005},
                },
                "stop": {"epochs": epochs},
            }
        )
    )
    loaded = load_dataset(dataset)
    sources = Sources(
        blocks={name: loaded.blocks[name] for name in some},
        labels=loaded.labels,
        label_holder="labels",
        kind=loaded.task,
    )
    arrangement = arrange(spec, sources)
    blueprint = fit_blueprint(spec, sources, arrangement)
    data = blueprint.training_data(arrangement)
    federation = blueprint.build(data)
    for _ in federation.train(spec.stop, LoopState(), evaluate):
        pass
    return blueprint, data, federation


@cache
def both(dataset: str, seed: int, fast: bool) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Worths in points of accuracy: of one model, and with a model for every set."""
    names, epochs = DATASETS[dataset], 2 if fast else 30
    blueprint, data, federation = trained(dataset, names, seed, epochs)
    found = measure_worth(blueprint, data, federation)
    assert blueprint.participants == names
    values = [found["nothing"]]
    for number in range(1, 1 << len(names)):
        some = tuple(name for place, name in enumerate(names) if number >> place & 1)
        own = federation if some == names else trained(dataset, some, seed, epochs)[2]
        values.append(evaluate(own, "test")["accuracy"])
    again = exact_shapley(np.array(values), len(names))
    one = {item["party"]: 100 * item["value"] for item in found["parties"]}
    return one, dict(zip(names, (100 * again).tolist(), strict=True))


def job(dataset: str, party: str) -> Job:
    def measure(seed: int, fast: bool) -> dict[str, float | None]:
        one, again = both(dataset, seed, fast)
        return {
            "worth": one[party],
            "trained again": again[party],
            "difference": abs(one[party] - again[party]),
        }

    return Job(coordinates={"data set": dataset, "party": party}, measure=measure)


def experiment() -> Experiment:
    return Experiment(
        name="worth",
        title="Worth of each party in points of accuracy",
        metric="worth",
        better="higher",
        note=(
            "Shapley values on the test part (30 % of the samples). Ours: one LASER-VFL model, "
            "trained with all blocks, answers from every set of them. 'trained again': a model of "
            "its own for every set of parties. 'difference' is the mean of its absolute value over "
            "seeds. MLP 32-16, linear heads, Adam with rate 0.005, batch 32, 30 epochs. Not in a "
            "paper."
        ),
        jobs=[job(dataset, party) for dataset, names in DATASETS.items() for party in names],
        seeds=5,
        beside=("trained again", "difference"),
    )
