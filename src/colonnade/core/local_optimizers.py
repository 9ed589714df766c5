"""Optimizers that know where an exchange begins (Flex-VFL, section IV).

Each writes its cumulative update over an exchange's τ local steps as a weighted sum of gradients,
θ^τ = θ^0 - η Σ_t w_t g_t; ``step_weights`` gives the w_t, which Adaptive Flex-VFL needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["DecayingSGD", "LocalMomentum", "LocalOptimizer", "Proximal", "step_weights"]


class LocalOptimizer(torch.optim.Optimizer, ABC):
    """Base of optimizers with something to do at the start of an exchange."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, **defaults: float) -> None:
        super().__init__(params, {"lr": lr, **defaults})
        self.begin_exchange()

    @torch.no_grad()
    def begin_exchange(self) -> None:
        """Forget, or remember, what belongs to one exchange."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].update(self.fresh(parameter))

    @abstractmethod
    def fresh(self, parameter: Tensor) -> dict[str, Any]:
        """A parameter's state at the start of an exchange."""

    @abstractmethod
    def move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """One step of one parameter."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One local step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.move(parameter, parameter.grad, group)


class LocalMomentum(LocalOptimizer):
    """SGD whose momentum starts at zero in every exchange: u_t = ρ u_{t-1} + g_t."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.9) -> None:
        super().__init__(params, lr, momentum=momentum)

    def fresh(self, parameter: Tensor) -> dict[str, Any]:
        """No momentum."""
        return {"momentum": torch.zeros_like(parameter)}

    def move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Along the momentum."""
        momentum = self.state[parameter]["momentum"].mul_(group["momentum"]).add_(gradient)
        parameter.sub_(momentum, alpha=group["lr"])


class Proximal(LocalOptimizer):
    """SGD pulled back to where the exchange began: g_t + μ(θ_t - θ_0)."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, pull: float = 0.1) -> None:
        super().__init__(params, lr, pull=pull)

    def fresh(self, parameter: Tensor) -> dict[str, Any]:
        """Where the exchange begins."""
        return {"origin": parameter.detach().clone()}

    def move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Down the gradient and back towards the origin."""
        drift = parameter - self.state[parameter]["origin"]
        parameter.sub_(gradient.add(drift, alpha=group["pull"]), alpha=group["lr"])


class DecayingSGD(LocalOptimizer):
    """SGD whose rate falls within an exchange: η / (1 + decay · t)."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, decay: float = 0.1) -> None:
        super().__init__(params, lr, decay=decay)

    def fresh(self, parameter: Tensor) -> dict[str, Any]:
        """No step taken yet."""
        return {"num_steps": 0}

    def move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Less far each time."""
        state = self.state[parameter]
        parameter.sub_(gradient, alpha=group["lr"] / (1 + group["decay"] * state["num_steps"]))
        state["num_steps"] += 1


def step_weights(optimizer: torch.optim.Optimizer, num_steps: int) -> list[float]:
    """The weights w_t of an exchange's ``num_steps`` gradients (Flex-VFL, equation 8).

    Momentum that lasts over exchanges is counted as if it began anew. Adaptive ones (Adam,
    Adagrad, RMSprop) scale each gradient by its own size; their weights stand at 1.
    """
    group = optimizer.param_groups[0]
    left = range(num_steps, 0, -1)  # τ - t
    if isinstance(optimizer, Proximal):
        return [(1 - group["lr"] * group["pull"]) ** (count - 1) for count in left]
    if isinstance(optimizer, DecayingSGD):
        return [1 / (1 + group["decay"] * step) for step in range(num_steps)]
    momentum = group.get("momentum", 0.0)
    if isinstance(optimizer, LocalMomentum | torch.optim.SGD) and momentum:
        return [sum(momentum**power for power in range(count)) for count in left]
    return [1.0] * num_steps
