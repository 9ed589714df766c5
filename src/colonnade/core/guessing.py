"""Answers by lot: a guess where there is no prediction, and a vote whose ties are drawn.

Everything is drawn from the run's seed and the batch, so the same question has the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.seeds import derive_seed

__all__ = ["guessed", "voted"]


def guessed(holder: LabelHolder, batch: Batch, like: Tensor) -> Tensor:
    """Outputs that know nothing of the samples: every class alike, or a number as labels spread.

    One row for each row of ``like``.
    """
    task, num_rows = holder.task, len(like)
    draw = _draws(holder, batch, "guess")
    if task.kind == "regression":
        return torch.randn(num_rows, 1, generator=draw, dtype=torch.float64).to(like.dtype)
    codes = torch.randint(len(task.classes), (num_rows,), generator=draw)
    if task.kind == "binary":
        return (2.0 * codes - 1.0)[:, None].to(like.dtype)
    return functional.one_hot(codes, len(task.classes)).to(like.dtype)


def voted(holder: LabelHolder, batch: Batch, outputs: Mapping[str, Tensor]) -> Tensor:
    """The class that most predictors decide for, ties drawn; the mean of numbers.

    As outputs: probabilities come out as shares of the votes, where every class has a random part
    of one more vote, which breaks ties and keeps the shares above zero.
    """
    task = holder.task
    answers = torch.stack(list(outputs.values()))
    if task.kind == "regression":
        return answers.mean(dim=0)
    is_binary = task.kind == "binary"
    codes = (answers[:, :, 0] > 0).long() if is_binary else answers.argmax(dim=2)
    votes = functional.one_hot(codes, len(task.classes)).sum(dim=0).double()
    draw = _draws(holder, batch, "vote")
    # Less than half a vote: a tie only, and no majority, can turn on it.
    lot = torch.rand(votes.shape, generator=draw, dtype=torch.float64) * 0.49 + 0.01
    logits = (votes + lot).log()
    if is_binary:
        logits = logits[:, 1:] - logits[:, :1]
    return logits.to(answers.dtype)


def _draws(holder: LabelHolder, batch: Batch, purpose: str) -> torch.Generator:
    seed = derive_seed(holder.seed, purpose, batch.part, batch.number)
    return torch.Generator().manual_seed(seed)
