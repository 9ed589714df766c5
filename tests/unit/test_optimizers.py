"""Optimizers by name: what is refused, and that a restored one continues to the bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from colonnade.core.errors import ConfigError
from colonnade.core.optimizers import (
    OPTIMIZERS,
    OptimizerSpec,
    optimizer_state,
    restore_optimizer,
)
from messages import says
from probes import assert_plain

SPECS = {
    **{name: OptimizerSpec(name=name, lr=0.01) for name in OPTIMIZERS},
    "sgd with momentum": OptimizerSpec(
        name="sgd", lr=0.01, options={"momentum": 0.9, "nesterov": True}
    ),
    "sgd with decay": OptimizerSpec(name="sgd", lr=0.01, options={"weight_decay": 0.1}),
    "adam with amsgrad": OptimizerSpec(name="adam", lr=0.01, options={"amsgrad": True}),
    "adam, not fused": OptimizerSpec(name="adam", lr=0.01, options={"fused": False}),
    "adagrad with decay": OptimizerSpec(name="adagrad", lr=0.01, options={"lr_decay": 0.1}),
    "rmsprop with momentum": OptimizerSpec(
        name="rmsprop", lr=0.01, options={"momentum": 0.9, "centered": True}
    ),
}


class Descent:
    """A small network on its way down, one seeded step at a time."""

    def __init__(self, spec: OptimizerSpec) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer = spec.build(self.network.parameters())

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        rows = torch.randn(5, 3, generator=generator)
        self.optimizer.zero_grad()
        (self.network(rows) ** 2).mean().backward()
        self.optimizer.step()

    def weights(self) -> Tensor:
        return torch.cat([item.detach().flatten() for item in self.network.parameters()])


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("num_before", [0, 1, 4])
def test_restored_optimizer_continues_to_the_bit(name: str, num_before: int) -> None:
    whole, begun, resumed = Descent(SPECS[name]), Descent(SPECS[name]), Descent(SPECS[name])
    for number in range(num_before + 5):
        whole.step(number)
    for number in range(num_before):
        begun.step(number)

    resumed.network.load_state_dict(copy.deepcopy(begun.network.state_dict()))
    restore_optimizer(resumed.optimizer, copy.deepcopy(optimizer_state(begun.optimizer)))
    for number in range(num_before, num_before + 5):
        resumed.step(number)

    assert torch.equal(resumed.weights(), whole.weights())


@pytest.mark.parametrize("name", SPECS)
def test_state_is_tensors_and_plain_values_with_text_keys(name: str) -> None:
    descent = Descent(SPECS[name])
    descent.step(0)
    assert_plain(optimizer_state(descent.optimizer))


class TestSpec:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_is_torch_s_class_of_that_name_with_this_learning_rate(self, name: str) -> None:
        made = OptimizerSpec(name=name, lr=0.25).build(nn.Linear(1, 1).parameters())
        assert type(made) is OPTIMIZERS[name]
        assert made.param_groups[0]["lr"] == 0.25

    def test_options_arrive(self) -> None:
        made = SPECS["sgd with momentum"].build(nn.Linear(1, 1).parameters())
        assert made.param_groups[0]["momentum"] == 0.9
        assert made.param_groups[0]["nesterov"] is True

    def test_unknown_name(self) -> None:
        with pytest.raises(ConfigError, match=says("name", "'adm'", "'adam'")):
            OptimizerSpec(name="adm")

    def test_unknown_option(self) -> None:
        with pytest.raises(ConfigError, match=says("options.momentun", "'momentum'")):
            OptimizerSpec(name="sgd", options={"momentun": 0.9})

    @pytest.mark.parametrize("key", ["lr", "params"])
    def test_what_has_its_own_place_is_no_option(self, key: str) -> None:
        with pytest.raises(ConfigError, match=says(f"options.{key}", "momentum")):
            OptimizerSpec(name="sgd", options={key: 1.0})

    @pytest.mark.parametrize("lr", [0.0, -1.0, float("nan")])
    def test_learning_rate_is_above_zero(self, lr: float) -> None:
        with pytest.raises(ConfigError, match=says("lr", "above 0", lr)):
            OptimizerSpec(lr=lr)
