"""SplitNN with torch.distributed alone, which the network bench compares with.

Every party sends its embedding and gets its gradient, with the same arithmetic as ours. There is
no TLS, no check of names or shapes, and no recovery.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from colonnade.bench.subjects import Shape, make_federation
from colonnade.core.federation import Federation
from colonnade.run.directory import local_parties

__all__ = ["GlooHolder", "serve_gloo"]


def _join(rank: int, num_parties: int, meeting: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_parties + 1
    )


def serve_gloo(shape: Shape, rank: int, meeting: str) -> None:
    """Run a party's process: take the steps that the label holder orders, until it orders none."""
    torch.set_num_threads(1)
    party = list(local_parties(make_federation(shape)).values())[rank - 1]
    encoder, part = party.encoder, party.parts["train"]
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01, fused=True)
    _join(rank, shape.num_parties, Path(meeting))
    gradient = torch.empty(shape.batch_size, shape.embedding)
    order = torch.zeros(2, dtype=torch.int64)
    while True:
        dist.recv(order, 0)
        first, count = order.tolist()
        if not count:
            break
        for number in range(first, first + count):
            embedding = encoder(part.features[part.plan.positions(number)])
            dist.send(embedding.detach(), 0)
            dist.recv(gradient, 0)
            optimizer.zero_grad(set_to_none=True)
            embedding.backward(gradient)
            optimizer.step()
        dist.send(order, 0)
    dist.destroy_process_group()


class GlooHolder:
    """The label holder's process."""

    def __init__(self, federation: Federation, shape: Shape, meeting: Path) -> None:
        self._holder = federation.holder
        self._names = federation.fabric.names
        self._fusion = federation.holder.fusion
        self._optimizer = torch.optim.SGD(self._fusion.parameters(), lr=0.01, fused=True)
        self._received = [torch.empty(shape.batch_size, shape.embedding) for _ in self._names]
        self._ranks = range(1, len(self._names) + 1)
        _join(0, shape.num_parties, meeting)

    def steps(self, first: int, count: int) -> None:
        """Take ``count`` steps; returns when every party has taken its own."""
        order = torch.tensor([first, count])
        _wait([dist.isend(order, rank) for rank in self._ranks])
        for number in range(first, first + count):
            self._step(number)
        done = [torch.zeros(2, dtype=torch.int64) for _ in self._ranks]
        _wait([dist.irecv(item, rank) for item, rank in zip(done, self._ranks, strict=True)])

    def _step(self, number: int) -> None:
        ranks = self._ranks
        _wait([dist.irecv(item, rank) for item, rank in zip(self._received, ranks, strict=True)])
        part = self._holder.parts["train"]
        leaves = {
            name: item.detach().requires_grad_()
            for name, item in zip(self._names, self._received, strict=True)
        }
        targets = part.targets[part.plan.positions(number)]
        loss = self._holder.task.loss(self._fusion(leaves), targets)
        loss.item()  # both sides read the loss at every step
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        _wait(
            [
                dist.isend(_gradient(leaf), rank)
                for leaf, rank in zip(leaves.values(), ranks, strict=True)
            ]
        )

    def close(self) -> None:
        """End the parties' processes and the group."""
        for rank in self._ranks:
            dist.send(torch.zeros(2, dtype=torch.int64), rank)
        dist.destroy_process_group()


def _wait(pending: list[dist.Work | None]) -> None:
    for item in pending:
        assert item is not None
        item.wait()


def _gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad
