"""EASTER, Table 3: embeddings aggregated against predictions aggregated, by one and by different
networks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.reproduce import Experiment, Job

sys.path.append(str(Path(__file__).parent))
from _easter import FMNIST, MNIST, SMALL, Setting, heterogeneous, homogeneous

EASTER: Mapping[str, Any] = {"name": "easter"}
# Which method, and whether everybody has the same network.
ROWS: Mapping[str, tuple[Mapping[str, Any], bool]] = {
    "Heter_splitVFL": ({"name": "splitnn"}, False),
    "Heter_aggVFL": ({"name": "aggvfl", "aggregate": "sum"}, False),
    "Homo_EASTER": (EASTER, True),
    "EASTER": (EASTER, False),
}
PAPER = {
    ("MNIST", "Heter_aggVFL"): (36.29, 45.15, 68.78),
    ("MNIST", "Homo_EASTER"): (96.05, 98.61, 96.57),
    ("MNIST", "EASTER"): (97.58, 97.87, 97.73),
    ("FMNIST", "Heter_aggVFL"): (45.45, 70.04, 42.82),
    ("FMNIST", "Homo_EASTER"): (86.42, 90.45, 86.57),
    ("FMNIST", "EASTER"): (87.78, 88.33, 88.08),
}
SETTINGS: Mapping[str, Setting] = {"MNIST": MNIST, "FMNIST": FMNIST}


def measure(
    setting: Setting, row: str, network: str, seed: int, fast: bool
) -> dict[str, float | None]:
    method, same = ROWS[row]
    if same:
        return homogeneous(setting, method, network, seed, fast)
    return heterogeneous(setting, method, SMALL, network, seed, fast)


def experiment() -> Experiment:
    return Experiment(
        name="easter-table3",
        title="Embeddings aggregated, predictions aggregated, embeddings side by side",
        metric="accuracy",
        better="higher",
        note=(
            "As easter-table2, which has Local and Homo_aggVFL (there AggVFL). SplitVFL and AggVFL "
            "give one prediction for all: the three cells of a Heter_ row are the same runs. "
            "Heter_splitVFL (embeddings side by side, one fusion) is not in the paper."
        ),
        jobs=[
            Job(
                coordinates={"data set": dataset, "method": row, "network": network},
                measure=lambda seed, fast, s=setting, r=row, n=network: measure(
                    s, r, n, seed, fast
                ),
                paper=PAPER[dataset, row][place] if (dataset, row) in PAPER else None,
            )
            for dataset, setting in SETTINGS.items()
            for row in ROWS
            for place, network in enumerate(SMALL)
        ],
        seeds=3,
    )
