"""Oracles for local steps: FedBCD, P-BCD, Sync-VFL and Flex-VFL against each other, against
centralized training, and against a slow reference that is written out here."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from colonnade.core.errors import ProtocolError
from colonnade.core.federation import Federation, LoopState
from colonnade.core.messages import Batch
from colonnade.core.method import Method
from colonnade.core.optimizers import OptimizerSpec
from colonnade.fabrics.durations import Constant
from colonnade.fabrics.simulated import Profile
from colonnade.methods.fedbcd import FedBCD
from colonnade.methods.flex import PBCD, Flex, SyncVFL
from colonnade.methods.splitnn import SplitNN
from federations import (
    ENCODERS,
    FABRICS,
    assert_bitwise_equal,
    make_federation,
    mlp,
    train,
    weights,
)
from messages import says

ADAM = OptimizerSpec(name="adam", lr=0.01)
LABELS = ("private", "shared")
LR = 0.1


def steps_of(ticks: int) -> Profile:
    return Profile(step=Constant(value=ticks))


def trained(method: Method, num_exchanges: int = 7, **settings: Any) -> dict[str, Tensor]:
    federation = make_federation(method=method, **{"num_parties": 3} | settings)
    events = train(federation, num_exchanges)
    losses = torch.tensor([event.loss for event in events], dtype=torch.float64)
    return weights(federation) | {"losses": losses}


def assert_unlike(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> None:
    """Every participant has some weight that differs."""
    unlike = {key.split(".")[0] for key in left if not torch.equal(left[key], right[key])}
    assert unlike == {key.split(".")[0] for key in left}


class Reference:
    """The federation's networks once more, trained by plain autograd and plain SGD."""

    def __init__(self, federation: Federation) -> None:
        parties = federation.fabric.parties
        self.encoders = {name: copy.deepcopy(party.encoder) for name, party in parties.items()}
        self.rows = {name: party.rows for name, party in parties.items()}
        self.fusion = copy.deepcopy(federation.holder.fusion)
        self.targets = federation.holder.targets

    def loss(self, fusion: nn.Module, h: Mapping[str, Tensor], batch: Batch) -> Tensor:
        return functional.binary_cross_entropy_with_logits(fusion(h), self.targets(batch))

    def encode(self, batch: Batch) -> dict[str, Tensor]:
        return {name: net(self.rows[name](batch)) for name, net in self.encoders.items()}

    def exchange(
        self, batch: Batch, num_steps: Mapping[str, int], holder_steps: int, labels: str
    ) -> None:
        """Everybody starts from the same snapshot; nobody sees another's local steps."""
        snapshot = {name: h.detach() for name, h in self.encode(batch).items()}
        before = copy.deepcopy(self.fusion)
        for name, encoder in self.encoders.items():
            stale = self.gradient_of_embedding(name, snapshot, before, batch)
            for _ in range(num_steps[name]):
                h = encoder(self.rows[name](batch))
                fresh = {**snapshot, name: h.detach()}
                gradient = (
                    stale
                    if labels == "private"
                    else self.gradient_of_embedding(name, fresh, before, batch)
                )
                descend(encoder, torch.autograd.grad(h, [*encoder.parameters()], gradient))
        for _ in range(holder_steps):
            loss = self.loss(self.fusion, snapshot, batch)
            descend(self.fusion, torch.autograd.grad(loss, [*self.fusion.parameters()]))

    def gradient_of_embedding(
        self, name: str, embeddings: Mapping[str, Tensor], fusion: nn.Module, batch: Batch
    ) -> Tensor:
        leaf = embeddings[name].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(
            self.loss(fusion, {**embeddings, name: leaf}, batch), leaf
        )
        return gradient

    def centralized_step(self, batch: Batch) -> None:
        """One step of SGD on the whole network, as if all columns were in one place."""
        networks = nn.ModuleList([*self.encoders.values(), self.fusion])
        optimizer = torch.optim.SGD(networks.parameters(), lr=LR)
        self.loss(self.fusion, self.encode(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    def weights(self) -> dict[str, Tensor]:
        encoders = {f"{name}.encoder": net for name, net in self.encoders.items()}
        return {
            f"{owner}.{key}": value
            for owner, net in {**encoders, "fusion": self.fusion}.items()
            for key, value in net.state_dict().items()
        }


def descend(network: nn.Module, gradients: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter -= LR * gradient


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=1e-10, rtol=0.0, msg=key)


@st.composite
def federations(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of a small federation in double precision, smooth so that no kink is near."""
    names = [f"p{number}" for number in range(draw(st.integers(1, 4)))]
    sizes = st.integers(1, 5)
    combine = draw(st.sampled_from(["concat", "mean"]))
    common = draw(sizes)
    hidden = tuple(draw(st.lists(st.integers(1, 5), max_size=2)))
    return {
        "names": names,
        "combine": combine,
        "dtype": torch.float64,
        "num_samples": draw(st.integers(4, 15)),
        "batch_size": draw(st.integers(1, 6)),
        "columns": {name: draw(sizes) for name in names},
        "encoder": {
            name: mlp(common if combine == "mean" else draw(sizes), hidden, activation="tanh")
            for name in names
        },
        "fusion_hidden": tuple(draw(st.lists(st.integers(1, 5), max_size=1))),
        "optimizer": OptimizerSpec(name="sgd", lr=LR),
        "seed": draw(st.integers(0, 1000)),
    }


class TestFedBCD:
    @pytest.mark.parametrize("fabric", FABRICS)
    @pytest.mark.parametrize("combine", ["concat", "mean"])
    @pytest.mark.parametrize("encoder", ENCODERS)
    def test_with_one_local_step_is_splitnn_bit_for_bit(
        self, encoder: str, combine: str, fabric: str
    ) -> None:
        settings = {
            "fabric": fabric,
            "combine": combine,
            "encoder": ENCODERS[encoder],
            "fusion_dropout": 0.3,
            "optimizer": ADAM,
        }
        assert_bitwise_equal(
            trained(FedBCD(local_steps=1), **settings), trained(SplitNN(), **settings)
        )

    def test_with_two_it_is_not(self) -> None:
        assert_unlike(trained(FedBCD(local_steps=2)), trained(SplitNN()))

    @given(settings=federations(), local_steps=st.integers(1, 6))
    def test_equals_a_stale_gradient_through_a_fresh_encoder(
        self, settings: dict[str, Any], local_steps: int
    ) -> None:
        federation = make_federation(method=FedBCD(local_steps=local_steps), **settings)
        reference = Reference(federation)
        state = LoopState()
        for number in range(4):
            reference.exchange(
                Batch("train", number),
                dict.fromkeys(settings["names"], local_steps),
                1,
                labels="private",
            )
            train(federation, number + 1, state)
            state.stopped_by = ""
            assert_close(weights(federation), reference.weights())


# Two steps of 3 ticks don't fit into 5: one each.
ONE_STEP = {"fabric": "simulated", "default_profile": steps_of(3)}


class TestOneStepEach:
    @pytest.mark.parametrize("labels", LABELS)
    @pytest.mark.parametrize("fuse", [0, 3])
    @pytest.mark.parametrize("encoder", ENCODERS)
    def test_flex_is_pbcd_bit_for_bit(self, encoder: str, fuse: int, labels: str) -> None:
        settings = ONE_STEP | {
            "encoder": ENCODERS[encoder],
            "fuse": Constant(value=fuse),
            "optimizer": ADAM,
        }
        assert_bitwise_equal(
            trained(Flex(labels=labels, timeout=5), **settings),
            trained(PBCD(labels=labels), **settings),
        )

    @pytest.mark.parametrize("fabric", FABRICS)
    @pytest.mark.parametrize("encoder", ENCODERS)
    def test_pbcd_is_splitnn_bit_for_bit(self, encoder: str, fabric: str) -> None:
        settings = {"encoder": ENCODERS[encoder], "fabric": fabric, "fusion_dropout": 0.3}
        assert_bitwise_equal(trained(PBCD(), **settings), trained(SplitNN(), **settings))

    @pytest.mark.parametrize("labels", LABELS)
    @pytest.mark.parametrize("name", ["flex", "pbcd"])
    @given(settings=federations())
    def test_is_one_step_of_centralized_sgd(
        self, name: str, labels: str, settings: dict[str, Any]
    ) -> None:
        method = PBCD(labels=labels) if name == "pbcd" else Flex(labels=labels, timeout=5)
        federation = make_federation(method=method, **ONE_STEP, **settings)
        reference = Reference(federation)
        state = LoopState()
        for number in range(4):
            reference.centralized_step(Batch("train", number))
            train(federation, number + 1, state)
            state.stopped_by = ""
            assert_close(weights(federation), reference.weights())


class TestEqualSpeeds:
    @pytest.mark.parametrize("labels", LABELS)
    @pytest.mark.parametrize("fuse", [0, 3])
    @pytest.mark.parametrize("steps", ["fixed", "min", "max"])
    @pytest.mark.parametrize("encoder", ["plain", "both"])
    def test_flex_is_synchronous_bit_for_bit(
        self, encoder: str, steps: str, fuse: int, labels: str
    ) -> None:
        # 20 // 3 = 6 steps each; the label holder 6 as well, or as many as the fastest.
        settings = {
            "fabric": "simulated",
            "default_profile": steps_of(3),
            "fuse": Constant(value=fuse),
            "encoder": ENCODERS[encoder],
            "optimizer": OptimizerSpec(name="local_momentum", lr=0.02),
            "num_exchanges": 4,
        }
        flex = trained(Flex(labels=labels, timeout=20), **settings)
        sync = SyncVFL(labels=labels, steps=steps, local_steps=6, timeout=20)

        assert_bitwise_equal(flex, trained(sync, **settings))
        other = SyncVFL(labels=labels, steps="fixed", local_steps=5)
        assert_unlike(flex, trained(other, **settings))

    def test_unequal_speeds_min_and_max_are_what_the_slowest_and_the_fastest_manage(self) -> None:
        # 20 // 7 = 2, 20 // 5 = 4, 20 // 2 = 10
        settings = {
            "fabric": "simulated",
            "profiles": {"p0": steps_of(7), "p1": steps_of(5), "p2": steps_of(2)},
        }
        for steps, count in {"min": 2, "max": 10}.items():
            assert_bitwise_equal(
                trained(SyncVFL(steps=steps, timeout=20), **settings),
                trained(SyncVFL(steps="fixed", local_steps=count), **settings),
            )


class TestFlex:
    @pytest.mark.parametrize("labels", LABELS)
    @given(settings=federations(), data=st.data())
    def test_equals_the_reference_at_every_pace(
        self, labels: str, settings: dict[str, Any], data: st.DataObject
    ) -> None:
        timeout = data.draw(st.integers(1, 12), "timeout")
        ticks = {name: data.draw(st.integers(1, 14), name) for name in settings["names"]}
        fuse = data.draw(st.integers(1, 14), "fuse")
        federation = make_federation(
            method=Flex(labels=labels, timeout=timeout),
            fabric="simulated",
            profiles={name: steps_of(count) for name, count in ticks.items()},
            fuse=Constant(value=fuse),
            **settings,
        )
        reference = Reference(federation)
        state = LoopState()
        for number in range(3):
            reference.exchange(
                Batch("train", number),
                {name: max(1, timeout // count) for name, count in ticks.items()},
                max(1, timeout // fuse),
                labels,
            )
            train(federation, number + 1, state)
            state.stopped_by = ""
            assert_close(weights(federation), reference.weights())

    def test_private_and_shared_labels_part_at_the_second_local_step(self) -> None:
        # 6 // 2 = 3 local steps.
        after: dict[str, dict[str, list[Tensor]]] = {}
        for labels in LABELS:
            federation = make_federation(
                3,
                method=Flex(labels=labels, timeout=6),
                fabric="simulated",
                default_profile=steps_of(2),
                dtype=torch.float64,
                encoder=mlp(activation="tanh"),
                optimizer=OptimizerSpec(name="sgd", lr=1.0),
            )
            after[labels] = {
                name: record_steps(party) for name, party in federation.fabric.parties.items()
            }
            train(federation, 1)
            after[labels]["fusion"] = [item for _, item in sorted(fusion_weights(federation))]

        assert len(after["private"]["p0"]) == 3
        for name in ("p0", "p1", "p2"):
            private, shared = after["private"][name], after["shared"][name]
            torch.testing.assert_close(private[0], shared[0], atol=1e-12, rtol=0.0)
            # From here on the shared form knows its own embedding as it has become.
            assert (private[1] - shared[1]).abs().max() > 1e-6
            assert (private[2] - shared[2]).abs().max() > 1e-6
        # The label holder does the same in both.
        for private, shared in zip(
            after["private"]["fusion"], after["shared"]["fusion"], strict=True
        ):
            assert torch.equal(private, shared)

    def test_private_labels_are_not_there_to_be_used(self) -> None:
        federation = make_federation(2, method=Flex())
        with pytest.raises(ProtocolError, match=says("'p0'", "labels", "private")):
            _ = federation.fabric.parties["p0"].replica


def record_steps(party: Any) -> list[Tensor]:
    """All weights of a party's encoder, after each of its local steps."""
    found: list[Tensor] = []
    step = party.step

    def recording(embedding: Tensor, gradient: Tensor) -> None:
        step(embedding, gradient)
        found.append(nn.utils.parameters_to_vector(party.encoder.parameters()).detach().clone())

    party.step = recording
    return found


def fusion_weights(federation: Federation) -> list[tuple[str, Tensor]]:
    return [item for item in weights(federation).items() if item[0].startswith("fusion.")]
