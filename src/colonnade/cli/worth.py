"""``colonnade worth``: what each party adds to a trained run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.cli.console import AsJson, RunDirectory, refuse_networked, say

__all__ = ["worth"]


def worth(
    run: RunDirectory,
    part: Annotated[str, typer.Option(help="test or validation.")] = "test",
    costs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV: what each decision costs, by true class."),
    ] = None,
    orders: Annotated[
        int, typer.Option(help="Orders to sample with more than 12 parties.", min=2)
    ] = 64,
    as_json: AsJson = False,
) -> None:
    """Say what each party adds to a trained run, as Shapley values; nothing is trained again.

    The values go to worth.json in the run directory, and from there into the report.

    Example:  colonnade worth runs/credit --costs costs.csv
    """
    from colonnade.run.engine import reopen_with_data
    from colonnade.run.party_worth import WORTH, measure_worth, read_costs
    from colonnade.run.storage import write_json

    refuse_networked(run, "worth")
    table = None if costs is None else read_costs(costs)
    blueprint, data, federation = reopen_with_data(run)
    found = measure_worth(blueprint, data, federation, part=part, costs=table, num_orders=orders)
    write_json(run / WORTH, found)
    if as_json:
        say(json.dumps(found, indent=2))
        return
    say(
        f"{found['metric']} on the {part} part ({found['num_samples']} samples): "
        f"{found['nothing']:.4f} without any block, {found['total']:.4f} with all"
    )
    _table(found)
    if found["by_costs"]:
        say("by costs (gain per sample)")
        _table(found["by_costs"])
    say(f"written to {run / WORTH}")


def _table(found: dict[str, Any]) -> None:
    for item in found["parties"]:
        interval = f"{item['low']:+.4f} to {item['high']:+.4f}"
        say(f"{item['party']:<16} {item['value']:+.4f}   (95 %: {interval})")
    if found["num_orders"]:
        say(f"sampled: {found['num_orders']} orders of the parties")
