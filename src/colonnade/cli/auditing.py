"""The command that reads and verifies what parties wrote down of what left them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, StorageError
from colonnade.protect.ledger import read_ledger, verify_ledger
from colonnade.run.storage import party_directory, read_json

__all__ = ["ledger"]


def ledger(
    action: Annotated[
        Literal["show", "verify"], typer.Argument(help="show the entries, or verify them.")
    ],
    run: Annotated[Path, typer.Argument(help="The run's directory.", show_default=False)],
    party: Annotated[str | None, typer.Option(help="Only this party's; all if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Show what left each party of a run, or verify that its ledger is as it was written.

    Example:  colonnade ledger verify runs/credit
    """
    names = read_json(run / "summary.json")["parties"] if (run / "summary.json").exists() else None
    if names is None:
        names = [read_json(file)["party"] for file in run.glob("parties/*/preparation.json")]
    if not names:
        raise StorageError(f"{run}: no party's files are here; give a run directory")
    if party is not None and party not in names:
        raise ConfigError(f"--party {party}: no such party{nearest(party, names)}")
    chosen = sorted(names) if party is None else [party]
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if action == "show":
        for name in chosen:
            for entry in read_ledger(party_directory(run, name)):
                console.print(json.dumps(entry) if as_json else _line(name, entry))
        return
    faults = 0
    anchors = {}
    if (run / "checkpoint.json").exists():
        anchors = read_json(run / "checkpoint.json").get("ledgers", {})
    for name in chosen:
        anchor = {"checkpoint.json": anchors[name]} if name in anchors else {}
        count, fault = verify_ledger(party_directory(run, name), anchor)
        faults += fault is not None
        verdict = f"{count} entries hold"
        if fault is not None:
            verdict = f"entry {fault.entry}: {fault.what} ({count} entries hold)"
        console.print(f"{name}: {verdict}")
    if faults:
        raise typer.Exit(1)


def _line(party: str, entry: dict[str, object]) -> str:
    rest = {
        key: value
        for key, value in entry.items()
        if key not in ("entry", "time", "run", "event", "hash", "party") and value is not None
    }
    told = ", ".join(f"{key} {value}" for key, value in rest.items())
    return f"{entry.get('time')} {party} {entry.get('event')}: {told}"
