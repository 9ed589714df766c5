"""Perturbed local embedding: noise in every layer, at the party, before anything leaves.

Paper: VAFL (Chen et al. 2020), section 4, equations (10) and (11): a random neuron is added to
every layer before its activation, uniform in the inner layers and Gaussian in the last.
Departures: each sample's last pre-activation is clipped to norm C first, so that its sensitivity is
known and does not rest on bounded weights; the deviation of the Gaussian is given as a multiple of
C. Where the last layer is not followed by plain activations only, clipping and Gaussian noise come
after the whole encoder.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.core.messages import Batch
from colonnade.protect.noise import SecretNoise
from colonnade.protect.specs import Perturb

__all__ = ["Perturbation"]

_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LSTM, nn.GRU)
# One value in, one value out, whatever the sample: what follows the noise and hides no less.
_ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU, nn.Identity, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.SiLU)


class Perturbation:
    """Adds its noise to an encoder by hooks, so that its weights keep their names."""

    def __init__(self, spec: Perturb, encoder: nn.Module, noise: SecretNoise) -> None:
        self.spec = spec
        self.noise = noise
        self._label = b""
        self._num_drawn = 0
        place = _place_of_output(encoder)
        if spec.inner > 0:
            inner = [item for item in encoder.modules() if isinstance(item, _WEIGHTED)]
            # The last one before the output has the Gaussian, or it follows at once.
            for layer in inner[:-1]:
                layer.register_forward_hook(self._blur)
        place.register_forward_hook(self._release)

    def begin(self, purpose: str, number: int, batch: Batch) -> None:
        """An encoding begins; its draws are labelled with this."""
        self._label = f"{purpose}\x1f{number}\x1f{batch.part}\x1f{batch.number}\x1f".encode()
        self._num_drawn = 0

    def _blur(self, layer: nn.Module, arguments: Any, output: Any) -> Any:
        """Uniform noise of variance inner² in an inner layer (11b)."""
        self._num_drawn += 1
        label = self._label + f"layer {self._num_drawn}".encode()
        sequence = output[0] if isinstance(output, tuple) else output
        noise = self.noise.uniform(sequence, math.sqrt(3) * self.spec.inner, label)
        blurred = sequence + noise
        return (blurred, *output[1:]) if isinstance(output, tuple) else blurred

    def _release(self, layer: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        """Clip each sample's output, and add the Gaussian (11a)."""
        noisy: Tensor = _ClipAndAdd.apply(output, self)  # type: ignore[no-untyped-call]
        return noisy

    def drawn_for(self, clipped: Tensor) -> Tensor:
        """The Gaussian noise that hides these values, and no others."""
        content: bytes = clipped.numpy().tobytes()
        deviation = self.spec.noise * self.spec.clip
        return self.noise.gaussian(clipped, deviation, self._label + b"output" + content)


class _ClipAndAdd(torch.autograd.Function):
    """h min(1, C / |h|) + noise, per sample; the gradient goes through the clipping."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, perturbation: Perturbation) -> Tensor:
        flat = output.flatten(1)
        norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        scale = (perturbation.spec.clip / norm).clamp_(max=1.0)
        clipped = flat * scale
        ctx.save_for_backward(flat, norm, scale)
        return clipped.add_(perturbation.drawn_for(clipped)).view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        flat, norm, scale = ctx.saved_tensors
        flat_gradient = gradient.flatten(1)
        along = (flat_gradient * flat).sum(dim=1, keepdim=True).div_(norm * norm)
        # A sample that was not clipped (a zero one has no direction) passes its gradient on.
        along.masked_fill_(scale >= 1.0, 0.0)
        inner = torch.addcmul(flat_gradient, along, flat, value=-1.0).mul_(scale)
        return inner.view_as(gradient), None


def _place_of_output(encoder: nn.Module) -> nn.Module:
    """The module whose output is clipped and noised: the last before plain activations."""
    if not isinstance(encoder, nn.Sequential) or len(encoder) == 0:
        return encoder
    layers = list(encoder)
    while len(layers) > 1 and isinstance(layers[-1], _ACTIVATIONS):
        layers.pop()
    return _place_of_output(layers[-1])
