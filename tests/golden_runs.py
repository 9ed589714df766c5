"""Seeded runs of every method, and what they end with: numbers that a refactor must not move.

``python tests/golden_runs.py`` writes them anew; only a change that means to move numbers
may do so, and says so in the changelog.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import colonnade
from colonnade.methods import METHODS

FILE = Path(__file__).parent / "golden" / "seeded_runs.json"
SLOW = {"default": {"encode": 3, "step": 5}, "party": {"shop": {"encode": 9, "step": 14}}}
PROTECT: dict[str, list[dict[str, Any]]] = {
    "fixed": [{"kind": "fixed"}],
    "top_k": [{"kind": "top_k", "keep": 0.4, "feedback": True}],
    "quantize": [{"kind": "quantize", "bits": 4}],
}
VARIANTS: tuple[dict[str, Any], ...] = (
    {"name": "laser", "labels": "shared"},
    {"name": "laser", "heads": "label_holder"},
    {"name": "laser", "weights": "paper", "normalise_presence": True},
    {"name": "flex", "labels": "shared"},
    {"name": "adaptive_flex", "labels": "shared"},
    {"name": "splitnn", "pipelined": True},
    {"name": "vafl", "num_uploads": 2, "max_delay": 3},
    {"name": "sync_vfl", "steps": "max"},
    {"name": "alone", "who": "shop"},
    {"name": "aggvfl", "aggregate": "sum"},
)


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every case by name: a method, and further settings."""
    for name, method in METHODS.items():
        for task in ("binary", "multiclass", "regression"):
            yield f"{name}, {task}", {"method": name, "task": task}
        yield f"{name}, dropout", {"method": name, "dropout": 0.2}
        if method.info.tolerates_missing:
            yield f"{name}, missing", {"method": name, "task": "multiclass", "missing": 0.3}
    for name in ("splitnn", "fedbcd", "easter", "aggvfl"):
        for kind in PROTECT:
            yield f"{name}, {kind}", {"method": name, "protect": kind}
    for variant in VARIANTS:
        missing = 0.3 if variant["name"] == "laser" else 0.0
        shown = ", ".join(f"{key} {value}" for key, value in variant.items() if key != "name")
        yield f"{variant['name']}, {shown}", {"method": variant, "missing": missing}


def outcome(
    *,
    method: Any,
    task: str = "binary",
    dropout: float = 0.0,
    missing: float = 0.0,
    protect: str | None = None,
    device: str = "cpu",
) -> dict[str, float]:
    """Loss and quality on held-out samples, and a checksum of the outputs, of one run."""
    blocks, labels = _data(task)
    trained_on = {
        name: block[np.random.default_rng(at).random(len(block)) >= missing]
        for at, (name, block) in enumerate(blocks.items())
    }
    network = {"kind": "mlp", "hidden": [6], "embedding": 4, "dropout": dropout}
    # Said outright: what the defaults are is another question.
    own = {"name": method} if isinstance(method, str) else method
    if own["name"] == "laser":
        method = {"weights": "normalised", **own}
    adam = {"name": "adam", "lr": 1e-3}
    result = colonnade.fit(
        trained_on,
        labels,
        method=method,
        label_holder="bank",
        epochs=2,
        batch_size=16,
        seed=3,
        device=device,
        settings={
            "dtype": "float64",
            "fabric": {"name": "simulated", **SLOW},
            "data": {"split": {"stratified": False}},
            "defaults": {
                "encoder": network,
                "head": {"hidden": []},
                "optimizer": adam,
                "protect": PROTECT[protect] if protect else [],
            },
            "label_holder": {
                "fusion": {"kind": "mlp", "hidden": [5], "combine": "mean"},
                "optimizer": adam,
            },
        },
    )
    outputs = result.outputs(blocks).to_numpy()
    weights = np.linspace(1.0, 2.0, outputs.size).reshape(outputs.shape)
    return {
        "loss": result.summary["quality"]["test"]["loss"],
        "outputs": float((outputs * weights).sum()),
        "size": float(np.abs(outputs).sum()),
        "bytes": float(sum(result.summary["bytes_up"].values())),
        "seconds": float(result.summary["elapsed_seconds"]),
    }


def _data(task: str) -> tuple[dict[str, pd.DataFrame], pd.Series[Any]]:
    draw = np.random.default_rng(11)
    ids = [f"s{number:03d}" for number in range(120)]
    blocks = {
        name: pd.DataFrame(draw.normal(size=(120, 3)), index=ids, columns=list("xyz"))
        for name in ("bank", "shop", "telco")
    }
    total = sum(block["x"] + block["y"] * block["z"] for block in blocks.values())
    if task == "regression":
        return blocks, total.rename("target")
    codes = (total > 0) if task == "binary" else pd.qcut(total, 3, labels=False)
    return blocks, codes.astype(int).rename("target")


if __name__ == "__main__":
    found = {name: outcome(**settings) for name, settings in cases()}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
