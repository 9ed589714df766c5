"""The choice of defaults: some settings of optimizer and length on tables to choose on.

Not a table of a paper. Seeds are others than those of ``defaults``, and a third of the tables is
left out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from colonnade.reproduce import Experiment, Job

sys.path.append(str(Path(__file__).parent))
from _common import as_before
from _tables import TUNED, joined_model, ours, table_of

NUM_ROWS = 2000
FIRST_SEED = 100
# So that one table on which a model fails does not decide alone.
MOST_BEHIND = -0.2


def candidate(
    rate: float,
    schedule: str = "none",
    *,
    name: str = "adamw",
    decay: float = 0.1,
    validation: float = 0.15,
    stop: Mapping[str, Any] | None = None,
    refit: bool = True,
    encoder: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Settings of which everything that defaults decide is said."""
    options = {"weight_decay": decay} if name == "adamw" else {}
    optimizer = {"name": name, "lr": rate, "schedule": schedule, "options": options}
    early = {"epochs": 60, "least_exchanges": 500, "patience": 20, "metric": "loss", "refit": refit}
    return {
        "data": {"batch_size": 64, "split": {"validation": validation, "stratified": True}},
        "defaults": {"encoder": {"kind": "mlp", **(encoder or {})}, "optimizer": optimizer},
        "label_holder": {"optimizer": optimizer},
        "stop": dict(stop or early),
    }


CANDIDATES: Mapping[str, dict[str, Any]] = {
    "before: adam 0.001, 20 epochs": as_before({}),
    "adamw 0.001, early stopping": candidate(0.001, refit=False),
    "adamw 0.001, early stopping, refit (the default)": candidate(0.001),
    "adamw 0.001, cosine, early stopping, refit": candidate(0.001, "cosine"),
    "adamw 0.001, decay 1, early stopping, refit": candidate(0.001, decay=1.0),
    "adamw 0.001, dropout 0.2, early stopping, refit": candidate(0.001, encoder={"dropout": 0.2}),
    "adamw 0.001, 20 epochs, no validation": candidate(
        0.001, validation=0.0, stop={"epochs": 20, "least_exchanges": 300}
    ),
}


@cache
def reference(name: str, seed: int, num_rows: int) -> float:
    """The better of scikit-learn's MLP and linear model on the joined table."""
    train, test = table_of(name).split(seed, num_rows)
    return max(joined_model(kind, train, test, seed) for kind in ("mlp", "linear"))


def job(label: str) -> Job:
    def measure(number: int, fast: bool) -> dict[str, float | None]:
        seed, num_rows = FIRST_SEED + number, 300 if fast else NUM_ROWS
        settings = CANDIDATES[label] | ({"stop": {"epochs": 1}} if fast else {})
        ahead = {}
        for name in TUNED[:2] if fast else TUNED:
            train, test = table_of(name).split(seed, num_rows)
            found = ours(train, test, seed, "splitnn", settings)
            ahead[name] = 100 * max(MOST_BEHIND, found - reference(name, seed, num_rows))
        return {"points ahead": fmean(ahead.values()), "worst": min(ahead.values()), **ahead}

    return Job(coordinates={"settings": label}, measure=measure)


def experiment() -> Experiment:
    return Experiment(
        name="defaults-tuning",
        title="The choice of defaults",
        metric="points ahead",
        better="higher",
        note=(
            f"Hundredths of AUC, accuracy or R² ahead of the better of scikit-learn's MLP and "
            f"linear model on the joined table, as a mean over {len(TUNED)} tables: "
            f"{', '.join(TUNED)}. Of larger ones {NUM_ROWS} rows are drawn. 'worst' is the mean "
            f"of the worst table. Seeds are {FIRST_SEED} and on. Early stopping: at most 60 "
            "epochs, at least 500 exchanges, patience of 20 epochs on the validation loss; refit: "
            "anew on all rows for as many epochs as were best, of classes 300 exchanges. Without "
            "validation every row trains, as scikit-learn's models have it. Not in a paper."
        ),
        jobs=[job(label) for label in CANDIDATES],
        seeds=3,
        beside=("worst",),
    )
