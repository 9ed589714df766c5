"""Commands that list what there is."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["datasets", "methods"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def methods(as_json: AsJson = False) -> None:
    """List the methods and what each one tolerates.

    Example:  colonnade methods --json
    """
    from colonnade.methods import METHODS

    infos = [method.info for method in METHODS.values()]
    if as_json:
        _say(json.dumps([asdict(info) for info in infos], indent=2))
        return
    flags = ("slow\nparties", "missing\nblocks", "different\nmodels", "private\nlabels")
    table = Table("method", *flags, "what it does")
    for info in infos:
        tolerated = (
            info.tolerates_slow,
            info.tolerates_missing,
            info.heterogeneous_models,
            info.private_labels,
        )
        answers = ("yes" if item else "no" for item in tolerated)
        table.add_row(info.name, *answers, f"{info.summary} [dim]({info.paper})[/dim]")
    Console().print(table)


def datasets(as_json: AsJson = False) -> None:
    """List the named data sets, and which are on this machine.

    Example:  colonnade datasets
    """
    from colonnade.data.datasets import DATASETS, is_available

    rows = [
        {
            "name": entry.name,
            "available": is_available(entry.name),
            "task": entry.task,
            "samples": entry.num_samples,
            "parties": list(entry.parties),
            "summary": entry.summary,
            "source": entry.source,
        }
        for entry in DATASETS.values()
    ]
    if as_json:
        _say(json.dumps(rows, indent=2))
        return
    table = Table("data set", "here", "task", "samples", "parties", "what it is")
    for row in rows:
        table.add_row(
            str(row["name"]),
            "yes" if row["available"] else "no",
            str(row["task"]),
            str(row["samples"]),
            ", ".join(row["parties"]),  # type: ignore[arg-type]
            str(row["summary"]),
        )
    Console().print(table)


def _say(text: str) -> None:
    Console(soft_wrap=True, highlight=False, markup=False).print(text)
