"""``colonnade demo``: shows in under a minute what a federation gains, without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="Where to leave the runs and the report.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train three owners of columns together, and show what that is worth.

    Example:  colonnade demo --out /tmp/demo
    """
    from colonnade.cli.showcase import show

    show(out)
