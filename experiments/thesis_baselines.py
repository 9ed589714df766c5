"""Thesis, Table 6.1 and its sales-price counterpart 6.2: why federate at all.

Centralized, one party's columns alone, and SplitNN with two parties, on a video quality task
(F1, 4000 exchanges) and a sales price task (R², 2000 exchanges); networks of Table 5.1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from colonnade.reproduce import Experiment, Job
from colonnade.run.engine import train
from colonnade.run.spec import parse_spec

sys.path.append(str(Path(__file__).parent))
from _common import as_before

# Table 5.1, two parties: [input, hidden, embedding] and [embeddings, hidden, 1].
NETWORKS = {"qoe": (32, 8), "salesprice": (32, 16)}
EXCHANGES = {"qoe": 4000, "salesprice": 2000}
METRIC = {"qoe": "f1", "salesprice": "r2"}
# Tables 6.1 and 6.2.
PAPER = {
    ("qoe", "centralized"): 0.86,
    ("qoe", "alone"): 0.65,
    ("qoe", "splitnn"): 0.83,
    ("salesprice", "centralized"): 0.46,
    ("salesprice", "alone"): 0.22,
    ("salesprice", "splitnn"): 0.28,
}


def measure(dataset: str, method: str, seed: int, fast: bool) -> dict[str, float | None]:
    hidden, embedding = NETWORKS[dataset]
    settings: dict[str, Any] = {
        "seed": seed,
        "method": method,
        "data": {"dataset": dataset, "num_parties": 2, "batch_size": 64},
        "defaults": {
            "encoder": {"kind": "mlp", "hidden": [hidden], "embedding": embedding},
            "optimizer": {"name": "sgd", "lr": 0.05},
        },
        "label_holder": {
            "fusion": {"kind": "mlp", "hidden": [32]},
            "optimizer": {"name": "sgd", "lr": 0.05},
        },
        "stop": {"exchanges": 200 if fast else EXCHANGES[dataset], "evaluate_every": 500},
    }
    summary = train(parse_spec(as_before(settings))).summary
    quality = summary["quality"]["test"][METRIC[dataset]]
    return {"quality": quality, "exchanges": summary["exchanges"]}


def experiment() -> Experiment:
    return Experiment(
        name="thesis-baselines",
        title="Why federate: centralized, alone, SplitNN with two parties",
        metric="quality",
        better="higher",
        note=(
            "F1 (qoe) and R² (salesprice) on the test part. The thesis's data sets are not public: "
            "qoe is made from Waterloo SQoE-IV (1350 videos, not 450), salesprice from the Ames "
            "housing data (2930 sales, not 977); batch 64, SGD 0.05 (the thesis names neither)."
        ),
        jobs=[
            Job(
                coordinates={"data set": dataset, "method": method},
                measure=lambda seed, fast, d=dataset, m=method: measure(d, m, seed, fast),
                paper=PAPER.get((dataset, method)),
            )
            for dataset in NETWORKS
            for method in ("centralized", "alone", "splitnn")
        ],
        seeds=10,
    )
