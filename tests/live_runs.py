"""A run directory as training writes it: three parties on a simulated clock, one of them slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.run.engine import train
from colonnade.run.spec import parse_spec

PARTIES = ("bank", "shop", "telco")


def constant(value: int) -> dict[str, Any]:
    return {"kind": "constant", "value": value}


def trained_run(place: Path, **settings: Any) -> Path:
    """Train in ``place / "credit"``; a whole run takes about a second."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=(600, 9))
    label = values[:, 0] + values[:, 3] * values[:, 1] + values[:, 6] > 0.4
    for number, name in enumerate(PARTIES):
        table = pd.DataFrame(values[:, 3 * number : 3 * number + 3], columns=["a", "b", "c"])
        if name == "bank":
            table["late"] = label
        table.to_csv(place / f"{name}.csv", index_label="id")
    slow = {"encode": constant(30), "step": constant(22), "latency": constant(12)}
    sleep = {"kind": "random", "probability": 0.1, "ticks": 300}
    quick = {"encode": constant(8), "step": constant(6), "latency": constant(3)}
    spec = parse_spec(
        {
            "data": {"batch_size": 64},
            "stop": {"epochs": 6},
            "label_holder": {"name": "bank", "label": "late"},
            "party": {n: {"file": str(place / f"{n}.csv"), "id": "id"} for n in PARTIES},
            "fabric": {
                "name": "simulated",
                "fuse": constant(4),
                "default": quick,
                "party": {"telco": {**slow, "sleep": sleep}},
            },
            "record": {"log_every": 2},
            **settings,
        }
    )
    train(spec, directory=place / "credit")
    return place / "credit"


def lines_of(run: Path, kind: str, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a kind."""
    found = [json.loads(line) for line in (run / file).read_text("utf-8").splitlines()]
    return [line for line in found if line["kind"] == kind]


def append(run: Path, file: str, **line: Any) -> None:
    """Write one line more."""
    with (run / file).open("a", encoding="utf-8") as open_file:
        open_file.write(json.dumps(line) + "\n")
