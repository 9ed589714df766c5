"""Adaptive Flex-VFL by the pace of now, and by that of the exchange before (Algorithm 2)."""

from __future__ import annotations

from typing import Any

import pytest

from colonnade.core.federation import Federation
from colonnade.core.messages import Batch
from colonnade.core.optimizers import OptimizerSpec
from colonnade.methods.flex import AdaptiveFlex
from federations import assert_bitwise_equal, make_federation, train, weights

BOUND = 0.4
TIMEOUT = 20


def build(pace: Any, labels: Any = "private") -> Federation:
    return make_federation(
        method=AdaptiveFlex(timeout=TIMEOUT, pace=pace, labels=labels),
        optimizer=OptimizerSpec(name="sgd", lr=BOUND),
    )


def exchanged(federation: Federation, number: int, ticks: dict[str, int]) -> dict[str, float]:
    """One exchange with so many ticks per step, by party; and the rates that were used."""
    parties = federation.fabric.parties
    for name, cost in ticks.items():
        parties[name].clock.costs["step"] = cost
    batch = Batch("train", number)
    federation.fabric.run(federation.method.exchange(federation.holder, federation.parties, batch))
    return {name: party.optimizer.param_groups[0]["lr"] for name, party in parties.items()}


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_a_party_that_wakes_up_has_the_rate_of_its_many_steps(labels: str) -> None:
    """From 1 step in the timeout to 20: the bound on the update, η τ, is kept by now alone."""
    for pace, rate in (("last", BOUND / 1), ("now", BOUND / 20)):
        federation = build(pace, labels)
        assert exchanged(federation, 0, {"p0": TIMEOUT, "p1": 1})["p0"] == pytest.approx(BOUND)
        before = federation.fabric.parties["p0"].num_local_steps
        rates = exchanged(federation, 1, {"p0": 1, "p1": 1})
        assert federation.fabric.parties["p0"].num_local_steps - before == 20
        assert rates["p0"] == pytest.approx(rate)
        assert rates["p1"] == pytest.approx(BOUND / 20)


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_at_a_steady_pace_both_are_the_same_bit_for_bit(labels: str) -> None:
    runs = []
    for pace in ("last", "now"):
        federation = build(pace, labels)
        for name, cost in (("p0", 4), ("p1", 5)):
            federation.fabric.parties[name].clock.costs["step"] = cost
        train(federation, 6)
        runs.append(weights(federation))
    assert_bitwise_equal(*runs)
