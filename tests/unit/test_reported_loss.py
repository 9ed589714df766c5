"""The loss of an exchange is that of its start, however many local steps follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from colonnade.core.messages import Batch
from colonnade.core.method import Method
from colonnade.methods.flex import PBCD, AdaptiveFlex, Flex, SyncVFL
from federations import make_federation, train

METHODS = {
    "pbcd": PBCD(),
    "sync_vfl": SyncVFL(local_steps=4),
    "flex": Flex(timeout=4),
    "adaptive_flex": AdaptiveFlex(timeout=4),
}


def loss_now(federation, batch: Batch) -> float:
    """The loss of a batch under everybody's weights, past all links."""
    holder = federation.holder
    with torch.no_grad():
        embeddings = {
            name: party.encoder(party.rows(batch))
            for name, party in federation.fabric.parties.items()
        }
        return holder.task.loss(holder.fusion(embeddings), holder.targets(batch)).item()


@pytest.mark.parametrize("labels", ["private", "shared"])
@pytest.mark.parametrize("name", METHODS)
def test_is_that_of_the_exchange_s_start(name: str, labels: str) -> None:
    method: Method = replace(METHODS[name], labels=labels)
    federation = make_federation(3, method=method, dtype=torch.float64)
    first = loss_now(federation, Batch("train", 0))
    (event,) = train(federation, 1)
    assert event.loss == pytest.approx(first, rel=1e-12)
    # The fusion model has moved since, so that the loss of a later step is another.
    assert loss_now(federation, Batch("train", 0)) != pytest.approx(first, rel=1e-6)
