"""The Flower app in Flower's simulation: one process with the label holder, actors for parties."""

from __future__ import annotations

from flwr.simulation import run_simulation

from flower_app import holder_app, party_app
from halves import party_names

if __name__ == "__main__":
    run_simulation(
        server_app=holder_app,
        client_app=party_app,
        num_supernodes=len(party_names()),
        backend_config={
            # A core per party that computes.
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "include_dashboard": False,
                "object_store_memory": 200_000_000,
            },
        },
    )
