"""The command that reads and verifies what parties wrote down of what left them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, StorageError

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
    from colonnade.protect.ledger import read_ledger, verify_ledger
    from colonnade.run.storage import read_json

    places = _places(run)
    if party is not None and party not in places:
        raise ConfigError(f"--party {party}: no ledger of it here{nearest(party, list(places))}")
    chosen = sorted(places) if party is None else [party]
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if action == "show":
        for name in chosen:
            for entry in read_ledger(places[name]):
                console.print(json.dumps(entry) if as_json else _line(name, entry))
        return
    faults = 0
    anchors = {}
    if (run / "checkpoint.json").exists():
        anchors = read_json(run / "checkpoint.json").get("ledgers", {})
    for name in chosen:
        anchor = {"checkpoint.json": anchors[name]} if name in anchors else {}
        count, fault = verify_ledger(places[name], anchor)
        faults += fault is not None
        verdict = f"{count} entries hold"
        if fault is not None:
            verdict = f"entry {fault.entry}: {fault.what} ({count} entries hold)"
        console.print(f"{name}: {verdict}")
    if faults:
        raise typer.Exit(1)


def _places(run: Path) -> dict[str, Path]:
    """Where each party's ledger is: in a run's directory, or in an agent's own directory of a run.

    Of a run between organisations the hub has its own party's only; the others have theirs.
    """
    from colonnade.run.storage import party_directory, read_json

    if (run / "ledger.jsonl").exists():
        return {run.resolve().parents[1].name: run}
    summary = read_json(run / "summary.json") if (run / "summary.json").exists() else {}
    names = summary.get("parties")
    if names is None or summary.get("fabric") == "grpc":
        names = [read_json(file)["party"] for file in run.glob("parties/*/preparation.json")]
    if not names:
        raise StorageError(
            f"{run}: no party's files are here; give a run directory, or at a party between "
            "organisations its own one, such as telco/runs/RUN"
        )
    return {name: party_directory(run, name) for name in names}


def _line(party: str, entry: dict[str, object]) -> str:
    rest = {
        key: value
        for key, value in entry.items()
        if key not in ("entry", "time", "run", "event", "hash", "party") and value is not None
    }
    told = ", ".join(f"{key} {value}" for key, value in rest.items())
    return f"{entry.get('time')} {party} {entry.get('event')}: {told}"
