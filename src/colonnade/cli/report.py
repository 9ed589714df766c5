"""``colonnade report``: write the HTML page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import RunDirectory, say

__all__ = ["report"]


def report(
    run: RunDirectory,
    out: Annotated[
        Path | None, typer.Option(help="The page; report.html in the run directory if not given.")
    ] = None,
) -> None:
    """Write a self-contained HTML page about a run, also while it is still going.

    Example:  colonnade report runs/credit
    """
    from colonnade.report import write_report

    say(f"report in {write_report(run, out)}")
