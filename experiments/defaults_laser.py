"""How good laser's plain defaults are with all blocks there: beside splitnn's, and a control.

Not a table of a paper. The control has laser's networks, an average of embeddings and a head over
it, but trains on all blocks alone: laser's distance to it is the price of answering every set.
"""

from __future__ import annotations

import sys
from pathlib import Path

from colonnade.core.config import dump
from colonnade.reproduce import Experiment, Job
from colonnade.run.defaults import ENCODERS_BY_METHOD, HEADS

sys.path.append(str(Path(__file__).parent))
from _tables import LEFT_OUT, METRICS, NAMED, TUNED, ours, table_of

# Of a larger table so many rows are drawn, others for every seed. Few rows and many seeds: what is
# asked is a difference of two methods, and seeds differ by more than it.
NUM_ROWS = 1000
GROUPS = {"chosen on": TUNED, "left out": LEFT_OUT, "named": NAMED}
OVER_AVERAGE = {
    "defaults": {"encoder": {"kind": "mlp", **dump(ENCODERS_BY_METHOD["laser"])}},
    "label_holder": {
        "fusion": {"kind": "mlp", "hidden": list(HEADS["laser"].hidden), "combine": "mean"}
    },
}


def job(group: str, name: str) -> Job:
    def measure(seed: int, fast: bool) -> dict[str, float | None]:
        train, test = table_of(name).split(seed, 300 if fast else NUM_ROWS)
        stop = {"stop": {"epochs": 2}} if fast else {}
        found = ours(train, test, seed, "laser", stop)
        beside = {
            "control": ours(train, test, seed, "splitnn", {**stop, **OVER_AVERAGE}),
            "splitnn": ours(train, test, seed, "splitnn", stop),
        }
        return {"quality": found, **beside, "ahead": found - beside["splitnn"]}

    return Job(coordinates={"tables": group, "table": name}, measure=measure)


def experiment() -> Experiment:
    measures = ", ".join(f"{metric} of a {task}" for task, metric in METRICS.items())
    return Experiment(
        name="defaults-laser",
        title="laser's plain defaults with all blocks there",
        metric="quality",
        better="higher",
        note=(
            f"On a quarter of the rows, which no model saw: {measures} label. Of larger tables "
            f"{NUM_ROWS} rows are drawn. 'ours' is laser by colonnade.fit with nothing set but "
            'prepare.missing = "mean" and prepare.constant = "drop", splitnn likewise. \'control\' '
            "is splitnn with laser's encoders and a head like laser's over the average of "
            "embeddings: the same networks, trained on all blocks. "
            "'ahead' is laser less splitnn, seed by seed. Columns of the tables go to three "
            "parties in their order; data sets have their own parties. Not in a paper."
        ),
        jobs=[job(group, name) for group, names in GROUPS.items() for name in names],
        seeds=5,
        beside=("control", "splitnn", "ahead"),
    )
