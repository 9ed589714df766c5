"""``colonnade evaluate``: measure a trained run on its own samples."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from colonnade.cli.console import AsJson, RunDirectory, refuse_networked, say

__all__ = ["evaluate"]


def evaluate(
    run: RunDirectory,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    as_json: AsJson = False,
) -> None:
    """Measure a trained run on its own held-out samples.

    Example:  colonnade evaluate runs/credit --part test
    """
    from colonnade.run.engine import reopen

    refuse_networked(run, "evaluate")
    result = reopen(run)
    metrics = result.evaluate(part=part)
    if as_json:
        say(json.dumps(metrics, indent=2))
        return
    if result.left:
        say(f"without {', '.join(result.left)}, who left")
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        say(f"{name:<{width}}  {value:.4f}")
