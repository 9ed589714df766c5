"""The subjects of measurements: a generated federation of MLPs, and its network in one place."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.federation import Federation
from colonnade.core.messages import Batch
from colonnade.core.method import Method
from colonnade.data.blocks import Labels, make_block
from colonnade.run.directory import local_parties
from colonnade.run.fitting import fit_blueprint
from colonnade.run.samples import arrange
from colonnade.run.sources import Sources
from colonnade.run.spec import parse_spec

__all__ = ["JointNetwork", "Shape", "exchange", "make_federation"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a generated federation."""

    num_parties: int
    num_columns: int = 64
    hidden: int = 128
    num_hidden: int = 1
    embedding: int = 64
    num_samples: int = 4096
    batch_size: int = 128
    num_classes: int = 10


def make_federation(
    shape: Shape,
    *,
    method: Method | str = "splitnn",
    fabric: str = "in_process",
    combine: str = "concat",
    protect: Sequence[Mapping[str, Any]] = (),
) -> Federation:
    """A federation over generated numbers: K parties with an MLP each."""
    numbers = np.random.default_rng(0)
    ids = np.arange(shape.num_samples)
    blocks = {}
    for party in range(shape.num_parties):
        name = f"party_{party:02d}"
        values = numbers.normal(size=(shape.num_samples, shape.num_columns))
        blocks[name] = make_block(name, values, ids=ids)
    labels = Labels(
        ids=ids.astype(str).astype(object),
        values=numbers.integers(0, shape.num_classes, shape.num_samples),
    )
    spec = parse_spec(
        {
            "method": method,
            "fabric": fabric,
            "data": {"batch_size": shape.batch_size, "split": {"validation": 0.0, "test": 0.0}},
            "defaults": {
                "encoder": {
                    "kind": "mlp",
                    "hidden": [shape.hidden] * shape.num_hidden,
                    "embedding": shape.embedding,
                },
                "optimizer": {"name": "sgd", "lr": 0.01},
                "protect": list(protect),
            },
            "label_holder": {
                "fusion": {"kind": "mlp", "hidden": [shape.hidden], "combine": combine},
                "optimizer": {"name": "sgd", "lr": 0.01},
                "task": "multiclass",
            },
        }
    )
    sources = Sources(blocks=blocks, labels=labels, label_holder="label_holder")
    arrangement = arrange(spec, sources)
    blueprint = fit_blueprint(spec, sources, arrangement)
    return blueprint.build(blueprint.training_data(arrangement))


class JointNetwork:
    """A federation's networks in one graph under one optimizer, as trained centrally."""

    def __init__(self, federation: Federation) -> None:
        parties = local_parties(federation)
        self._holder = federation.holder
        self._features: Mapping[str, Tensor] = {
            name: party.parts["train"].features for name, party in parties.items()
        }
        self._encoders = nn.ModuleDict(
            {name: copy.deepcopy(party.encoder) for name, party in parties.items()}
        )
        self._fusion = copy.deepcopy(federation.holder.fusion)
        parameters = [*self._encoders.parameters(), *self._fusion.parameters()]
        self._optimizer = torch.optim.SGD(parameters, lr=0.01, fused=True)

    def step(self, number: int) -> None:
        """One ordinary training step on a batch."""
        part = self._holder.parts["train"]
        positions = part.plan.positions(number)
        embeddings = {
            name: encoder(self._features[name][positions])
            for name, encoder in self._encoders.items()
        }
        loss = self._holder.task.loss(self._fusion(embeddings), part.targets[positions])
        loss.item()  # both sides read the loss at every step
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def exchange(federation: Federation, number: int) -> None:
    """One exchange of a federation."""
    batch = Batch("train", number)
    federation.fabric.run(federation.method.exchange(federation.holder, federation.parties, batch))
