"""``colonnade party serve``: predictions of a party's own whole model over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import require_network, say
from colonnade.cli.serve_options import ListeningOptions, serving
from colonnade.core.errors import ConfigError

__all__ = ["serve"]


@serving(caches=False)
def serve(
    home: Annotated[Path, typer.Argument(help="The party's directory.", show_default=False)],
    run: Annotated[str, typer.Argument(help="The run, as 'party runs' names it.")],
    listening: ListeningOptions,
    classes: Annotated[
        str | None, typer.Option(help="The labels in sorted order, with commas: no,yes")
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="For a number: mean and deviation of the training labels.",
            metavar="MEAN,DEVIATION",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Weights by their tag; the newest if not given.")
    ] = None,
) -> None:
    """Serve a party's own model of a run over HTTP, from its own table; nobody else is asked.

    For methods that leave every party with a whole model: LASER with heads at the parties, EASTER.
    The party's policy, account and ledger apply.

    Example:  colonnade party serve telco laser-2026-11-18 --classes no,yes
    """
    require_network()
    from colonnade.federate.logs import log_to
    from colonnade.federate.party_home import read_party
    from colonnade.federate.runs_at_party import find_run
    from colonnade.serve.party_serving import PartyLoader, serve_party
    from colonnade.serve.run_serving import ServeSettings

    log_to(party=read_party(home).name)
    found = find_run(home, run)
    settings = ServeSettings(**listening)
    loader = PartyLoader(
        home,
        found.place,
        classes=() if classes is None else tuple(classes.split(",")),
        scale=None if scale is None else _scale(scale),
        checkpoint=checkpoint,
    )
    chosen = checkpoint or (found.checkpoints[-1] if found.checkpoints else None)
    if chosen is not None:
        kept = ", ".join(found.checkpoints)
        say(f"{found.name}: weights of {chosen} (kept here: {kept})")
    serve_party(loader, settings, started=lambda address: say(f"serving at {address}"))


def _scale(text: str) -> tuple[float, float]:
    try:
        mean, deviation = (float(item) for item in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--scale {text}: two numbers, MEAN,DEVIATION") from error
    if not deviation > 0:
        raise ConfigError(f"--scale {text}: the deviation is above 0")
    return mean, deviation
