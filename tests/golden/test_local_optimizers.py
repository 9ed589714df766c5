"""Local optimizers against the weighted sums of Flex-VFL, section IV, and the rates that Adaptive
Flex-VFL (Algorithm 2) makes of their weights. The formulas are written out here once more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from colonnade.core.federation import Federation, LoopState
from colonnade.core.local_optimizers import DecayingSGD, LocalMomentum, Proximal, step_weights
from colonnade.core.method import Method
from colonnade.core.optimizers import OptimizerSpec
from colonnade.fabrics.durations import Constant, Trace, Uniform
from colonnade.fabrics.simulated import Profile
from colonnade.methods.asynchronous import Asynchronous
from colonnade.methods.fedbcd import FedBCD
from colonnade.methods.flex import AdaptiveFlex, Flex
from colonnade.methods.vafl import VAFL
from federations import assert_bitwise_equal, checkpoint, make_federation, resume, train, weights
from probes import assert_plain

SPECS: Mapping[str, OptimizerSpec] = {
    "sgd": OptimizerSpec(name="sgd", lr=0.08),
    "local_momentum": OptimizerSpec(name="local_momentum", lr=0.03, options={"momentum": 0.7}),
    "proximal": OptimizerSpec(name="proximal", lr=0.06, options={"pull": 0.9}),
    "decaying_sgd": OptimizerSpec(name="decaying_sgd", lr=0.05, options={"decay": 0.4}),
}
ADAM = OptimizerSpec(name="adam", lr=0.02)

# Section IV, by hand: w_t of τ local steps, at learning rate η.
WEIGHTS: Mapping[str, Callable[[int, int, float], float]] = {
    "sgd": lambda t, tau, eta: 1.0,
    "local_momentum": lambda t, tau, eta: (1 - 0.7 ** (tau - t)) / (1 - 0.7),
    "proximal": lambda t, tau, eta: (1 - eta * 0.9) ** (tau - 1 - t),
    "decaying_sgd": lambda t, tau, eta: 1 / (1 + 0.4 * t),
    "adam": lambda t, tau, eta: 1.0,
}


def largest_weight(name: str, tau: int, eta: float) -> float:
    return max(WEIGHTS[name](t, tau, eta) for t in range(tau))


class Recorder:
    """Every gradient that an optimizer steps along, its rate, and the weights around them."""

    def __init__(self, owner: Any) -> None:
        self.optimizer: torch.optim.Optimizer = owner.optimizer
        self.parameters = [
            item for group in self.optimizer.param_groups for item in group["params"]
        ]
        self.start = self.now()
        self.gradients: list[Tensor] = []
        self.rates: list[float] = []
        # One entry per exchange.
        self.num_steps: list[int] = []
        self.rate_of: list[float] = []
        step = self.optimizer.step

        def recording(*arguments: Any) -> Any:
            self.gradients.append(torch.cat([item.grad.flatten() for item in self.parameters]))
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            return step(*arguments)

        self.optimizer.step = recording  # type: ignore[method-assign]

    def now(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.parameters).detach().clone()

    def exchange_ends(self) -> tuple[Tensor, list[Tensor]]:
        """How far the weights went in this exchange, and along which gradients."""
        moved, gradients = self.now() - self.start, self.gradients
        assert len(set(self.rates)) == 1
        self.num_steps.append(len(gradients))
        self.rate_of.append(self.rates[0])
        self.start, self.gradients, self.rates = self.now(), [], []
        return moved, gradients


def recorders(federation: Federation) -> dict[str, Recorder]:
    owners = {**federation.fabric.parties, "holder": federation.holder}
    return {name: Recorder(owner) for name, owner in owners.items()}


def weighted_sum(name: str, gradients: list[Tensor], eta: float) -> Tensor:
    tau = len(gradients)
    return sum(
        (WEIGHTS[name](t, tau, eta) * item for t, item in enumerate(gradients)),
        start=torch.zeros_like(gradients[0]),
    )


class TestByThemselves:
    @pytest.mark.parametrize("name", SPECS)
    @given(
        num_exchanges=st.integers(1, 3),
        num_steps=st.lists(st.integers(1, 12), min_size=3, max_size=3),
        seed=st.integers(0, 1000),
    )
    def test_an_exchange_is_the_weighted_sum_of_its_gradients(
        self, name: str, num_exchanges: int, num_steps: list[int], seed: int
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        parameters = [
            nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
            for shape in [(3, 2), (4,)]
        ]
        optimizer = SPECS[name].build(parameters)
        for tau in num_steps[:num_exchanges]:
            before = nn.utils.parameters_to_vector(parameters).detach().clone()
            if isinstance(optimizer, LocalMomentum | Proximal | DecayingSGD):
                optimizer.begin_exchange()
            gradients = []
            for _ in range(tau):
                for parameter in parameters:
                    parameter.grad = torch.randn(
                        parameter.shape, generator=generator, dtype=torch.float64
                    )
                gradients.append(torch.cat([item.grad.flatten() for item in parameters]))
                optimizer.step()
            moved = nn.utils.parameters_to_vector(parameters).detach() - before
            eta = SPECS[name].lr
            expected = -eta * weighted_sum(name, gradients, eta)
            torch.testing.assert_close(moved, expected, atol=1e-10, rtol=0.0)
            found = step_weights(optimizer, tau)
            assert found == pytest.approx([WEIGHTS[name](t, tau, eta) for t in range(tau)])

    def test_weights_of_others(self) -> None:
        parameters = [nn.Parameter(torch.zeros(2))]
        adam = OptimizerSpec(name="adam").build(parameters)
        lasting = OptimizerSpec(name="sgd", options={"momentum": 0.7}).build(parameters)
        assert step_weights(adam, 3) == [1.0, 1.0, 1.0]
        # As if it began anew: 1 + 0.7 + 0.49, 1 + 0.7, 1.
        assert step_weights(lasting, 3) == pytest.approx([2.19, 1.7, 1.0])

    def test_momentum_that_lasts_is_no_such_sum_from_the_second_exchange_on(self) -> None:
        spec = OptimizerSpec(name="sgd", lr=0.03, options={"momentum": 0.7})
        federation = make_federation(
            2, method=FedBCD(local_steps=3), dtype=torch.float64, optimizer=spec
        )
        recorder = recorders(federation)["p0"]
        state = LoopState()
        misses = []
        for number in (1, 2):
            train(federation, number, state)
            state.stopped_by = ""
            moved, gradients = recorder.exchange_ends()
            expected = -0.03 * weighted_sum("local_momentum", gradients, 0.03)
            misses.append(float((moved - expected).abs().max()))
        assert misses[0] < 1e-12
        assert misses[1] > 1e-6


METHODS_WITH_STEPS: Mapping[str, Method] = {
    "fedbcd": FedBCD(local_steps=4),
    "flex private": Flex(timeout=12),
    "flex shared": Flex(timeout=12, labels="shared"),
    "adaptive private": AdaptiveFlex(timeout=12),
    "adaptive shared": AdaptiveFlex(timeout=12, labels="shared"),
}


class TestInTraining:
    @pytest.mark.parametrize("method", METHODS_WITH_STEPS)
    @pytest.mark.parametrize("fabric", ["in_process", "simulated"])
    def test_each_party_has_its_own_and_each_exchange_is_its_weighted_sum(
        self, fabric: str, method: str
    ) -> None:
        # Parties p0 to p3 and the label holder, each with a different optimizer. Buffers that were
        # not reset would show from the second exchange on.
        kinds = {"p0": "sgd", "p1": "local_momentum", "p2": "proximal", "p3": "decaying_sgd"}
        kinds["holder"] = "local_momentum"
        federation = make_federation(
            4,
            method=METHODS_WITH_STEPS[method],
            fabric=fabric,
            dtype=torch.float64,
            default_profile=Profile(step=Uniform(low=1, high=5)),
            fuse=Constant(value=3),
            optimizer={name: SPECS[kind] for name, kind in kinds.items()},
        )
        found = recorders(federation)
        state = LoopState()
        for number in range(1, 6):
            train(federation, number, state)
            state.stopped_by = ""
            for name, recorder in found.items():
                moved, gradients = recorder.exchange_ends()
                eta = recorder.rate_of[-1]
                expected = -eta * weighted_sum(kinds[name], gradients, eta)
                torch.testing.assert_close(moved, expected, atol=1e-10, rtol=0.0, msg=name)
        # The test is about several steps per exchange, and there were some.
        assert all(max(found[name].num_steps) >= 2 for name in ("p0", "p1", "p2", "p3"))
        if method == "fedbcd":
            assert found["holder"].num_steps == [1] * 5

    @pytest.mark.parametrize("kind", ["local_momentum", "proximal", "decaying_sgd"])
    @pytest.mark.parametrize("method", [FedBCD(), Asynchronous(), VAFL(), VAFL(num_uploads=2)])
    def test_label_holder_begins_anew_with_every_exchange_too(
        self, method: Method, kind: str
    ) -> None:
        federation = make_federation(3, method=method, dtype=torch.float64, optimizer=SPECS[kind])
        recorder = recorders(federation)["holder"]
        state = LoopState()
        for number in range(1, 5):
            train(federation, number, state)
            state.stopped_by = ""
            moved, (gradient,) = recorder.exchange_ends()
            expected = -recorder.rate_of[-1] * gradient
            torch.testing.assert_close(moved, expected, atol=1e-12, rtol=0.0)

    def test_decaying_rate_begins_anew_with_every_exchange(self) -> None:
        federation = make_federation(
            1, method=FedBCD(local_steps=4), optimizer=SPECS["decaying_sgd"]
        )
        train(federation, 3)
        optimizer = federation.fabric.parties["p0"].optimizer
        assert {slot["num_steps"] for slot in optimizer.state.values()} == {4}


# What a step costs in each exchange, in ticks; with a timeout of 12: 12, 4, 2, 1 and 6 steps.
PACES = (1, 3, 5, 20, 2)


def unsteady(turn: int) -> Profile:
    """Steps that change their pace by the tick, so that τ differs from exchange to exchange."""
    paces = PACES[turn:] + PACES[:turn]
    return Profile(step=Trace(values=tuple(ticks for ticks in paces for _ in range(3))))


class TestAdaptiveRates:
    def check(self, federation: Federation, kinds: Mapping[str, str]) -> dict[str, Recorder]:
        found = recorders(federation)
        configured = {name: item.optimizer.param_groups[0]["lr"] for name, item in found.items()}
        state = LoopState()
        for number in range(1, 8):
            train(federation, number, state)
            state.stopped_by = ""
            for recorder in found.values():
                recorder.exchange_ends()
        for name, recorder in found.items():
            kind, rate = kinds[name], configured[name]
            # First: from how many steps fit by the clock, which is what it then did.
            before = [recorder.num_steps[0], *recorder.num_steps]
            for number in range(7):
                tau = before[number]
                eta = rate if number == 0 else recorder.rate_of[number - 1]
                expected = rate / (tau * largest_weight(kind, tau, eta))
                assert recorder.rate_of[number] == pytest.approx(expected, rel=1e-12)
        return found

    @pytest.mark.parametrize("labels", ["private", "shared"])
    @pytest.mark.parametrize("kind", [*SPECS, "adam"])
    def test_follow_the_formula_from_the_last_exchange(self, kind: str, labels: str) -> None:
        federation = make_federation(
            3,
            method=AdaptiveFlex(timeout=12, labels=labels),
            fabric="simulated",
            profiles={f"p{turn}": unsteady(turn) for turn in range(3)},
            fuse=Trace(values=(1, 1, 1, 6, 6, 20, 2)),
            optimizer=(SPECS | {"adam": ADAM})[kind],
        )
        found = self.check(federation, dict.fromkeys([*federation.fabric.names, "holder"], kind))
        # There was something to adapt to.
        assert all(len(set(recorder.num_steps)) >= 3 for recorder in found.values())
        assert all(len(set(recorder.rate_of)) >= 3 for recorder in found.values())

    def test_mixed_optimizers_each_by_its_own_weights(self) -> None:
        kinds = {
            "p0": "local_momentum",
            "p1": "adam",
            "p2": "proximal",
            "p3": "decaying_sgd",
            "holder": "sgd",
        }
        federation = make_federation(
            4,
            method=AdaptiveFlex(timeout=12),
            fabric="simulated",
            profiles={f"p{turn}": unsteady(turn) for turn in range(4)},
            fuse=Constant(value=4),
            optimizer={name: (SPECS | {"adam": ADAM})[kind] for name, kind in kinds.items()},
        )
        self.check(federation, kinds)

    @pytest.mark.parametrize("fuse", [0, 3])
    def test_steady_pace_gives_a_steady_rate_from_the_first_exchange_on(self, fuse: int) -> None:
        # p0: 12 // 2 = 6 steps, p1: 12 // 4 = 3. The label holder: as many as the fastest if its
        # work costs nothing, 12 // 3 = 4 otherwise.
        federation = make_federation(
            2,
            method=AdaptiveFlex(timeout=12),
            fabric="simulated",
            profiles={
                "p0": Profile(step=Constant(value=2)),
                "p1": Profile(step=Constant(value=4)),
            },
            fuse=Constant(value=fuse),
            optimizer=SPECS["sgd"],
        )
        found = self.check(federation, dict.fromkeys(["p0", "p1", "holder"], "sgd"))
        assert found["p0"].rate_of == pytest.approx([0.08 / 6] * 7)
        assert found["p1"].rate_of == pytest.approx([0.08 / 3] * 7)
        assert found["holder"].rate_of == pytest.approx([0.08 / (4 if fuse else 6)] * 7)

    def test_flex_leaves_rates_alone(self) -> None:
        federation = make_federation(
            1,
            method=Flex(timeout=12),
            fabric="simulated",
            default_profile=unsteady(0),
            optimizer=SPECS["local_momentum"],
        )
        found = recorders(federation)
        train(federation, 4)
        assert set(found["p0"].rates) == set(found["holder"].rates) == {0.03}


MIXED = {
    "p0": SPECS["local_momentum"],
    "p1": SPECS["proximal"],
    "p2": SPECS["decaying_sgd"],
    "p3": ADAM,
    "holder": OptimizerSpec(name="sgd", lr=0.05, options={"momentum": 0.9}),
}


@pytest.mark.parametrize("at", [1, 3, 4])
@pytest.mark.parametrize("method", METHODS_WITH_STEPS)
def test_resumes_in_the_middle_with_mixed_optimizers(method: str, at: int) -> None:
    def build() -> Federation:
        return make_federation(
            4,
            method=METHODS_WITH_STEPS[method],
            fabric="simulated",
            profiles={f"p{turn}": unsteady(turn) for turn in range(4)},
            fuse=Trace(values=(1, 1, 1, 6, 6, 20, 2)),
            optimizer=MIXED,
        )

    def rates(federation: Federation) -> list[float]:
        owners = [*federation.fabric.parties.values(), federation.holder]
        return [owner.optimizer.param_groups[0]["lr"] for owner in owners]

    whole, begun, resumed = build(), build(), build()
    train(whole, 7)
    train(begun, at)
    kept = checkpoint(begun)
    assert_plain(kept)
    resume(resumed, kept)
    assert rates(resumed) == rates(begun)
    train(resumed, 7, LoopState(exchange=at))

    assert_bitwise_equal(weights(whole), weights(resumed))
    assert rates(resumed) == rates(whole)
    assert resumed.fabric.now() == whole.fabric.now()
