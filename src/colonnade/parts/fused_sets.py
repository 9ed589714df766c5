"""One fusion model over sampled sets of blocks: loss and gradients at the label holder."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.presence import Observed
from colonnade.core.seeds import derive_seed
from colonnade.parts.block_sets import (
    SetWeights,
    rarity_of_sets,
    sample_sets,
    set_weights,
    weighted_losses,
)
from colonnade.parts.partial_sets import sample_partial_sets, task_rows, task_weights

__all__ = ["gradients_over_sets"]


def gradients_over_sets(
    holder: LabelHolder,
    embeddings: Mapping[str, Tensor],
    batch: Batch,
    here: Observed,
    kind: SetWeights,
    rarity: Mapping[str, float] | None,
) -> dict[str, Tensor]:
    """Loss over one sampled set of blocks of every size, and dL/dh_k.

    Args:
        holder: Its fusion model must average.
        embeddings: By party, of the samples that it has.
        batch: The samples.
        here: Which samples each of these parties has.
        kind: What sets weigh.
        rarity: A factor per party, if any.

    Returns:
        dL/dh_k by party, of the samples that it has.
    """
    holder.clock.begin()
    leaves = {name: item.detach().requires_grad_() for name, item in embeddings.items()}
    blocks = torch.stack([here.spread(name, item) for name, item in leaves.items()])
    seed = derive_seed(holder.seed, "sets", batch.part, batch.number)
    factors = None
    if rarity is not None:
        factors = torch.tensor([rarity[name] for name in embeddings], dtype=blocks.dtype)
    targets = holder.targets(batch)
    # The average is taken here; one embedding alone goes through the fusion model as it is.
    alone = next(iter(leaves))
    if here.table is None:
        sets = sample_sets(len(blocks), seed, blocks.dtype, own=False)
        averages = (sets @ blocks.flatten(1)).view(len(sets) * blocks.shape[1], -1)
        outputs = holder.fuse({alone: averages})
        repeated = targets.repeat(len(sets), *(1 for _ in targets.shape[1:]))
        losses = holder.task.losses(outputs, repeated).view(len(sets), -1)
        weights = set_weights(len(embeddings), kind, own=False).to(losses.dtype)
        plain = weighted_losses(losses.detach(), weights / weights.sum())
        holder.record_loss(plain.item(), embeddings)
        if factors is not None:
            weights = weights * rarity_of_sets(sets, factors)
        return holder.pull(weighted_losses(losses, weights), leaves)
    tasks = sample_partial_sets(here.table.t(), seed, blocks.dtype, own=False)
    outputs = holder.fuse({alone: (tasks.sets @ blocks.transpose(0, 1))[tasks.valid]})
    samples, _ = task_rows(here.counts)
    losses = holder.task.losses(outputs, targets[samples])
    weights = task_weights(here.counts, kind, own=False).to(losses.dtype) / here.num_samples
    holder.record_loss(((losses.detach() * weights).sum() / weights.sum()).item(), embeddings)
    if factors is not None:
        weights = weights * rarity_of_sets(tasks.sets, factors)[tasks.valid]
    return holder.pull((losses * weights).sum(), leaves)
