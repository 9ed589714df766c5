"""Optimizers by name, chosen by each participant for itself."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import nn

from colonnade.core.config import nearest
from colonnade.core.devices import on_cpu
from colonnade.core.errors import ConfigError
from colonnade.core.local_optimizers import DecayingSGD, LocalMomentum, Proximal
from colonnade.core.schedules import Schedule, SteadySchedule

__all__ = ["OPTIMIZERS", "OptimizerSpec", "optimizer_state", "restore_optimizer"]

OPTIMIZERS: Mapping[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "local_momentum": LocalMomentum,
    "proximal": Proximal,
    "decaying_sgd": DecayingSGD,
}

# These divide a gradient by its own size, and weight decay is a part of it: however small, it
# takes weights to zero by whole steps once the label holder sends gradients of zero.
_RESCALING = frozenset({"adam", "adagrad", "rmsprop"})

# One fused kernel for all parameters instead of several small ones each.
_FUSED = frozenset({"sgd", "adam", "adamw", "adagrad"})


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An optimizer by name, its learning rate, and options of torch's class of that name.

    Attributes:
        name: One of ``OPTIMIZERS``.
        lr: The learning rate at the beginning.
        options: Of torch's class, by its names.
        schedule: How the rate falls.
        clip: The largest norm of a step's gradient, over all weights together; none if not given.
    """

    name: str = "adam"
    lr: float = 1e-3
    options: Mapping[str, float | bool] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=SteadySchedule)
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            hint = nearest(self.name, list(OPTIMIZERS))
            raise ConfigError(f"name: unknown optimizer '{self.name}'{hint}")
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"lr: must be above 0 and finite, got {self.lr}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ConfigError(f"clip: must be above 0 and finite, got {self.clip}")
        known = set(inspect.signature(OPTIMIZERS[self.name]).parameters) - {"params", "lr"}
        for key in self.options:
            if key not in known:
                raise ConfigError(f"options.{key}: unknown key{nearest(key, sorted(known))}")
        # Outside of these torch multiplies gradients and weight decay by any number.
        if not 0 <= self.options.get("dampening", 0.0) <= 1:
            raise ConfigError(f"options.dampening: from 0 to 1, got {self.options['dampening']}")
        if not 0 <= self.options.get("alpha", 0.0) < 1:
            raise ConfigError(f"options.alpha: from 0, below 1, got {self.options['alpha']}")
        try:
            self.build([nn.Parameter(torch.zeros(1))])
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"options: {self.name} refuses them: {error}") from error

    @property
    def shrinkage(self) -> float:
        """The share that weight decay takes off the weights in a step.

        Infinite where the optimizer rescales weight decay, so that its size means nothing.
        """
        group = self.build([nn.Parameter(torch.zeros(1))]).param_groups[0]
        decay = float(group.get("weight_decay", 0.0))
        momentum = float(group.get("momentum", 0.0))
        if decay and (self.name in _RESCALING or momentum >= 1):
            return math.inf
        return self.lr * decay / (1 - momentum) if decay else 0.0

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer for these parameters."""
        options: dict[str, Any] = dict(self.options)
        every = list(parameters)
        # Elsewhere torch chooses: not every device has them all.
        if self.name in _FUSED and all(item.device.type == "cpu" for item in every):
            options.setdefault("fused", True)
        return OPTIMIZERS[self.name](every, lr=self.lr, **options)  # type: ignore[call-arg]

    def over(self, num_exchanges: int) -> Self:
        """The same settings for a run of so many exchanges."""
        return replace(self, schedule=self.schedule.over(num_exchanges))

    @cached_property
    def is_plain(self) -> bool:
        """Whether a step is the optimizer's own: nothing clipped, and always the same rate."""
        return self.clip is None and isinstance(self.schedule, SteadySchedule)

    def step(self, optimizer: torch.optim.Optimizer, exchange: int) -> None:
        """One step of an optimizer that ``build`` made: gradients clipped, at the exchange's rate.

        Args:
            optimizer: Its rate is the one before any schedule; a method may change it.
            exchange: The number of the exchange.
        """
        if self.clip is not None:
            every = (item for group in optimizer.param_groups for item in group["params"])
            nn.utils.clip_grad_norm_(every, self.clip)
        factor, groups = self.schedule.factor(exchange), optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        try:
            optimizer.step()
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's state with text keys only and on the CPU, for a checkpoint."""
    state = on_cpu(optimizer.state_dict())
    return {
        "slots": {str(number): dict(slot) for number, slot in state["state"].items()},
        "groups": [
            {key: list(item) if isinstance(item, tuple) else item for key, item in group.items()}
            for group in state["param_groups"]
        ],
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Put back what ``optimizer_state`` gave, on whatever device the weights are now."""
    groups = [
        {
            # Which kernels there are is a matter of the device, not of the state.
            **{key: tuple(item) if key == "betas" else item for key, item in group.items()},
            **{key: own[key] for key in ("fused", "foreach") if key in own},
        }
        for group, own in zip(state["groups"], optimizer.param_groups, strict=True)
    ]
    slots = {int(number): slot for number, slot in state["slots"].items()}
    optimizer.load_state_dict({"state": slots, "param_groups": groups})
