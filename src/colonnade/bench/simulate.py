"""The overhead of the simulated clock: exchanges per real second without any computing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from colonnade.bench.timing import interleaved
from colonnade.core.fabric import Fabric
from colonnade.core.messages import Batch
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.parties import Parties, each
from colonnade.core.party import Party
from colonnade.core.verbs import verb
from colonnade.fabrics.durations import Constant, Uniform
from colonnade.fabrics.in_process import InProcess
from colonnade.fabrics.simulated import Profile, Simulated

__all__ = ["bench_simulate"]


class TrivialParty(Party):
    """Answers with a fixed embedding and learns nothing."""

    answer = torch.zeros(8, 2)

    @verb
    def embed(self, batch: Batch) -> Tensor:
        """A fixed embedding."""
        self.clock.work("encode")
        return self.answer

    @verb
    def descend(self, batch: Batch, gradient: Tensor) -> None:
        """A local step that does nothing."""
        self.clock.work("step")


def bench_simulate(fast: bool) -> list[dict[str, Any]]:
    """Rows for 4 and 1,000 parties; per_second is exchanges per real second."""
    return [_row(4, 300 if fast else 3000), _row(1000, 3 if fast else 10)]


def _row(num_parties: int, runs: int) -> dict[str, Any]:
    latency = Uniform(low=1, high=9)
    profile = Profile(encode=Constant(value=2), step=Constant(value=3), latency=latency)
    simulated = Parties(Simulated(_parties(num_parties), default=profile))
    direct = Parties(InProcess(_parties(num_parties)))
    ours, theirs = interleaved(
        lambda number: _exchange(simulated, number),
        lambda number: _exchange(direct, number),
        runs=runs,
    )
    return {
        "case": f"{num_parties}-parties",
        "ratio": ours / theirs,
        "unit": "time of one exchange on the simulated clock / in process",
        "against": "the in-process fabric, same calls, networks that cost nothing",
        "runs": runs,
        "per_second": 1 / ours,
        "seconds_per_exchange": ours,
    }


def _parties(count: int) -> dict[str, Party]:
    spec = OptimizerSpec(name="sgd", lr=0.1)
    names = [f"party_{number:04d}" for number in range(count)]
    return {
        name: TrivialParty(name=name, encoder=nn.Linear(1, 1), optimizer=spec, parts={})
        for name in names
    }


def _exchange(parties: Parties, number: int) -> None:
    """The calls of one SplitNN exchange."""
    fabric: Fabric = parties.fabric
    fabric.run(_calls(parties, Batch("train", number)))


async def _calls(parties: Parties, batch: Batch) -> None:
    embeddings = await parties.ask("embed", batch)
    await parties.tell("descend", batch, each(embeddings))
