"""``colonnade watch``: the live page of a run, while it goes or afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import RunDirectory, say
from colonnade.core.errors import StorageError

__all__ = ["Live", "live_page", "watch"]

Live = Annotated[
    bool, typer.Option("--live", help="Serve a page that shows the run while it goes.")
]


def watch(
    run: RunDirectory,
    port: Annotated[
        int, typer.Option(help="The port; any that is free if 0.", min=0, max=65535)
    ] = 0,
) -> None:
    """Serve a page that shows a run while it goes, or afterwards; until Ctrl-C.

    The page is at an address of this machine that nobody else can guess.

    Example:  colonnade watch runs/credit
    """
    if not run.is_dir():
        raise StorageError(f"{run}: no such directory; give that of a run")
    with live_page(run, wanted=True, port=port):
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            say("the page is closed; the run goes on")


@contextmanager
def live_page(run: Path, *, wanted: bool, port: int = 0) -> Iterator[None]:
    """Serve the live page of a run directory, if wanted, and say where.

    The directory may come later.
    """
    if not wanted:
        yield
        return
    from colonnade.report.live_service import LiveService

    service = LiveService(run, port=port)
    try:
        say(f"live page: {service.url}")
        yield
    finally:
        service.close()
