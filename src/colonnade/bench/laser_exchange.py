"""One LASER-VFL exchange in process against the straightforward loop over tasks."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.bench.subjects import Shape, exchange, make_federation
from colonnade.bench.timing import interleaved
from colonnade.core.federation import Federation
from colonnade.methods.laser import Laser
from colonnade.parts.block_sets import set_weights
from colonnade.run.directory import local_parties

__all__ = ["TaskLoop", "bench_laser"]

# HAPT: 560 columns in equal blocks, 12 activities, batch 128; encoders with layers of 128.
_NUM_COLUMNS = 560


def bench_laser(fast: bool) -> list[dict[str, Any]]:
    """Rows for K = 4, 8, 16 parties, and the growth of our step from 4 to 16."""
    rows = [_row(num_parties, 30 if fast else 150) for num_parties in (4, 8, 16)]
    first, last = rows[0], rows[-1]
    growth = {
        "case": "growth",
        "ratio": last["milliseconds"] / first["milliseconds"],
        "unit": "time of one exchange at K = 16 / at K = 4",
        "against": "itself at K = 4",
        "runs": first["runs"],
    }
    return [*rows, growth]


def _row(num_parties: int, runs: int) -> dict[str, Any]:
    shape = Shape(
        num_parties=num_parties,
        num_columns=_NUM_COLUMNS // num_parties,
        hidden=128,
        num_hidden=2,
        embedding=128,
        num_classes=12,
    )
    federation = make_federation(shape, method=Laser(weights="normalised"))
    loop = TaskLoop(federation)
    ours, theirs = interleaved(lambda number: exchange(federation, number), loop.step, runs=runs)
    return {
        "case": f"K={num_parties}",
        "ratio": theirs / ours,
        "unit": "time of one step of the loop over tasks / time of one LASER-VFL exchange",
        "against": "PyTorch in one place: per party one forward, loss and backward per task",
        "runs": runs,
        "milliseconds": ours * 1e3,
        "milliseconds_against": theirs * 1e3,
    }


class TaskLoop:
    """Algorithm 1 as it reads, in one place: each party takes its tasks one by one.

    Encoders run once, forward and back; embeddings collect the tasks' gradients in between.
    """

    def __init__(self, federation: Federation) -> None:
        parties = local_parties(federation)
        self._part = federation.holder.parts["train"]
        self._features = [party.parts["train"].features for party in parties.values()]
        models = [copy.deepcopy(party.model) for party in parties.values()]
        self._encoders: list[nn.Module] = [model["encoder"] for model in models]
        self._heads: list[nn.Module] = [model["head"] for model in models]
        self._weights = set_weights(len(models), "normalised", own=True).tolist()
        self._draw = random.Random(0)
        parameters = [item for model in models for item in model.parameters()]
        self._optimizer = torch.optim.SGD(parameters, lr=0.01, fused=True)

    def step(self, number: int) -> None:
        """One training step on a batch."""
        positions = self._part.plan.positions(number)
        targets = self._part.targets[positions]
        everybody = range(len(self._heads))
        embeddings = [
            encoder(features[positions])
            for encoder, features in zip(self._encoders, self._features, strict=True)
        ]
        leaves = [item.detach().requires_grad_() for item in embeddings]
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for party, head in enumerate(self._heads):
            others = [other for other in everybody if other != party]
            for size, weight in enumerate(self._weights, start=1):
                members = [party, *self._draw.sample(others, size - 1)]
                average = torch.stack([leaves[member] for member in members]).mean(0)
                loss: Tensor = weight * nn.functional.cross_entropy(head(average), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.item()
        torch.autograd.backward(embeddings, [leaf.grad for leaf in leaves])
        self._optimizer.step()
