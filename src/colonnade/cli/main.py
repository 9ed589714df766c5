"""``colonnade``: every command has --help with an example; mistakes end in one clear line."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console

from colonnade.cli import (
    aligning,
    auditing,
    demo,
    federating,
    listing,
    measuring,
    parting,
    reproducing,
    training,
)
from colonnade.core.errors import ColonnadeError

__all__ = ["app", "main"]

app = typer.Typer(
    name="colonnade",
    help="Vertical federated learning: columns from many owners, one model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("demo")(demo.demo)
app.command("train")(training.train)
app.command("evaluate")(training.evaluate)
app.command("predict")(training.predict)
app.command("report")(training.report)
app.command("ledger")(auditing.ledger)
app.command("methods")(listing.methods)
app.command("datasets")(listing.datasets)
app.command("align")(aligning.align)
app.command("bench")(measuring.bench)
app.command("reproduce")(reproducing.reproduce)
app.add_typer(federating.federation, name="federation")
federating.party.command("remove")(parting.remove)
app.add_typer(federating.party, name="party")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"colonnade {version('colonnade')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback when something goes wrong.")
    ] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Vertical federated learning: columns from many owners, one model."""
    if debug:
        os.environ["COLONNADE_DEBUG"] = "1"


def main() -> None:
    """Run the command line; errors become one line unless --debug asks for more."""
    # --debug may stand anywhere: people add it to the end of a command that failed.
    arguments = sys.argv[1:]
    if "--debug" in arguments:
        arguments.remove("--debug")
        os.environ["COLONNADE_DEBUG"] = "1"
    try:
        app(args=arguments, prog_name="colonnade")
    except KeyboardInterrupt:
        _say("stopped")
        sys.exit(130)
    except Exception as error:
        if os.environ.get("COLONNADE_DEBUG"):
            traceback.print_exc()
        elif isinstance(error, ColonnadeError):
            _say(f"error: {error}")
        else:
            _say(f"internal error: {type(error).__name__}: {error} (--debug shows the traceback)")
        sys.exit(1)


def _say(line: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(line)
