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
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.errors import ConfigError
from colonnade.core.messages import Batch
from colonnade.core.seeds import draws_nothing
from colonnade.protect.noise import Array, SecretNoise
from colonnade.protect.specs import Perturb

__all__ = ["Perturbation", "refuse_mixing"]

# Of so many encodings it is remembered what they would release; local steps make many.
_MOST_ENCODINGS = 1024
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
        self._key = ("", 0)
        # The names of what was drawn for the last encodings.
        self._released: dict[tuple[str, int], bytes] = {}
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
        self._key = purpose, number
        self._released.pop(self._key, None)
        if len(self._released) == _MOST_ENCODINGS:
            del self._released[next(iter(self._released))]

    def identity(self, purpose: str, number: int) -> bytes:
        """Names what an encoding releases; empty if that was long ago.

        Equal names mean equal noise on equal values: the same release.
        """
        return self._released.get((purpose, number), b"")

    @draws_nothing
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

    @draws_nothing
    def _release(self, layer: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        """Clip each sample's output, and add the Gaussian (11a)."""
        # A linear layer's output is nobody else's, and its own gradient does not look at it: the
        # noisy values take its place. Any other output may be shared, or be needed as it was.
        is_own = type(layer) is nn.Linear and output.dim() == 2 and output.is_contiguous()
        released = output if is_own else output.clone(memory_format=torch.contiguous_format)
        values = _rows_of(released.detach())
        clipped, scale = clip(values, self.spec.clip)
        # The noise that hides these values, and no others.
        label = self._label + b"output" + self.noise.fingerprint(clipped)
        deviation = self.spec.noise * self.spec.clip
        noise = self.noise.gaussian(clipped.shape, deviation, clipped.dtype.type, label)
        self._released[self._key] = self._released.get(self._key, b"") + self.noise.last
        np.add(clipped, noise, out=values)
        if released.grad_fn is not None:
            kept = torch.from_numpy(clipped), torch.from_numpy(scale), self.spec.clip
            released.grad_fn.register_prehook(partial(_through_clipping, *kept))
        return released


def refuse_mixing(encoder: nn.Module) -> None:
    """Raise ConfigError if a sample's embedding depends on the others of its batch.

    Clipping bounds what a sample does to its own embedding. In batch norm it does something to
    everybody's, which no bound here covers.
    """
    for name, module in encoder.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"'perturb' protects a sample in its own embedding, and batch norm ('{name}') "
                "carries it into those of its whole batch; choose an encoder without it (of the "
                "ResNets: norm = \"group\"), or leave out 'perturb'"
            )


def clip(values: Array, most: float) -> tuple[Array, Array]:
    """Every row shortened to a norm of ``most`` where it is longer; and the factors."""
    kind = values.dtype.type
    norm = np.sqrt(np.einsum("ij,ij->i", values, values))[:, None]
    # Shorter ones count as of full length: their factor is exactly 1, also where the norm is 0.
    np.maximum(norm, kind(most), out=norm)
    scale = np.divide(kind(most), norm, out=norm)
    return values * scale, scale


def _through_clipping(
    clipped: Tensor, scale: Tensor, most: float, gradients: tuple[Tensor, ...]
) -> tuple[Tensor]:
    """From the gradient by what was released to that by what was clipped."""
    (gradient,) = gradients
    rows = gradient if gradient.dim() == 2 else gradient.flatten(1)
    # What points along a clipped sample does not change its direction, which alone is left.
    along = (rows * clipped).sum(1, keepdim=True).mul_(scale < 1.0).mul_(most**-2)
    return (torch.addcmul(rows, clipped, along, value=-1.0).mul_(scale).view(gradient.shape),)


def _rows_of(values: Tensor) -> Array:
    """One row per sample; the same memory if it is laid out so."""
    rows: Array = (values if values.dim() == 2 else values.flatten(1)).numpy()
    return rows


def _place_of_output(encoder: nn.Module) -> nn.Module:
    """The module whose output is clipped and noised: the last before plain activations."""
    if not isinstance(encoder, nn.Sequential) or len(encoder) == 0:
        return encoder
    layers = list(encoder)
    while len(layers) > 1 and isinstance(layers[-1], _ACTIVATIONS):
        layers.pop()
    return _place_of_output(layers[-1])
