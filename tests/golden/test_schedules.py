"""Rate schedules and gradient clipping give the weights that torch's own give."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, StepLR

import colonnade
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.schedules import CosineSchedule, Schedule, SteadySchedule, StepSchedule

LENGTH = 12
TORCH: dict[str, tuple[Schedule, Callable[[torch.optim.Optimizer], LRScheduler]]] = {
    "cosine": (CosineSchedule(), lambda own: CosineAnnealingLR(own, LENGTH)),
    "cosine to a floor": (
        CosineSchedule(floor=0.2),
        lambda own: CosineAnnealingLR(own, LENGTH, eta_min=0.2 * 0.05),
    ),
    "step": (StepSchedule(), lambda own: StepLR(own, LENGTH // 3, gamma=0.1)),
    "step by halves": (
        StepSchedule(every=0.25, times=0.5),
        lambda own: StepLR(own, LENGTH // 4, gamma=0.5),
    ),
}


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def lose(model: nn.Module, number: int) -> None:
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
    model.zero_grad()
    (100 * model(rows) ** 2).mean().backward()


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", ["sgd", "adamw", "local_momentum"])
@pytest.mark.parametrize("kind", TORCH)
def test_weights_are_those_of_torchs_scheduler(kind: str, name: str, clip: float | None) -> None:
    schedule, make = TORCH[kind]
    spec = OptimizerSpec(name=name, lr=0.05, schedule=schedule, clip=clip).over(LENGTH)
    ours, theirs = network(), network()
    own, other = spec.build(ours.parameters()), spec.build(theirs.parameters())
    scheduler = make(other)
    for exchange in range(LENGTH):
        for local in range(2):  # local steps of one exchange have one rate
            lose(ours, 10 * exchange + local)
            spec.step(own, exchange)
            lose(theirs, 10 * exchange + local)
            if clip is not None:
                norm = nn.utils.clip_grad_norm_(theirs.parameters(), clip)
                assert exchange or norm > clip
            other.step()
        scheduler.step()
        # What a method sees, and may change, is the rate before the schedule.
        assert own.param_groups[0]["lr"] == 0.05
    for mine, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("schedule", [SteadySchedule(), CosineSchedule(), StepSchedule()])
def test_shares_are_from_0_to_1_whatever_exchange_a_call_names(schedule: Schedule) -> None:
    planned = schedule.over(7)
    for exchange in (-(2**63), -1, 0, 3, 7, 8, 2**63):
        assert 0 <= planned.factor(exchange) <= 1
    assert schedule.factor(5) == 1.0  # of unknown length
    assert planned.factor(0) == planned.factor(-5) == 1.0


def test_a_schedules_own_length_stays() -> None:
    assert CosineSchedule(exchanges=5).over(100).factor(5) == pytest.approx(0.0, abs=1e-12)
    assert math.isclose(CosineSchedule().over(100).factor(50), 0.5)


@pytest.mark.parametrize("method", ["splitnn", "fedbcd", "vafl", "laser"])
def test_everybody_has_the_runs_length(method: str) -> None:
    """Beyond its length a cosine has no rate left, and weights stay as they are."""
    ids = [f"s{number}" for number in range(20)]
    blocks = {
        name: pd.DataFrame({"x": range(20), "y": [number % 7 for number in range(20)]}, index=ids)
        for name in ("bank", "shop")
    }
    labels = pd.Series([number % 2 for number in range(20)], index=ids)

    def outputs(length: int | None, exchanges: int) -> Any:
        schedule = {"kind": "cosine", **({} if length is None else {"exchanges": length})}
        optimizer = {"name": "sgd", "lr": 0.5, "schedule": schedule, "clip": 1.0}
        settings = {
            "data": {"batch_size": 5, "split": {"validation": 0.0, "test": 0.0}},
            "stop": {"exchanges": exchanges},
            "defaults": {"optimizer": optimizer},
            "label_holder": {"optimizer": optimizer},
        }
        trained = colonnade.fit(
            blocks, labels, method=method, label_holder="bank", settings=settings
        )
        return trained.outputs(blocks).to_numpy()

    whole = outputs(None, 8)
    assert (outputs(8, 8) == whole).all()
    assert (outputs(16, 8) != whole).any()
    assert outputs(8, 11) == pytest.approx(whole, rel=1e-6)
