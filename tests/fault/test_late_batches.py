"""An answer that comes too late for its batch is never taken for that of the next one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from colonnade.core.fabric import RealClock
from colonnade.core.patience import Patience
from colonnade.fabrics import in_process
from federations import make_federation


class SetClock(RealClock):
    """A clock that stands still until somebody moves it."""

    tick = 0

    def now(self) -> int:
        return SetClock.tick


class SlowAtFirst(nn.Module):
    """A network whose first answer takes a hundred ticks."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.num_calls = network, 0

    def forward(self, features: Tensor) -> Tensor:
        self.num_calls += 1
        SetClock.tick += 100 if self.num_calls == 1 else 0
        embedding: Tensor = self.network(features)
        return embedding


def outputs(*, slow: bool) -> Tensor:
    federation = make_federation(
        2,
        combine="mean",
        num_validation=16,
        batch_size=8,
        patience=Patience(timeout=5, then="continue"),
    )
    assert isinstance(federation.fabric, in_process.InProcess)
    party = federation.fabric.parties["p1"]
    if slow:
        party.encoder = SlowAtFirst(party.encoder)
    return federation.predictions("validation", federation.holder.parts["validation"].plan).outputs


def test_a_late_answer_is_dropped_with_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "RealClock", SetClock)
    prompt, late = outputs(slow=False), outputs(slow=True)
    assert not torch.equal(late[:8], prompt[:8])  # made without the late party
    assert torch.equal(late[8:], prompt[8:])
