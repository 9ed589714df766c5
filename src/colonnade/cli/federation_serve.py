"""``colonnade federation serve``: predictions of a federation's run over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import Log, RunDirectory, require_network, say
from colonnade.cli.serve_options import ListeningOptions, serving

__all__ = ["serve"]


@serving(caches=True)
def serve(
    directory: Annotated[
        Path, typer.Argument(help="The federation's directory.", show_default=False)
    ],
    run: RunDirectory,
    ids: Annotated[
        Path, typer.Option(help="A table with the ids that may be asked for (CSV, Parquet).")
    ],
    listening: ListeningOptions,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for parties that are not connected.", min=0.0)
    ] = 30.0,
    log: Log = None,
) -> None:
    """Serve a run's predictions over HTTP; every party answers for its own columns.

    A method that can do without blocks answers at the deadline with whoever came.

    Example:  colonnade federation serve bank-federation runs/credit --ids customers.csv
    """
    require_network()
    from colonnade.fabrics.grpc.hub_lane import HubLane
    from colonnade.federate.agent_lanes import SERVING_LANES
    from colonnade.federate.federation_directory import FederationDirectory
    from colonnade.federate.logs import log_to
    from colonnade.federate.networked_runs import networked_links
    from colonnade.federate.opened_hub import open_hub
    from colonnade.serve.federation_serving import FederationLoader, serve_federation
    from colonnade.serve.run_serving import ServeSettings

    settings = ServeSettings(**listening)
    links = networked_links(run)
    log_to(log)
    has_lanes = FederationDirectory(directory).settings.serving is not None
    with open_hub(directory, links=links, serves=True, enrols=not has_lanes) as hub:
        lanes = [HubLane(hub, number) for number in (SERVING_LANES if has_lanes else (0,))]
        loader = FederationLoader(lanes, directory, run, ids, settings, wait_seconds=wait, say=say)
        serve_federation(loader, settings, started=lambda address: say(f"serving at {address}"))
