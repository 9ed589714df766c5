"""Evaluation mode of a network, which several threads predict with, or of its batch norm only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["Evaluation", "by_running_statistics"]


class Evaluation:
    """Evaluation mode of a network, and no graph, for as long as some thread predicts."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._num_inside = 0
        self._was_training = False

    def __call__(self) -> _Inside:
        return _Inside(self)

    def enter(self) -> None:
        """One more predicts."""
        with self._lock:
            if self._num_inside == 0:
                # A network that only predicts stays in evaluation mode: switching costs as much
                # as a prediction of one sample.
                self._was_training = self._model.training
                if self._was_training:
                    self._model.eval()
            self._num_inside += 1

    def leave(self) -> None:
        """One less predicts."""
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0 and self._was_training:
                self._model.train()


class _Inside:
    """One prediction. A class, because a generator takes twice as long, and a call has several."""

    __slots__ = ("_evaluation", "_had_graphs")

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation

    def __enter__(self) -> None:
        self._evaluation.enter()
        self._had_graphs = torch.is_grad_enabled()
        torch.set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch.set_grad_enabled(self._had_graphs)
        self._evaluation.leave()


@contextmanager
def by_running_statistics(network: nn.Module) -> Iterator[None]:
    """Within it batch norm goes by its running statistics: one row by itself has no others."""
    norms = [
        item
        for item in network.modules()
        if isinstance(item, nn.modules.batchnorm._BatchNorm) and item.training
    ]
    for item in norms:
        item.eval()
    try:
        yield
    finally:
        for item in norms:
            item.train()
