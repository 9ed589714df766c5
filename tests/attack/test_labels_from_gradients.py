"""A curious party tells training labels from its gradients: nothing prevents it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from torch import Tensor

from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch, Call, Reply
from colonnade.parts.split_step import SplitParty
from colonnade.run.engine import train
from colonnade.run.spec import parse_spec

Measured = Callable[..., None]


@pytest.mark.attack(
    what="Training labels from gradients",
    has="its own gradients and the label of one sample (an honest but curious party)",
    before="AUC 1.00",
    now="AUC {auc:.2f} in the first exchange: not prevented. No method hides training labels from "
    "parties",
)
def test_one_known_label_tells_the_others(
    monkeypatch: pytest.MonkeyPatch, measured: Measured
) -> None:
    received: list[Any] = []
    truth: list[Any] = []
    execute, targets = SplitParty.execute, LabelHolder.targets

    def listening(party: SplitParty, call: Call) -> Reply:
        if call.verb == "descend" and party.name == "pathology":
            received.append(call.arguments[1])
        return execute(party, call)

    def noting(holder: LabelHolder, batch: Batch) -> Tensor:
        truth.append(targets(holder, batch))
        return targets(holder, batch)

    monkeypatch.setattr(SplitParty, "execute", listening)
    # For the score only: the party does not see these.
    monkeypatch.setattr(LabelHolder, "targets", noting)
    train(
        parse_spec(
            {
                "data": {"dataset": "breast_cancer", "batch_size": 64},
                "stop": {"exchanges": 1},
                "seed": 1,
            }
        )
    )
    labels = truth[0].flatten().numpy()
    gradient = received[0].numpy()
    known = int(np.flatnonzero(labels == 1)[0])
    direction = gradient / np.linalg.norm(gradient, axis=1, keepdims=True)
    others = np.arange(len(labels)) != known
    auc = roc_auc_score(labels[others], (direction @ direction[known])[others])
    measured(auc=auc)
    # If this fails, somebody has found a defence: say so on the page on privacy.
    assert auc > 0.95
