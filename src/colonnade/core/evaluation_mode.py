"""Evaluation mode of a network, which several threads predict with, or of its batch norm only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

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

    def __call__(self) -> AbstractContextManager[None]:
        """Within it a thread predicts."""
        return _Predicting(self)

    def begin(self) -> None:
        """Count one thread more."""
        with self._lock:
            if self._num_inside == 0:
                # A network that only predicts stays in evaluation mode: switching costs as much
                # as a prediction of one sample.
                self._was_training = self._model.training
                if self._was_training:
                    self._model.eval()
            self._num_inside += 1

    def end(self) -> None:
        """Count one thread less."""
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0 and self._was_training:
                self._model.train()


class _Predicting(AbstractContextManager[None]):
    """One thread that predicts; a generator in its place would take as long as a layer."""

    __slots__ = ("_mode", "_without_graph")

    def __init__(self, mode: Evaluation) -> None:
        self._mode = mode
        # Within many predictions there is none already.
        self._without_graph = torch.no_grad() if torch.is_grad_enabled() else None

    def __enter__(self) -> None:
        self._mode.begin()
        if self._without_graph is not None:
            self._without_graph.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._without_graph is not None:
            self._without_graph.__exit__(*error)
        self._mode.end()


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
