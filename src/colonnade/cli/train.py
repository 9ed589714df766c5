"""``colonnade train``: train as a TOML file says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.console import Config, NewRun, Resume, say
from colonnade.cli.progress import human_bytes, say_ending, watching
from colonnade.cli.watch import Live, live_page

if TYPE_CHECKING:
    from colonnade.run.result import Result
    from colonnade.run.spec import RunSpec

__all__ = ["train"]


def train(
    config: Config,
    out: NewRun = None,
    resume: Resume = False,
    start: Annotated[
        Path | None,
        typer.Option("--from", help="Begin with the weights of this run; new parties join it."),
    ] = None,
    no_alone: Annotated[
        bool,
        typer.Option("--no-alone", help="Don't train the label holder alone to compare with."),
    ] = False,
    live: Live = False,
) -> None:
    """Train as a TOML file says, into a run directory.

    Ctrl-C stops after the exchange under way; --resume goes on, bit for bit as if uninterrupted.

    Example:  colonnade train credit.toml --out runs/credit
    """
    from colonnade.run.engine import train as train_run
    from colonnade.run.spec import read_spec

    spec = read_spec(config)
    if start is not None:
        spec = replace(spec, start=replace(spec.start, run=start.resolve()))
    directory = out or Path("runs") / config.stem
    with live_page(directory, wanted=live):
        with watching(spec.method.info.name) as lines:
            result = train_run(spec, directory=directory, resume=resume, watcher=lines, tell=_doubt)
        _say_result(spec, result, directory, alone=not no_alone)


def _say_result(spec: RunSpec, result: Result, directory: Path, *, alone: bool) -> None:
    from colonnade.run.blueprint_files import write_card

    summary = result.summary
    say_ending(summary, directory)
    known = sum(summary["num_samples"].values())
    left_out = {name: count - known for name, count in summary["num_rows"].items() if count > known}
    if left_out:
        counts = ", ".join(f"{name} {count}" for name, count in left_out.items())
        tolerant = spec.method.info.tolerates_missing
        why = "no block of them is there" if tolerant else "not everybody knows them"
        say(f"left out, because {why}: {counts} (rows by owner)")
    for warning in summary["warnings"]:
        say(f"warning: {warning}")
    card = result.card(alone=alone)
    if card is not None:
        write_card(directory, card)
        for line in card.lines():
            say(line)
    moved = sum(summary["bytes_up"].values()) + sum(summary["bytes_down"].values())
    say(f"{result!r}: {summary['exchanges']} exchanges, {human_bytes(moved)}; in {directory}")


def _doubt(what: str) -> None:
    say(f"warning: {what}")
