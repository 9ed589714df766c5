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

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.messages import Batch
from colonnade.protect.noise import Array, SecretNoise
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
        dtype = np.float64 if sequence.dtype == torch.float64 else np.float32
        shape = tuple(sequence.shape)
        noise = self.noise.uniform(shape, math.sqrt(3) * self.spec.inner, dtype, label)
        blurred = sequence + torch.from_numpy(noise)
        return (blurred, *output[1:]) if isinstance(output, tuple) else blurred

    def _release(self, layer: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        """Clip each sample's output, and add the Gaussian (11a)."""
        noisy: Tensor = _ClipAndAdd.apply(output, self)  # type: ignore[no-untyped-call]
        return noisy

    def clip_and_add(self, flat: Array) -> tuple[Array, Array, Array]:
        """What leaves; and each sample's norm, and the factor that clipped it."""
        kind = flat.dtype.type
        # A zero sample has no direction: the least bit keeps it from a division by zero.
        norm = np.sqrt(np.einsum("ij,ij->i", flat, flat) + kind(1e-30))[:, None]
        scale = np.minimum(kind(self.spec.clip) / norm, kind(1.0))
        noisy = flat * scale
        deviation = self.spec.noise * self.spec.clip
        # The noise that hides these values, and no others.
        label = self._label + b"output" + self.noise.fingerprint(noisy.tobytes())
        noisy += self.noise.gaussian(noisy.shape, deviation, kind, label)
        return noisy, norm, scale


class _ClipAndAdd(torch.autograd.Function):
    """h min(1, C / |h|) + noise, per sample; the gradient goes through the clipping."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, perturbation: Perturbation) -> Tensor:
        flat = output.detach().flatten(1).numpy()
        noisy, norm, scale = perturbation.clip_and_add(flat)
        ctx.arrays = flat, norm, scale
        return torch.from_numpy(noisy).view(output.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        flat, norm, scale = ctx.arrays
        given = gradient.flatten(1).numpy()
        if scale.min(initial=1.0) >= 1.0:
            return gradient, None
        # What points along a clipped sample does not change its direction, which alone is left.
        along = np.einsum("ij,ij->i", given, flat)[:, None] / (norm * norm)
        along *= scale < 1.0
        inner = along * flat
        np.subtract(given, inner, out=inner)
        inner *= scale
        return torch.from_numpy(inner).view(gradient.shape), None


def _place_of_output(encoder: nn.Module) -> nn.Module:
    """The module whose output is clipped and noised: the last before plain activations."""
    if not isinstance(encoder, nn.Sequential) or len(encoder) == 0:
        return encoder
    layers = list(encoder)
    while len(layers) > 1 and isinstance(layers[-1], _ACTIVATIONS):
        layers.pop()
    return _place_of_output(layers[-1])
