"""How good plain defaults are: ours beside scikit-learn's models on the joined table.

Not a table of a paper. ``colonnade.fit`` with nothing set, on tables that defaults were chosen on,
on tables that were left out of that, and on the named data sets.
"""

from __future__ import annotations

import sys
from pathlib import Path

from colonnade.reproduce import Experiment, Job

sys.path.append(str(Path(__file__).parent))
from _tables import LEFT_OUT, METRICS, NAMED, TUNED, alone, joined_model, ours, table_of

# Of a larger table so many rows are drawn, others for every seed.
NUM_ROWS = 2000
GROUPS = {"chosen on": TUNED, "left out": LEFT_OUT, "named": NAMED}


def job(group: str, name: str) -> Job:
    def measure(seed: int, fast: bool) -> dict[str, float | None]:
        train, test = table_of(name).split(seed, 300 if fast else NUM_ROWS)
        settings = {"stop": {"epochs": 2}} if fast else {}
        own = ours(train, test, seed, "splitnn", settings)
        beside = {
            "holder alone": alone(train, test, seed, settings),
            "MLP": joined_model("mlp", train, test, seed),
            "linear": joined_model("linear", train, test, seed),
            "boosting": joined_model("boosting", train, test, seed),
        }
        return {"quality": own, **beside, "ahead": own - max(beside["MLP"], beside["linear"])}

    return Job(coordinates={"tables": group, "table": name}, measure=measure)


def experiment() -> Experiment:
    measures = ", ".join(f"{metric} of a {task}" for task, metric in METRICS.items())
    return Experiment(
        name="defaults",
        title="Plain defaults beside scikit-learn's models",
        metric="quality",
        better="higher",
        note=(
            f"On a quarter of the rows, which no model saw: {measures} label. Of larger tables "
            f"{NUM_ROWS} rows are drawn. 'ours' is splitnn by colonnade.fit with nothing set but "
            'prepare.missing = "mean" and prepare.constant = "drop". Columns of the tables go to '
            "three parties in their order; data sets have their own parties. MLP, linear and "
            "boosting are scikit-learn's, with its defaults (the MLP with up to 300 epochs and a "
            "scaled target), on all columns joined. 'ahead' is ours less the better of MLP and "
            "linear, seed by seed. Defaults were chosen on the first group, with other seeds. Not "
            "in a paper."
        ),
        jobs=[job(group, name) for group, names in GROUPS.items() for name in names],
        seeds=5,
        beside=("holder alone", "MLP", "linear", "boosting", "ahead"),
    )
