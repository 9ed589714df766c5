"""SplitNN one batch ahead: the same computation written out, with embeddings one step stale."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from colonnade.core.errors import NoAnswer
from colonnade.core.federation import LoopState
from colonnade.core.messages import Batch
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.parties import Patience
from colonnade.fabrics.durations import Constant, Uniform
from colonnade.fabrics.simulated import Profile
from colonnade.methods.splitnn import SplitNN
from federations import assert_bitwise_equal, make_federation, train, weights
from messages import says

NUM_EXCHANGES = 9
ADAM = OptimizerSpec(name="adam", lr=0.01)
# Whoever is asked first answers last, and answers to two batches cross.
SCHEDULES = {
    "p0": Profile(encode=Constant(value=3), latency=Uniform(low=0, high=90)),
    "p1": Profile(encode=Uniform(low=1, high=40), latency=Constant(value=2)),
    "p2": Profile(latency=Uniform(low=5, high=70)),
}


@pytest.mark.parametrize("fabric", ["in_process", "simulated"])
@pytest.mark.parametrize("combine", ["concat", "mean"])
def test_equals_the_written_out_computation(fabric: str, combine: str) -> None:
    federation = make_federation(
        3,
        method=SplitNN(pipelined=True),
        fabric=fabric,
        combine=combine,
        dtype=torch.float64,
        optimizer=ADAM,
        profiles=SCHEDULES if fabric == "simulated" else None,
    )
    parties = federation.fabric.parties
    names = sorted(parties)
    encoders = {name: copy.deepcopy(parties[name].encoder) for name in names}
    head = copy.deepcopy(federation.holder.fusion.head)
    own = {name: torch.optim.Adam(item.parameters(), lr=0.01) for name, item in encoders.items()}
    fusing = torch.optim.Adam(head.parameters(), lr=0.01)

    def embedded(number: int) -> dict[str, torch.Tensor]:
        batch = Batch("train", number)
        return {name: encoders[name](parties[name].rows(batch)) for name in names}

    ahead = {name: item.detach() for name, item in embedded(0).items()}
    state = LoopState()
    for number in range(NUM_EXCHANGES):
        stale = {name: item.clone().requires_grad_() for name, item in ahead.items()}
        # Made with the weights from before this step.
        ahead = {name: item.detach() for name, item in embedded(number + 1).items()}
        parts = [stale[name] for name in names]
        joined = torch.cat(parts, 1) if combine == "concat" else torch.stack(parts).mean(0)
        targets = federation.holder.targets(Batch("train", number))
        loss = nn.functional.binary_cross_entropy_with_logits(head(joined), targets)
        fusing.zero_grad()
        loss.backward()
        fusing.step()
        fresh = embedded(number)
        for name in names:
            own[name].zero_grad()
            fresh[name].backward(stale[name].grad)
            own[name].step()

        (event,) = train(federation, number + 1, state)
        state.stopped_by = ""
        assert event.loss == pytest.approx(loss.item(), abs=1e-10)
        expected = {
            f"{name}.encoder.{key}": item
            for name in names
            for key, item in encoders[name].state_dict().items()
        } | {f"fusion.head.{key}": item for key, item in head.state_dict().items()}
        found = weights(federation)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, atol=1e-10, rtol=0.0, msg=key)


def test_the_order_of_answers_does_not_matter() -> None:
    """Bitwise the same on a clock where they come in any order."""
    found = []
    for fabric, profiles in (("in_process", None), ("simulated", SCHEDULES)):
        method = SplitNN(pipelined=True)
        federation = make_federation(3, method=method, fabric=fabric, profiles=profiles)
        train(federation, NUM_EXCHANGES, LoopState())
        found.append(weights(federation))
    assert_bitwise_equal(*found)


@pytest.mark.parametrize("pipelined", [False, True])
def test_two_batches_share_a_round_trip(pipelined: bool) -> None:
    """A round trip of 100 ticks and no work: half the time per exchange."""
    far = Profile(latency=Constant(value=50))
    federation = make_federation(
        2, method=SplitNN(pipelined=pipelined), fabric="simulated", default_profile=far
    )
    state = LoopState()
    train(federation, 20, state)
    assert state.elapsed * 1000 == pytest.approx(1050 if pipelined else 2000, abs=60)


def test_it_does_not_go_on_without_a_party() -> None:
    federation = make_federation(
        2,
        method=SplitNN(pipelined=True),
        fabric="simulated",
        combine="mean",
        profiles={"p0": Profile(latency=Constant(value=5000))},
        patience=Patience(timeout=100, then="continue"),
    )
    with pytest.raises(NoAnswer, match=says("'p0'", "exchange 1", 100)):
        train(federation, 3, LoopState())


def test_it_takes_no_sums() -> None:
    assert SplitNN(pipelined=True).needs.embeddings == "each"
    assert SplitNN().needs.embeddings == "sum"
