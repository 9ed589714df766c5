"""SplitNN's two halves in plain PyTorch, as every peer's messages carry them.

Runs in a peer's own environment, without Colonnade: weights, features and the order of batches
come from files that ``run.py`` wrote. One message per party and step: it brings the gradient of
the step before and asks for the next embedding.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Half", "HolderHalf", "PartyHalf", "case_directory", "party_names", "take_orders"]

LEARNING_RATE = 0.01
_KINDS = ("weight", "bias")
# Where the files of the case are, and where orders come from; processes inherit both.
CASE = "COLONNADE_PEERS_CASE"
ORDERS = "COLONNADE_PEERS_ORDERS"
Array = np.ndarray[Any, np.dtype[np.float32]]


def case_directory() -> Path:
    """Where the files of the case are."""
    return Path(os.environ[CASE])


def party_names() -> list[str]:
    """The parties, in party order."""
    return sorted(path.stem for path in case_directory().glob("party_*.npz"))


class Half:
    """A stack of linear layers with ReLU between them, and the order of batches."""

    def __init__(self, name: str, *, activate_output: bool) -> None:
        with np.load(case_directory() / f"{name}.npz") as file:
            self.content = {key: torch.from_numpy(file[key]) for key in file.files}
        depth = sum(key.startswith("weight") for key in self.content)
        layers: list[nn.Module] = []
        for at in range(depth):
            num_outputs, num_inputs = self.content[f"weight{at}"].shape
            layers += [nn.Linear(num_inputs, num_outputs), nn.ReLU()]
        self.network = nn.Sequential(*(layers if activate_output else layers[:-1]))
        self.load([self.content[f"{kind}{at}"] for at in range(depth) for kind in _KINDS])
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=LEARNING_RATE, fused=True)

    def load(self, values: list[Tensor]) -> None:
        """Take these weights."""
        with torch.no_grad():
            for parameter, value in zip(self.network.parameters(), values, strict=True):
                parameter.copy_(value)

    def positions(self, number: int) -> Tensor:
        """Which samples are in a batch."""
        return self.content["positions"][number]


class PartyHalf(Half):
    """A party's encoder and features."""

    def __init__(self, name: str) -> None:
        super().__init__(name, activate_output=True)
        self._kept: tuple[int, Tensor] | None = None

    def answer(self, number: int, gradient: Array | None) -> Array:
        """Take the step of the batch before, if its gradient came; the embedding of this one."""
        if gradient is not None:
            self._descend(number - 1, torch.from_numpy(gradient))
        embedding = self._embed(number)
        self._kept = (number, embedding)
        result: Array = embedding.detach().numpy()
        return result

    def _embed(self, number: int) -> Tensor:
        embedding: Tensor = self.network(self.content["features"][self.positions(number)])
        return embedding

    def _descend(self, number: int, gradient: Tensor) -> None:
        # Where messages of one party meet different processes, the graph is made anew.
        kept = self._kept
        embedding = kept[1] if kept is not None and kept[0] == number else self._embed(number)
        self.optimizer.zero_grad(set_to_none=True)
        embedding.backward(gradient)  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def forget(self) -> None:
        """Drop the graph: the weights are about to be replaced."""
        self._kept = None


class HolderHalf(Half):
    """The label holder's fusion and labels."""

    def __init__(self) -> None:
        super().__init__("label_holder", activate_output=False)

    def learn(self, number: int, embeddings: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
        """The loss of a batch, one update, and every party's gradient."""
        leaves = {
            name: torch.from_numpy(embeddings[name]).requires_grad_() for name in sorted(embeddings)
        }
        outputs = self.network(torch.cat(list(leaves.values()), dim=1))
        targets = self.content["targets"][self.positions(number)]
        loss = nn.functional.cross_entropy(outputs, targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item(), {name: _gradient(leaf) for name, leaf in leaves.items()}


def _gradient(leaf: Tensor) -> Array:
    assert leaf.grad is not None
    result: Array = leaf.grad.numpy()
    return result


# Sends every party its gradient (none at first) with the number of a batch; brings embeddings.
Ask = Callable[[int, Mapping[str, Array]], Mapping[str, Array]]


def take_orders(ask: Ask, versions: Mapping[str, str]) -> None:
    """The label holder's loop: so many steps whenever ``run.py`` says so, until it says no more."""
    holder = HolderHalf()
    names = party_names()
    gradients: dict[str, Array] = {}
    number = 0
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(os.environ[ORDERS])
        with link.makefile("rw", encoding="utf-8") as lines:
            _say(lines, dict(versions))
            for line in lines:
                losses = []
                for _ in range(json.loads(line)):
                    embeddings = ask(number, gradients)
                    if sorted(embeddings) != names:
                        raise RuntimeError(f"step {number}: answers of {sorted(embeddings)} only")
                    loss, gradients = holder.learn(number, embeddings)
                    losses.append(loss)
                    number += 1
                _say(lines, losses)


def _say(lines: Any, what: object) -> None:
    lines.write(json.dumps(what) + "\n")
    lines.flush()
