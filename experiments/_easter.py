"""What EASTER's three tables share: a picture cut in four, and networks small enough for a core."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from _common import as_before, sources_of
from colonnade.run.engine import train
from colonnade.run.sources import Sources
from colonnade.run.spec import parse_spec

PARTIES = ("party_1", "party_2", "party_3", "party_4")
# The active party has the labels and the upper left quarter of every picture.
ACTIVE = PARTIES[0]
# The paper's, and what it does not say (see the page of the method): chosen on the last 10,000 of
# the training pictures, which stood in for a test part; seeds 100 and above.
RATE = 0.05
BATCH_SIZE = 128
EMBEDDING = 128
HIDDEN = 128
MOMENTUM = {"name": "sgd", "lr": RATE, "options": {"momentum": 0.9}}

NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "CNN": {"kind": "cnn", "channels": [8, 16], "hidden": 64, "activate_output": True},
    "LeNet": {"kind": "lenet", "channels": [8, 16, 32], "activate_output": True},
    "MLP": {"kind": "mlp", "hidden": [128, 64]},
    "ResNet18": {"kind": "resnet18", "stem": "imagenet", "widths": [8, 16, 32, 64]},
    "ResNet50": {"kind": "resnet50", "stem": "imagenet", "widths": [8, 16, 32, 64]},
    "ResNet101": {"kind": "resnet101", "stem": "imagenet", "widths": [8, 16, 32, 64]},
}
SMALL = ("CNN", "LeNet", "MLP")
RESNETS = ("ResNet18", "ResNet50", "ResNet101")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set, how much of it, and for how long."""

    dataset: str
    epochs: int
    num_train: int | None = None


MNIST = Setting(dataset="mnist", epochs=6)
FMNIST = Setting(dataset="fashion_mnist", epochs=8)


@cache
def quarters(dataset: str, num_train: int | None, num_test: int | None = None) -> Sources:
    """The data set in four quarters; of each part all, or so many drawn at random."""
    whole = replace(sources_of(dataset, len(PARTIES)), label_holder=ACTIVE)
    assert whole.test_ids is not None
    is_test = np.isin(whole.labels.ids, whole.test_ids)
    generator = np.random.default_rng(0)
    kept = np.concatenate(
        [
            generator.permutation(np.flatnonzero(~is_test))[:num_train],
            generator.permutation(np.flatnonzero(is_test))[:num_test],
        ]
    )
    labels = replace(whole.labels, ids=whole.labels.ids[kept], values=whole.labels.values[kept])
    assert all((block.ids == whole.labels.ids).all() for block in whole.blocks.values())
    blocks = {name: block.take(kept) for name, block in whole.blocks.items()}
    return replace(whole, blocks=blocks, labels=labels)


def drawn_networks(networks: Sequence[str], seed: int) -> tuple[str, ...]:
    """Whose network is which: each at least once, the fourth and the places drawn by the seed."""
    generator = np.random.default_rng(seed)
    four = [*networks, str(generator.choice(list(networks)))]
    return tuple(four[place] for place in generator.permutation(len(four)))


@cache
def measured(
    setting: Setting, method: str, networks: tuple[str, ...], optimizers: str, seed: int, fast: bool
) -> Mapping[str, Any]:
    """A run's summary; ``optimizers`` are JSON, one for each party, so that runs can be shared."""
    by_party = dict(zip(PARTIES, zip(networks, json.loads(optimizers), strict=True), strict=True))
    settings: dict[str, Any] = {
        "seed": seed,
        "threads": 1,
        "method": json.loads(method),
        "data": {"batch_size": BATCH_SIZE, "split": {"validation": 0.0}},
        "defaults": {"head": {"hidden": [HIDDEN]}},
        "party": {
            name: {"encoder": {**NETWORKS[network], "embedding": EMBEDDING}, "optimizer": optimizer}
            for name, (network, optimizer) in by_party.items()
        },
        "label_holder": {
            "fusion": {"kind": "mlp", "hidden": [HIDDEN]},
            "optimizer": by_party[ACTIVE][1],
        },
        "stop": {"exchanges": 2} if fast else {"epochs": setting.epochs},
    }
    sources = (
        quarters(setting.dataset, 300, 300)
        if fast
        else quarters(setting.dataset, setting.num_train)
    )
    return train(parse_spec(as_before(settings)), sources=sources).summary


def run(
    setting: Setting,
    method: Mapping[str, Any],
    networks: Sequence[str],
    seed: int,
    fast: bool,
    optimizers: Sequence[Mapping[str, Any]] = (MOMENTUM,) * len(PARTIES),
) -> Mapping[str, Any]:
    """A run's summary; the same run is not made twice for two cells of a table."""
    given = json.dumps(list(optimizers))
    return measured(setting, json.dumps(method), tuple(networks), given, seed, fast)


def percent(summary: Mapping[str, Any]) -> float:
    """The label holder's answers on the test part."""
    return 100.0 * float(summary["quality"]["test"]["accuracy"])


def percent_of(summary: Mapping[str, Any], parties: Sequence[str]) -> float:
    """The mean over these parties' own models, on the test part."""
    found = summary["quality"]["test"]
    return 100.0 * float(np.mean([found[f"accuracy@{name}"] for name in parties]))


def has_own_models(summary: Mapping[str, Any]) -> bool:
    """Whether every party has a model of its own."""
    return f"accuracy@{ACTIVE}" in summary["quality"]["test"]


def homogeneous(
    setting: Setting, method: Mapping[str, Any], network: str, seed: int, fast: bool
) -> dict[str, float | None]:
    """Everybody has this network; of four EASTER models, the mean."""
    summary = run(setting, method, (network,) * len(PARTIES), seed, fast)
    if not has_own_models(summary):
        return {"accuracy": percent(summary)}
    return {"accuracy": percent_of(summary, PARTIES), "active": percent(summary)}


def heterogeneous(
    setting: Setting,
    method: Mapping[str, Any],
    networks: Sequence[str],
    network: str,
    seed: int,
    fast: bool,
) -> dict[str, float | None]:
    """Everybody has another one; of EASTER, the mean of the models with this one."""
    drawn = drawn_networks(networks, seed)
    summary = run(setting, method, drawn, seed, fast)
    if not has_own_models(summary):
        return {"accuracy": percent(summary)}
    own = [name for name, item in zip(PARTIES, drawn, strict=True) if item == network]
    return {"accuracy": percent_of(summary, own), "active": percent(summary)}
