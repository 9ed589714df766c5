"""``colonnade methods``: list the methods and what each one tolerates."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from colonnade.cli.console import AsJson, say

__all__ = ["methods"]


def methods(as_json: AsJson = False) -> None:
    """List the methods and what each one tolerates.

    Example:  colonnade methods --json
    """
    from colonnade.methods import METHODS

    infos = [method.info for method in METHODS.values()]
    if as_json:
        say(json.dumps([asdict(info) for info in infos], indent=2))
        return
    flags = ("slow\nparties", "missing\nblocks", "different\nmodels")
    table = Table("method", *flags, "what it does")
    for info in infos:
        tolerated = (
            info.tolerates_slow,
            info.tolerates_missing,
            info.heterogeneous_models,
        )
        answers = ("yes" if item else "no" for item in tolerated)
        table.add_row(info.name, *answers, f"{info.summary} [dim]({info.paper})[/dim]")
    Console().print(table)
    say("no method hides training labels from parties: gradients tell them (docs/privacy.md)")
