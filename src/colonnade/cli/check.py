"""``colonnade check``: look at a run's data and settings before it trains."""

from __future__ import annotations

import typer

from colonnade.cli.console import Config, say

__all__ = ["check"]


def check(config: Config) -> None:
    """Look at a run before it trains: how columns are understood, doubts, mistakes, the cost.

    Nothing is written. The exit code is 1 if training would end in an error.

    Example:  colonnade check credit.toml
    """
    from colonnade.run.check import check as check_run
    from colonnade.run.spec import read_spec

    found = check_run(read_spec(config))
    for line in found.lines:
        say(line)
    for warning in found.warnings:
        say(f"warning: {warning}")
    for error in found.errors:
        say(f"error: {error}")
    if found.errors:
        raise typer.Exit(1)
    say(f"ready: colonnade train {config}")
