"""``colonnade``: all commands in one application; errors end in one line."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from colonnade.cli.align import align
from colonnade.cli.bench import bench
from colonnade.cli.check import check
from colonnade.cli.console import plain_console
from colonnade.cli.datasets import datasets
from colonnade.cli.demo import demo
from colonnade.cli.evaluate import evaluate
from colonnade.cli.federation import federation
from colonnade.cli.init import init
from colonnade.cli.keys import keys
from colonnade.cli.ledger import ledger
from colonnade.cli.methods import methods
from colonnade.cli.migrate import migrate
from colonnade.cli.party import party
from colonnade.cli.predict import predict
from colonnade.cli.profile import profile
from colonnade.cli.report import report
from colonnade.cli.reproduce import reproduce
from colonnade.cli.runs import runs
from colonnade.cli.serve import serve
from colonnade.cli.train import train
from colonnade.cli.watch import watch
from colonnade.cli.worth import worth
from colonnade.core.errors import ColonnadeError
from colonnade.core.printable import printable

__all__ = ["app", "main"]

app = typer.Typer(
    name="colonnade",
    help="Vertical federated learning: columns from many owners, one model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_COMMANDS: tuple[Callable[..., None], ...] = (
    *(demo, init, check, train, evaluate, predict, worth, serve, watch, report, ledger, migrate),
    *(profile, methods, datasets, align, bench, reproduce),
)
for command in _COMMANDS:
    app.command(command.__name__)(command)
app.add_typer(federation, name="federation")
app.add_typer(party, name="party")
app.add_typer(keys, name="keys")
app.add_typer(runs, name="runs")


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
            said = printable(str(error))
            _say(f"internal error: {type(error).__name__}: {said} (--debug shows the traceback)")
        sys.exit(1)


def _say(line: str) -> None:
    plain_console(stderr=True).print(line)
