"""A sixth party joins a trained federation of five (mfeat, LASER-VFL).

How good the five are without it, before and after; and how good all six are together, beside a
federation that was trained with all six from the start.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from colonnade.reproduce import Experiment, Job
from colonnade.run.engine import train
from colonnade.run.result import Result
from colonnade.run.samples import arrange
from colonnade.run.sources import Sources
from colonnade.run.spec import RunSpec, parse_spec

sys.path.append(str(Path(__file__).parent))
from _common import as_before, sources_of

JOINS = "zernike"
MISSING = 0.3
# What the five train for, what the six train for after that, and what six from the start have.
EPOCHS = {"five": 30, "join": 15, "six": 45}
BOUND = 0.02
OLD, ALL = "of the five", "of all six"
WAYS = {
    "the five, before": (OLD,),
    "the others go on": (OLD, ALL),
    "the others are frozen": (OLD, ALL),
    "six from the start": (OLD, ALL),
}


def settings(seed: int, epochs: int, start: dict[str, Any] | None = None) -> RunSpec:
    drawn = {"kind": "uniform", "missing": MISSING}
    return parse_spec(
        as_before(
            {
                "seed": seed,
                "method": {"name": "laser", "weights": "paper"},
                "data": {
                    "batch_size": 64,
                    "presence": {"train": drawn, "inference": drawn},
                    "split": {"validation": 0.15, "test": 0.25},
                },
                "defaults": {
                    "encoder": {"kind": "mlp", "hidden": [64], "embedding": 32},
                    "optimizer": {"name": "adam", "lr": 0.001},
                },
                "stop": {"epochs": epochs},
                "start": start or {},
            }
        )
    )


def five_of(sources: Sources) -> Sources:
    blocks = {name: block for name, block in sources.blocks.items() if name != JOINS}
    return replace(sources, blocks=blocks)


@cache
def trained_five(seed: int, fast: bool) -> tuple[Path, tempfile.TemporaryDirectory[str]]:
    """A run directory of the five; it is there as long as the process."""
    place = tempfile.TemporaryDirectory()
    run = Path(place.name) / "five"
    spec = settings(seed, 2 if fast else EPOCHS["five"])
    train(spec, sources=five_of(sources_of("mfeat")), directory=run)
    return run, place


@cache
def ended(way: str, seed: int, fast: bool) -> dict[str, float]:
    """Quality on the test part, by whose blocks there are."""
    sources = sources_of("mfeat")
    if way == "six from the start":
        spec = settings(seed, 3 if fast else EPOCHS["six"])
        result = train(spec, sources=sources)
        return {
            OLD: without_the_sixth(result, spec, sources),
            ALL: result.summary["quality"]["test"]["accuracy"],
        }
    run, _ = trained_five(seed, fast)
    frozen = sorted(five_of(sources).blocks) if way == "the others are frozen" else []
    start = {"run": str(run), "freeze": frozen, "bound": BOUND}
    spec = settings(seed, 1 if fast else EPOCHS["join"], start)
    summary = train(spec, sources=sources).summary
    found = summary["start"]
    return {
        "before": found["quality_before"],
        "fall": found["fall"],
        "within_bound": float(found["within_bound"]),
        OLD: found["quality_after"],
        ALL: summary["quality"]["test"]["accuracy"],
    }


def without_the_sixth(result: Result, spec: RunSpec, sources: Sources) -> float:
    """The accuracy on the test part as if the sixth party were not there."""
    arrangement = arrange(spec, sources)
    blocks = {}
    for name, block in arrangement.blocks.items():
        rows = arrangement.roll.rows(name, "test", arrangement.rows[name])
        if name != JOINS:
            blocks[name] = block.take(rows[rows >= 0])
    return result.evaluate(blocks, sources.labels)["accuracy"]


def measure(way: str, blocks: str, seed: int, fast: bool) -> dict[str, float | None]:
    if way == "the five, before":
        return {"accuracy": ended("the others go on", seed, fast)["before"]}
    found = ended(way, seed, fast)
    further = {key: found[key] for key in ("fall", "within_bound") if key in found}
    return {"accuracy": found[blocks], **further}


def experiment() -> Experiment:
    return Experiment(
        name="laser-joins",
        title=f"A sixth party ({JOINS}) joins a trained federation of five",
        metric="accuracy",
        better="higher",
        note=(
            f"mfeat, LASER-VFL, {MISSING:.0%} of all blocks missing in every part. The five train "
            f"for {EPOCHS['five']} epochs, then all six for {EPOCHS['join']}; six from the start "
            f"for {EPOCHS['six']}. 'of the five' is measured on the same test samples with the "
            f"sixth party's blocks taken away; the bound on its fall is {BOUND:g}. The paper has "
            "no such experiment."
        ),
        jobs=[
            Job(
                coordinates={"training": way, "blocks": blocks},
                measure=lambda seed, fast, w=way, b=blocks: measure(w, b, seed, fast),
            )
            for way, both in WAYS.items()
            for blocks in both
        ],
        seeds=5,
    )
