"""Commands about the parties of a trained run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["remove"]


def remove(
    run: Annotated[Path, typer.Argument(help="The run's directory.", show_default=False)],
    name: Annotated[str, typer.Argument(help="The party that leaves.", show_default=False)],
    erase: Annotated[
        bool,
        typer.Option(
            "--erase", help="Delete its weights and statistics in the run directory as well."
        ),
    ] = False,
) -> None:
    """Let a party leave a trained run for good; the rest predict on.

    Example:  colonnade party remove runs/credit telco
    """
    from colonnade.run.leaving import remove_party

    stay = remove_party(run, name, erase=erase)
    kept = "its files there are deleted" if erase else "its files there are left alone"
    how_well = f"colonnade evaluate {run} says how well"
    Console(soft_wrap=True, highlight=False, markup=False).print(
        f"{name} left {run}, {kept}; {', '.join(stay)} predict on ({how_well})"
    )
