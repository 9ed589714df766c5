"""SplitNN between processes: our network fabric with mutual TLS against torch.distributed without.

Both sides have one process per party on this machine, alive at the same time. They take turns of
several exchanges; a turn ends when every party is done.
"""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from colonnade.bench.gloo import GlooHolder, serve_gloo
from colonnade.bench.subjects import Shape, exchange, make_federation
from colonnade.bench.timing import interleaved
from colonnade.core.federation import Federation
from colonnade.fabrics.grpc.agent import Agent
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.identity import Identity
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from colonnade.federate.authority import Authority
from colonnade.federate.certificates import (
    Role,
    certificate_pem,
    key_pem,
    load_certificate,
    name_of,
    new_key,
    now,
)
from colonnade.run.directory import local_parties

__all__ = ["CASES", "bench_network", "identities_of", "over_tls", "take_turn"]

CASES = {
    "128x64": Shape(num_parties=4),
    # 4096 x 64 numbers of four bytes.
    "1MB": Shape(num_parties=4, batch_size=4096, num_samples=8192),
}
_EXCHANGES_PER_TURN = {"128x64": 50, "1MB": 5}


def bench_network(fast: bool) -> list[dict[str, Any]]:
    """Rows: 128 x 64 numbers per message, and 1 MB per message."""
    return [_row(case, shape, 5 if fast else 20) for case, shape in CASES.items()]


def _row(case: str, shape: Shape, runs: int) -> dict[str, Any]:
    per_turn = _EXCHANGES_PER_TURN[case]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory, over_tls(shape) as ours:
        meeting = Path(directory) / "meeting"
        processes: list[BaseProcess] = [
            context.Process(target=serve_gloo, args=(shape, rank, str(meeting)), daemon=True)
            for rank in range(1, shape.num_parties + 1)
        ]
        for process in processes:
            process.start()
        theirs = GlooHolder(make_federation(shape), shape, meeting)
        try:
            mine, against = interleaved(
                lambda turn: take_turn(ours, turn * per_turn, per_turn),
                lambda turn: theirs.steps(turn * per_turn, per_turn),
                runs=runs,
            )
        finally:
            theirs.close()
            _end(processes)
    return {
        "case": case,
        "ratio": against / mine,
        "unit": "our SplitNN exchanges per second / theirs; 4 party processes, loopback",
        "against": "torch.distributed (gloo), same arithmetic, without TLS",
        "runs": runs,
        "per_second": per_turn / mine,
        "per_second_against": per_turn / against,
    }


@contextmanager
def over_tls(shape: Shape) -> Iterator[Federation]:
    """A federation with a process per party, linked by mutual TLS on loopback."""
    hub_identity, identities = identities_of(shape)
    context = multiprocessing.get_context("spawn")
    hub = Hub(identity=hub_identity, admit=_admit)
    processes: list[BaseProcess] = [
        context.Process(target=_serve, args=(shape, identity, hub.port), daemon=True)
        for identity in identities
    ]
    for process in processes:
        process.start()
    local = make_federation(shape)
    fabric = GrpcFabric(Session(hub, local.fabric.names, purpose="bench"))
    try:
        yield Federation(local.method, local.holder, fabric)
    finally:
        fabric.close()
        hub.close()
        _end(processes)


def _end(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.terminate()
        process.join()


def take_turn(federation: Federation, first: int, count: int) -> None:
    """Run ``count`` exchanges; returns when every party is done."""
    for number in range(first, first + count):
        exchange(federation, number)
    federation.fabric.run(federation.parties.settle())


def _serve(shape: Shape, identity: Identity, port: int) -> None:
    torch.set_num_threads(1)
    # The hub closes before the parties do: their warnings about it would be noise.
    logging.getLogger("colonnade").setLevel(logging.ERROR)
    party = local_parties(make_federation(shape))[identity.name]
    agent = Agent(
        identity=identity, address=f"127.0.0.1:{port}", respondent_for=lambda purpose: party
    )
    agent.serve()


def identities_of(shape: Shape) -> tuple[Identity, list[Identity]]:
    """The identity of the hub and of every party, from an authority for this measurement alone."""
    moment = now()
    authority = Authority.create("bench", moment=moment)

    def identity(name: str, role: Role) -> Identity:
        key = new_key()
        hosts = ("127.0.0.1",) if role is Role.HUB else ()
        certificate = authority.issue(
            name, key.public_key(), role=role, moment=moment, days=1, hosts=hosts
        )
        return Identity(
            name=name,
            authority=authority.certificate,
            certificate=certificate_pem(certificate),
            key=key_pem(key),
        )

    names = [f"party_{number:02d}" for number in range(shape.num_parties)]
    return identity("hub", Role.HUB), [identity(name, Role.PARTY) for name in names]


def _admit(certificate: bytes) -> str:
    return name_of(load_certificate(certificate, "the certificate that was shown"))
