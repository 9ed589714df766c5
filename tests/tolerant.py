"""A small method that can do without blocks, for tests of everything around such methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, Method, MethodInfo
from colonnade.core.parties import Parties, each
from colonnade.data.blocks import Labels, make_block
from colonnade.parts.present_means import mean_of_present
from colonnade.parts.split_step import SplitParty
from colonnade.run.sources import Sources

MEAN = {"label_holder": {"fusion": {"kind": "mlp", "combine": "mean"}}}


@dataclass(frozen=True, kw_only=True)
class MeanOfObserved(Method):
    """SplitNN over the mean of the embeddings that are there."""

    info = MethodInfo(
        name="mean_of_observed",
        paper="none",
        summary="for tests",
        tolerates_slow=False,
        tolerates_missing=True,
        heterogeneous_models=True,
    )
    party = SplitParty

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """Embeddings of those who have the batch, gradients back to them."""
        here = holder.observed(batch, parties.names)
        embeddings = await parties.ask("embed", batch, among=here.names)
        if here.is_complete:
            gradients = holder.learn(embeddings, batch)
        else:
            mean = mean_of_present(embeddings, here)
            (gradient,) = holder.learn({here.names[0]: mean}, batch).values()
            shares = gradient / here.counts[:, None]
            gradients = {name: shares[here.rows[name]] for name in here.names}
        await parties.tell("descend", batch, each(gradients), among=here.names)

    async def predict(
        self, holder: LabelHolder, parties: Parties, batch: Batch, *, each: bool
    ) -> Answer:
        """The fusion of what is there; and every party that has the batch, by itself."""
        here = holder.observed(batch, parties.names)
        found = await parties.ask("infer", batch, among=here.names)
        own = {name: holder.infer({name: item}) for name, item in found.items()}
        mean = {here.names[0]: mean_of_present(found, here)}
        return Answer(outputs=holder.infer(mean), each=own, used=here.names)


def frames(num_samples: int = 600, num_parties: int = 3, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Blocks that each tell a part of the label, by sample id."""
    draw = np.random.default_rng(seed)
    ids = [f"s{number:04d}" for number in range(num_samples)]
    return {
        name: pd.DataFrame(
            {f"{name}{column}": draw.normal(size=num_samples) for column in range(3)}, index=ids
        )
        for name in ("bank", "shop", "telco", "water")[:num_parties]
    }


def labels_of(blocks: Mapping[str, pd.DataFrame], kind: str = "binary") -> pd.Series:
    """What the first columns of all blocks say together, with a little noise."""
    first = pd.concat([block.iloc[:, 0] for block in blocks.values()], axis=1)
    total = first.sum(axis=1) + np.random.default_rng(9).normal(0, 0.3, len(first))
    if kind == "regression":
        return total.rename("value")
    return (total > 0).astype(int).rename("bought")


def sources_of(blocks: Mapping[str, pd.DataFrame], labels: pd.Series) -> Sources:
    """The same as a run's sources; the first party holds the labels."""
    made = {name: make_block(name, block) for name, block in blocks.items()}
    ids = make_block("x", labels.to_frame()).ids
    return Sources(
        blocks=made,
        labels=Labels(ids=ids, values=labels.to_numpy(), name=str(labels.name)),
        label_holder=next(iter(blocks)),
    )
