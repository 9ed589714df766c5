"""``colonnade profile``: a run's parties and links, as settings of the simulated clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import RunDirectory, say

__all__ = ["profile"]


def profile(
    run: RunDirectory,
    out: Annotated[Path, typer.Option(help="The TOML file to write.")] = Path("profiles.toml"),
) -> None:
    """Measure each party of a run between organisations: its steps, its link, the label holder.

    The file has the table [fabric] of a run that would take as long on the simulated clock.

    Example:  colonnade profile runs/credit --out profiles.toml
    """
    from colonnade.files import write_atomically
    from colonnade.run.measured_profile import measured_profile, profile_toml

    found = measured_profile(run)
    write_atomically(out, profile_toml(found).encode())
    say(f"profiles of {len(found['party'])} parties in {out}")
