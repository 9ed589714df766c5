"""``colonnade federation audit``, ``backup`` and ``restore``: a federation's record, kept safe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import AsJson, require_network, say

__all__ = ["audit", "backup", "restore"]

Directory = Annotated[Path, typer.Argument(help="The federation's directory.")]

# Of an entry of the record: what stands elsewhere in its line, or is for machines.
_UNTOLD = ("entry", "time", "run", "event", "hash")


def audit(
    directory: Directory,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check that no entry was changed or is missing.")
    ] = False,
    acknowledge: Annotated[
        bool,
        typer.Option("--acknowledge", help="Take note that a party has seen entries not here."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show who was invited, enrolled, admitted, refused, renewed and revoked, and every session.

    Example:  colonnade federation audit bank-federation --verify
    """
    require_network()
    from colonnade.federate.federation_directory import FederationDirectory

    record = FederationDirectory(directory).record
    if acknowledge:
        is_noted = record.acknowledge()
        say("noted: entries are missing" if is_noted else "no party has seen entries not here")
        return
    if verify:
        count, fault = record.verify()
        if fault is None:
            say(f"{count} entries hold")
            return
        say(f"entry {fault.entry}: {fault.what} ({count} entries hold)")
        raise typer.Exit(1)
    for entry in record.entries():
        if as_json:
            say(json.dumps(entry))
            continue
        told = {key: item for key, item in entry.items() if key not in _UNTOLD}
        fields = ", ".join(f"{key} {item}" for key, item in told.items())
        say(f"{entry['time']} {entry['event']}: {fields}")


def backup(
    directory: Directory,
    out: Annotated[Path, typer.Option(help="The file to write.")],
    run: Annotated[
        list[Path] | None, typer.Option(help="A run directory to put in; may be repeated.")
    ] = None,
) -> None:
    """Write a federation's keys, register, record, alignments and runs into one file.

    Example:  colonnade federation backup bank-federation --out bank.backup --run runs/credit
    """
    require_network()
    from colonnade.federate.backup import back_up

    made = back_up(directory, out, runs=run or ())
    say(f"{len(made.files)} files in {out}; the record has {made.entries} entries")
    say("it holds the federation's keys: keep it where nobody else can read it")


def restore(
    file: Annotated[Path, typer.Argument(help="A backup.")],
    directory: Directory,
    runs: Annotated[Path | None, typer.Option(help="Where the runs of the backup go.")] = None,
    revoked: Annotated[
        list[str] | None,
        typer.Option(help="A party that was revoked since the backup; may be repeated."),
    ] = None,
    nobody_revoked: Annotated[
        bool, typer.Option("--nobody-revoked", help="That nobody was revoked since the backup.")
    ] = False,
) -> None:
    """Put a backup back; it never forgets a revocation, and leaves alone what is newer.

    Example:  colonnade federation restore bank.backup bank-federation --nobody-revoked
    """
    require_network()
    from colonnade.federate.backup import restore as put_back

    done = put_back(
        file, directory, runs=runs, revoked=revoked or (), nobody_revoked=nobody_revoked
    )
    made = done.manifest
    say(f"backup of {made.made[:16]} UTC, {made.entries} entries, in {directory}")
    if done.kept:
        say("what is here is as new or newer: only missing files were put back")
    for name in done.runs:
        say(f"run {name}: put back")
    for name in done.runs_there:
        say(f"run {name}: is there already, left alone")
    for name in done.revoked:
        say(f"'{name}' is revoked")
    if done.is_whole:
        say("parties that have seen more of the record will say so when they connect; then see")
        say(f"colonnade federation audit {directory} --acknowledge")
