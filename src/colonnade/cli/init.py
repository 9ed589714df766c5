"""``colonnade init``: write a run's TOML file from the parties' tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import say
from colonnade.core.errors import ConfigError
from colonnade.files import write_atomically

__all__ = ["init"]


def init(
    files: Annotated[list[Path], typer.Argument(help="One table per party: CSV or Parquet.")],
    label: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="The column with the sample ids.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("run.toml"),
) -> None:
    """Read the tables of all parties and write a commented TOML file that trains.

    Example:  colonnade init bank.csv telco.csv --label defaulted --out credit.toml
    """
    from colonnade.run.draft import draft

    if out.exists():
        raise ConfigError(f"{out}: is there already; choose another file with --out")
    made = draft(
        [file.expanduser() for file in files], label=label, id_column=id_column, base=out.parent
    )
    write_atomically(out, made.text.encode())
    columns = ", ".join(f"{name} by '{column}'" for name, column in made.ids.items())
    say(f"ids: {columns}")
    say(f"label: '{made.label}' of '{made.label_holder}'")
    say(f"{out} is written; next: colonnade check {out}")
