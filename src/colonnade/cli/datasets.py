"""``colonnade datasets``: list the named data sets."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from colonnade.cli.console import AsJson, say

__all__ = ["datasets"]


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
        say(json.dumps(rows, indent=2))
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
