"""The oracle: SplitNN is centralized training of the joint network, whatever carries its calls."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from colonnade.core.federation import Federation, LoopState
from colonnade.core.messages import Batch
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.task import LOSSES
from colonnade.fabrics.durations import Constant, Exponential, Trace, Uniform
from colonnade.fabrics.simulated import Profile
from colonnade.methods import METHODS
from colonnade.quality.evaluation import evaluate
from federations import (
    ENCODERS,
    FABRICS,
    KIND_OF_LOSS,
    assert_bitwise_equal,
    checkpoint,
    make_federation,
    mlp,
    mlp_with_batch_norm,
    resume,
    train,
    weights,
)

OPTIMIZERS = {
    "sgd": (OptimizerSpec(name="sgd", lr=0.1), torch.optim.SGD, {}),
    "momentum": (
        OptimizerSpec(name="sgd", lr=0.05, options={"momentum": 0.9}),
        torch.optim.SGD,
        {"momentum": 0.9},
    ),
    "adam": (OptimizerSpec(name="adam", lr=0.01), torch.optim.Adam, {}),
    "adagrad": (OptimizerSpec(name="adagrad", lr=0.05), torch.optim.Adagrad, {}),
}

# Written out again here, so that a slip in the task's own table can't hide.
PLAIN_LOSSES = {
    "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
    "cross_entropy": functional.cross_entropy,
    "squared_error": lambda outputs, targets: ((outputs - targets) ** 2).mean(),
    "absolute_error": lambda outputs, targets: (outputs - targets).abs().mean(),
    "huber": functional.huber_loss,
}


class JointNetwork(nn.Module):
    """All encoders and the head in one graph, as if all columns were in one place."""

    def __init__(self, federation: Federation, combine: str) -> None:
        super().__init__()
        parties = federation.fabric.parties
        self.names = sorted(parties)
        self.encoders = nn.ModuleList(copy.deepcopy(parties[name].encoder) for name in self.names)
        self.head = copy.deepcopy(federation.holder.fusion.head)
        self.combine = combine

    def forward(self, blocks: Mapping[str, Tensor]) -> Tensor:
        embeddings = [
            encoder(blocks[name]) for name, encoder in zip(self.names, self.encoders, strict=True)
        ]
        if self.combine == "concat":
            return self.head(torch.cat(embeddings, dim=1))
        return self.head(torch.stack(embeddings).mean(dim=0))

    def named_weights(self) -> dict[str, Tensor]:
        parts = dict(zip(self.names, self.encoders, strict=True))
        found = {
            f"{name}.encoder.{key}": value
            for name, encoder in parts.items()
            for key, value in encoder.state_dict().items()
        }
        head = self.head.state_dict().items()
        return found | {f"fusion.head.{key}": value for key, value in head}


@dataclass(frozen=True)
class Shape:
    """A generated federation."""

    columns: tuple[int, ...]
    embeddings: tuple[int, ...]
    hidden: tuple[int, ...]
    fusion_hidden: tuple[int, ...]
    activation: str
    num_samples: int
    batch_size: int
    seed: int


def shapes(num_parties: int) -> st.SearchStrategy[Shape]:
    size = st.integers(1, 5)
    sizes = st.lists(size, min_size=num_parties, max_size=num_parties).map(tuple)
    hidden = st.lists(st.integers(1, 6), max_size=2).map(tuple)
    return st.builds(
        Shape,
        columns=sizes,
        embeddings=sizes,
        hidden=hidden,
        fusion_hidden=hidden,
        activation=st.sampled_from(["relu", "tanh", "gelu"]),
        num_samples=st.integers(6, 20),
        batch_size=st.integers(1, 8),
        seed=st.integers(0, 10_000),
    )


def assert_follows_joint_network(
    federation: Federation, combine: str, loss_name: str, optimizer: str, num_exchanges: int
) -> None:
    """Step both, the federation and the joint network, and compare after every step."""
    joint = JointNetwork(federation, combine)
    _, optimizer_class, options = OPTIMIZERS[optimizer]
    lr = federation.holder.optimizer.param_groups[0]["lr"]
    joint_optimizer = optimizer_class(joint.parameters(), lr=lr, **options)
    loss_function = PLAIN_LOSSES[loss_name]
    state = LoopState()
    for number in range(num_exchanges):
        blocks = {
            name: party.rows(Batch("train", number))
            for name, party in federation.fabric.parties.items()
        }
        targets = federation.holder.targets(Batch("train", number))
        loss = loss_function(joint(blocks), targets)
        joint_optimizer.zero_grad()
        loss.backward()
        joint_optimizer.step()

        (event,) = train(federation, number + 1, state)
        state.stopped_by = ""

        assert event.loss == pytest.approx(loss.item(), abs=1e-10)
        expected, found = joint.named_weights(), weights(federation)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, atol=1e-10, rtol=0.0, msg=key)


def test_every_loss_has_an_oracle() -> None:
    assert LOSSES.keys() == PLAIN_LOSSES.keys() == KIND_OF_LOSS.keys()


def check_shape(shape: Shape, loss_name: str, combine: str, optimizer: str) -> None:
    """Build a federation of this shape and hold it against the joint network."""
    names = [f"p{number}" for number in range(len(shape.columns))]
    sizes = shape.embeddings if combine == "concat" else shape.embeddings[:1] * len(names)
    federation = make_federation(
        names=names,
        combine=combine,
        kind=KIND_OF_LOSS[loss_name],
        loss=loss_name,
        dtype=torch.float64,
        num_samples=shape.num_samples,
        batch_size=shape.batch_size,
        columns=dict(zip(names, shape.columns, strict=True)),
        encoder={
            name: mlp(size, shape.hidden, activation=shape.activation)
            for name, size in zip(names, sizes, strict=True)
        },
        fusion_hidden=shape.fusion_hidden,
        optimizer=OPTIMIZERS[optimizer][0],
        seed=shape.seed,
    )
    assert_follows_joint_network(federation, combine, loss_name, optimizer, num_exchanges=5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("combine", ["concat", "mean"])
@pytest.mark.parametrize("loss_name", LOSSES)
def test_every_loss_fusion_and_optimizer_equals_autograd_on_the_joint_network(
    loss_name: str, combine: str, optimizer: str
) -> None:
    shape = Shape(
        columns=(3, 1, 4),
        embeddings=(2, 4, 3),
        hidden=(5,),
        fusion_hidden=(6,),
        activation="relu",
        num_samples=17,
        batch_size=4,
        seed=0,
    )
    check_shape(shape, loss_name, combine, optimizer)


@pytest.mark.parametrize("num_parties", range(1, 7))
@settings(max_examples=15)
@given(data=st.data())
def test_generated_shapes_equal_autograd_on_the_joint_network(
    num_parties: int, data: st.DataObject
) -> None:
    check_shape(
        data.draw(shapes(num_parties)),
        loss_name=data.draw(st.sampled_from(sorted(LOSSES))),
        combine=data.draw(st.sampled_from(["concat", "mean"])),
        optimizer=data.draw(st.sampled_from(sorted(OPTIMIZERS))),
    )


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("combine", ["concat", "mean"])
def test_batch_norm_at_the_parties_follows_the_joint_network_too(fabric: str, combine: str) -> None:
    federation = make_federation(
        3, fabric=fabric, combine=combine, dtype=torch.float64, encoder=mlp_with_batch_norm()
    )

    assert_follows_joint_network(
        federation, combine, "binary_cross_entropy", "sgd", num_exchanges=7
    )


@pytest.mark.parametrize("num_parties", [1, 2, 5])
@pytest.mark.parametrize("combine", ["concat", "mean"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_fabric_changes_no_bit(encoder: str, combine: str, num_parties: int) -> None:
    trained = {}
    for fabric in FABRICS:
        federation = make_federation(
            num_parties,
            fabric=fabric,
            combine=combine,
            encoder=ENCODERS[encoder],
            fusion_dropout=0.3,
            optimizer=OPTIMIZERS["adam"][0],
        )
        events = train(federation, 8)
        trained[fabric] = weights(federation) | {
            "losses": torch.tensor([event.loss for event in events], dtype=torch.float64)
        }

    for fabric in FABRICS[1:]:
        assert_bitwise_equal(trained[FABRICS[0]], trained[fabric])


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("combine", ["concat", "mean"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_order_in_which_parties_are_listed_changes_no_bit(
    encoder: str, combine: str, fabric: str
) -> None:
    def trained(names: list[str]) -> dict[str, Tensor]:
        federation = make_federation(
            names=names,
            fabric=fabric,
            combine=combine,
            encoder=ENCODERS[encoder],
            columns={"bank": 2, "shop": 4, "telco": 3},
            optimizer=OPTIMIZERS["momentum"][0],
        )
        train(federation, 7)
        return weights(federation)

    first = trained(["bank", "shop", "telco"])
    assert_bitwise_equal(first, trained(["telco", "bank", "shop"]))
    assert_bitwise_equal(first, trained(["shop", "telco", "bank"]))


TIMINGS = {
    "constant": Profile(
        encode=Constant(value=3), step=Constant(value=7), latency=Constant(value=20), bandwidth=9
    ),
    "uniform": Profile(
        encode=Uniform(low=0, high=50), step=Uniform(low=1, high=9), latency=Uniform(low=0, high=99)
    ),
    "exponential": Profile(
        encode=Exponential(mean=10.0), step=Exponential(mean=3.0), latency=Exponential(mean=40.0)
    ),
    "trace": Profile(
        encode=Trace(values=(1, 80, 2)), step=Trace(values=(0, 5)), latency=Trace(values=(30, 1))
    ),
}


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_timing_changes_no_bit(encoder: str, timing: str) -> None:
    untimed = make_federation(3, fabric="simulated", encoder=ENCODERS[encoder])
    timed = make_federation(
        3,
        fabric="simulated",
        encoder=ENCODERS[encoder],
        profiles={"p1": TIMINGS[timing]},
        default_profile=TIMINGS["uniform"],
        fuse=Constant(value=4),
        fabric_seed=11,
    )
    train(untimed, 8)
    train(timed, 8)

    assert timed.fabric.now() > untimed.fabric.now()
    assert_bitwise_equal(weights(untimed), weights(timed))


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("name", METHODS)
class TestEveryMethod:
    """What holds for whatever is in the registry."""

    def build(self, name: str, fabric: str, **changes: object) -> Federation:
        settings = {
            "names": ["bank", "holder", "shop"],
            "method": METHODS[name](),
            "fabric": fabric,
            "encoder": ENCODERS["both"],
            "num_validation": 9,
            "combine": "mean",
            "default_profile": TIMINGS["trace"],
            "fuse": Trace(values=(1, 5, 9, 2, 6, 40, 3)),
            "optimizer": OPTIMIZERS["adam"][0],
        }
        return make_federation(**settings | changes)

    def test_trains(self, name: str, fabric: str) -> None:
        federation = self.build(name, fabric)
        before = weights(federation)

        events = train(federation, 12)

        after = weights(federation)
        assert [event.exchange for event in events] == list(range(1, 13))
        assert math.isfinite(events[-1].loss)
        assert events[-1].metrics is not None
        assert math.isfinite(events[-1].metrics["loss"])
        assert all(torch.isfinite(value).all() for value in after.values())
        assert {key.split(".")[0] for key in after if not torch.equal(before[key], after[key])} == {
            *federation.fabric.names,
            *(["fusion"] if federation.method.needs.fusion else []),
        }

    def test_same_seed_gives_the_same_bits(self, name: str, fabric: str) -> None:
        first, second = self.build(name, fabric), self.build(name, fabric)
        torch.manual_seed(1)
        train(first, 6)
        torch.manual_seed(2)
        train(second, 6)

        assert_bitwise_equal(weights(first), weights(second))

    def test_resumed_run_gives_the_bits_of_an_uninterrupted_one(
        self, name: str, fabric: str
    ) -> None:
        whole = self.build(name, fabric, fusion_dropout=0.2)
        train(whole, 9)
        begun = self.build(name, fabric, fusion_dropout=0.2)
        train(begun, 4)
        resumed = self.build(name, fabric, fusion_dropout=0.2)

        resume(resumed, checkpoint(begun))
        train(resumed, 9, LoopState(exchange=4))

        assert_bitwise_equal(weights(whole), weights(resumed))
        assert evaluate(resumed, "validation") == evaluate(whole, "validation")
        if fabric == "simulated":
            assert resumed.fabric.now() == whole.fabric.now()
