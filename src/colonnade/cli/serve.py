"""``colonnade serve``: predictions of a run over HTTP, from one process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import RunDirectory, say
from colonnade.cli.serve_options import ListeningOptions, serving
from colonnade.core.errors import ConfigError

__all__ = ["serve"]


@serving(caches=True)
def serve(
    run: RunDirectory,
    features: Annotated[
        list[str],
        typer.Option(
            help="A party's columns by id, read again when they change; once per party.",
            metavar="PARTY=FILE",
        ),
    ],
    listening: ListeningOptions,
) -> None:
    """Serve a run's predictions over HTTP, with every party's columns in this process.

    Example:  colonnade serve runs/credit --features bank=bank.csv --features telco=telco.csv
    """
    from colonnade.serve.run_serving import ServeSettings, serve_run

    files = {}
    for item in features:
        name, separator, file = item.partition("=")
        if not separator:
            raise ConfigError(f"--features {item}: write it as PARTY=FILE")
        files[name] = Path(file)
    settings = ServeSettings(**listening)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    serve_run(run, files, settings, started=lambda address: say(f"serving at {address}"))
