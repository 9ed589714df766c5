"""The command that brings a directory of an older Colonnade up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["migrate"]


def migrate(
    directory: Annotated[
        Path,
        typer.Argument(help="A run's, a party's or a federation's directory.", show_default=False),
    ],
) -> None:
    """Bring a directory that an older Colonnade wrote to the format of this one.

    Stop whatever uses the directory first. Once more on the same directory does nothing.

    Example:  colonnade migrate runs/credit
    """
    from colonnade.run.migration import migrate as migrate_directory

    kind, before, written = migrate_directory(directory)
    say = Console(soft_wrap=True, highlight=False, markup=False).print
    if before == kind.newest:
        say(f"{directory}: a {kind.name} of format {before} already; nothing to do")
        return
    files = ", ".join(str(path.relative_to(directory)) for path in written)
    say(f"{directory}: a {kind.name} of format {before} is now of format {kind.newest}")
    say(f"written: {files}")
