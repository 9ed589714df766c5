"""``colonnade report``: write the HTML page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import say

__all__ = ["report"]


def report(
    runs: Annotated[list[Path], typer.Argument(help="The run's directory, or several.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page; if not given, report.html in the run directory, or comparison.html "
            "here for several."
        ),
    ] = None,
) -> None:
    """Write a self-contained HTML page about a run, also while it is still going.

    Several runs are compared on one page: colonnade report runs/splitnn runs/laser

    Example:  colonnade report runs/credit
    """
    from colonnade.report import compare_runs, write_report

    if len(runs) == 1:
        say(f"report in {write_report(runs[0], out)}")
    else:
        say(f"comparison in {compare_runs(runs, out or Path('comparison.html'))}")
