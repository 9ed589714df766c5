"""Lines for the terminal, and arguments that several commands share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from colonnade.core.errors import ConfigError
from colonnade.core.extras import missing_package
from colonnade.core.printable import printable

__all__ = [
    "AsJson",
    "Config",
    "Log",
    "NewRun",
    "Resume",
    "RunDirectory",
    "plain_console",
    "refuse_networked",
    "require_network",
    "say",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Config = Annotated[Path, typer.Argument(help="A TOML file that describes the run.")]
Log = Annotated[
    Path | None,
    typer.Option("--log", help="Write the log there, not to standard error; old parts are let go."),
]
NewRun = Annotated[
    Path | None,
    typer.Option("--out", help="The run's directory; runs/NAME_OF_CONFIG if not given."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on after the last checkpoint.")]


def _tagged(run: Path) -> Path:
    """A run by a tag: the directory of runs, and the tag in place of a run's name."""
    if run.exists() or not (run.parent / "tags.json").is_file():
        return run
    from colonnade.run.run_shelf import RunShelf

    return RunShelf(run.parent).entry(run.name).place


RunDirectory = Annotated[
    Path,
    typer.Argument(
        help="The run's directory; a tag may stand for its name.",
        show_default=False,
        callback=_tagged,
    ),
]


class PlainConsole(Console):
    """Prints lines as they are: no wrapping, colours or markup, and nothing a terminal obeys."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=True, highlight=False, markup=False)

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print texts; their own line ends stay."""
        shown = [
            printable(item, most=1_000_000, keep="\n") if isinstance(item, str) else item
            for item in objects
        ]
        super().print(*shown, **settings)


def plain_console(*, stderr: bool = False) -> Console:
    """A console that prints lines as they are: no wrapping, colours or markup."""
    return PlainConsole(stderr=stderr)


def say(line: str) -> None:
    """Print one line as it is."""
    plain_console().print(line)


def require_network() -> None:
    """Refuse a command whose packages are not installed, with the remedy."""
    needed = ("grpc", "cryptography", "prometheus_client")
    absent = [name for name in needed if not importlib.util.find_spec(name)]
    if absent:
        raise missing_package("this command", absent[0], "network")


def refuse_networked(run: Path, command: str, further: str = "") -> None:
    """Refuse a command on a run between organisations; name the one that reaches its parties."""
    from colonnade.run.blueprint_files import read_blueprint

    away = read_blueprint(run).elsewhere
    if away:
        options = f" {further}" if further else ""
        raise ConfigError(
            f"{run}: {', '.join(away)} took part over the network, and their columns and weights "
            f"are there; use: colonnade federation {command} FEDERATION {run}{options}"
        )
