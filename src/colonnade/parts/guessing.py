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
from colonnade.core.presence import Observed
from colonnade.core.seeds import derive_seed
from colonnade.parts.present_means import mean_of_present

__all__ = ["guessed", "voted"]


def guessed(holder: LabelHolder, batch: Batch, num_rows: int) -> Tensor:
    """Outputs that know nothing of the samples: every class alike, or a number as labels spread."""
    task = holder.task
    dtype = next(holder.fusion.parameters()).dtype
    draw = _draws(holder, batch, "guess")
    if task.kind == "regression":
        return torch.randn(num_rows, 1, generator=draw, dtype=torch.float64).to(dtype)
    codes = torch.randint(len(task.classes), (num_rows,), generator=draw)
    if task.kind == "binary":
        return (2.0 * codes - 1.0)[:, None].to(dtype)
    return functional.one_hot(codes, len(task.classes)).to(dtype)


def voted(
    holder: LabelHolder, batch: Batch, outputs: Mapping[str, Tensor], here: Observed
) -> Tensor:
    """The class that most predictors decide for, ties drawn; the mean of numbers.

    Each predictor has a say in the samples that its party has.

    As outputs: probabilities come out as shares of the votes, where every class has a random part
    of one more vote, which breaks ties and keeps the shares above zero.
    """
    task = holder.task
    answers = torch.stack([here.spread(name, item) for name, item in outputs.items()])
    if task.kind == "regression":
        return mean_of_present(outputs, here)
    is_binary = task.kind == "binary"
    codes = (answers[:, :, 0] > 0).long() if is_binary else answers.argmax(dim=2)
    each = functional.one_hot(codes, len(task.classes))
    if here.table is not None:
        each = each * here.table.t()[:, :, None]
    votes = each.sum(dim=0).double()
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
