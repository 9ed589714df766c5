"""``colonnade ledger``: show or verify each party's ledger of what left it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from colonnade.cli.console import RunDirectory, plain_console
from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, StorageError

__all__ = ["ledger"]

# Whose ledger it is that is no party's: of what went down to the parties.
_OWN = "label holder"


def ledger(
    action: Annotated[
        Literal["show", "verify"], typer.Argument(help="show the entries, or verify them.")
    ],
    run: RunDirectory,
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
    console = plain_console()
    if action == "show":
        for name in chosen:
            for entry in read_ledger(places[name]):
                console.print(json.dumps(entry) if as_json else _line(name, entry))
        return
    faults = 0
    anchors = {}
    if (run / "checkpoint.json").exists():
        named = read_json(run / "checkpoint.json")
        anchors = {**named.get("ledgers", {}), _OWN: named.get("own_ledger")}
    for name in chosen:
        anchor = {"checkpoint.json": anchors[name]} if anchors.get(name) else {}
        count, fault = verify_ledger(places[name], anchor)
        faults += fault is not None
        verdict = f"{count} entries hold"
        if fault is not None:
            verdict = f"entry {fault.entry}: {fault.what} ({count} entries hold)"
        console.print(f"{name}: {verdict}")
    if faults:
        raise typer.Exit(1)


def _places(run: Path) -> dict[str, Path]:
    """Each party's directory with its ledger, in a run's directory or an agent's own.

    Of a run between organisations the hub has only its own party's; the others have theirs.
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
    own = {_OWN: run / "label_holder"} if (run / "label_holder/ledger.jsonl").exists() else {}
    return {name: party_directory(run, name) for name in names} | own


def _line(party: str, entry: dict[str, object]) -> str:
    rest = {
        key: value
        for key, value in entry.items()
        if key not in ("entry", "time", "run", "event", "hash", "party") and value is not None
    }
    told = ", ".join(f"{key} {value}" for key, value in rest.items())
    return f"{entry.get('time')} {party} {entry.get('event')}: {told}"
