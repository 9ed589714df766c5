"""Perturbed local embedding: clipping and Gaussian noise, at the party, before anything leaves.

Paper: VAFL (Chen et al. 2020), section 4, equations (10) and (11), Theorem 6. Departures:

1. Each sample's embedding is clipped to norm C first, so that its sensitivity is known and does not
   rest on bounded weights; the deviation of the Gaussian is given as a multiple of C.
2. The noise is a Gaussian rounded to whole steps of a fixed grid, and so is the embedding before:
   sums of whole numbers have no last bits that tell of what was added (decision 0015).
3. Noise is added to the embedding as the encoder gives it, not before its last activation, and
   none inside the network: nothing there bounds what leaves, and a network that is computed in
   another way than layer by layer would leave it out.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.errors import ConfigError, Diverged
from colonnade.core.protection import Encoding, Protection, Release
from colonnade.protect.accounting import Account, mu_of
from colonnade.protect.budget import check_delta
from colonnade.protect.noise import SecretNoise
from colonnade.protect.protection_spec import Place, ProtectionSpec, check_above_zero
from colonnade.protect.rounded_gaussian import STEPS, Array

__all__ = ["Perturb", "Perturbation", "clip", "in_steps", "refuse_mixing"]

# Of so many encodings it is remembered what they would release; local steps make many.
_MOST_ENCODINGS = 1024
# What leaves is a number in float32 if the encoder's are: it may not end in zeros or infinities.
_LEAST_DEVIATION = 1e-15
# With less, the steps of an embedding are no longer whole numbers in float64.
_LEAST_NOISE = 1e-13


@final
@dataclass(frozen=True, kw_only=True)
class Perturb(ProtectionSpec):
    """Gaussian noise on every embedding (VAFL, section 4).

    Args:
        noise: The noise's standard deviation, in multiples of ``clip``.
        clip: The norm that every sample's embedding is clipped to.
        delta: The δ that ε is reported for.

    Raises:
        ConfigError: If a value is not above 0, or the deviation no number in float32.
    """

    kind: ClassVar[str] = "perturb"
    keeps_account: ClassVar[bool] = True

    noise: float
    clip: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("noise", "clip"):
            check_above_zero(name, getattr(self, name))
        if not _LEAST_DEVIATION <= self.noise * self.clip <= 1 / _LEAST_DEVIATION:
            raise ConfigError(
                f"noise, clip: the noise's deviation {self.noise:g} x {self.clip:g} is outside "
                f"{_LEAST_DEVIATION:g} to {1 / _LEAST_DEVIATION:g}, where numbers in float32 end"
            )
        if self.noise < _LEAST_NOISE:
            raise ConfigError(f"noise: {self.noise:g} hides nothing; at least {_LEAST_NOISE:g}")
        check_delta(self.delta)

    @property
    def noise_multiplier(self) -> float:
        """The noise's deviation in units of the clipping norm."""
        return self.noise

    @property
    def clipping_norm(self) -> float:
        """The norm that every sample's embedding is clipped to."""
        return self.clip

    def stand_at(self, place: Place) -> Protection:
        if place.encoder is not None:
            refuse_mixing(place.encoder, place.owner, self.kind)
        return Perturbation(self, place)


@final
class Perturbation(Protection):
    """Clips, adds noise, and keeps account of what left."""

    kind = "perturb"
    acts_when_made = True

    def __init__(self, spec: Perturb, place: Place) -> None:
        self._spec = spec
        self._party = place.owner
        self._secret = secrets.token_bytes(32) if place.secret is None else place.secret
        self._noise = SecretNoise(self._secret)
        # Of this run, by place in a part; where there is an account by person, that one refuses.
        self._account = Account(
            party=place.owner,
            noise=spec.noise,
            delta=spec.delta if place.budget is None else place.budget.delta,
            budget=None if place.account is not None else place.budget,
        )
        # The names of what was drawn for the last encodings: equal names mean equal noise on
        # equal values, which is the same release.
        self._names: dict[tuple[str, int], bytes] = {}

    def encoded(self, embedding: Tensor, encoding: Encoding) -> Tensor:
        """Clip each sample's embedding, and add the Gaussian (11a)."""
        purpose, number, batch = encoding[:3]
        # A copy: the encoder's way back may need its output as it was.
        released = embedding.clone(memory_format=torch.contiguous_format)
        values = _rows_of(released.detach())
        if not np.isfinite(values).all():
            raise Diverged(
                f"the embedding of party '{self._party}' has values that are not finite, which no "
                "noise hides; lower its learning rate, or check its data",
                party=self._party,
            )
        clipped, scale = clip(values, self._spec.clip)
        steps = in_steps(
            clipped, STEPS / (self._spec.noise * self._spec.clip), STEPS / self._spec.noise
        )
        # The noise that hides these values, and no others.
        label = f"{purpose}\x1f{number}\x1f{batch.part}\x1f{batch.number}\x1foutput".encode()
        label += self._noise.fingerprint(steps)
        steps += self._noise.whole_numbers(steps.shape, label)
        self._names.pop((purpose, number), None)
        if len(self._names) == _MOST_ENCODINGS:
            del self._names[next(iter(self._names))]
        self._names[purpose, number] = self._noise.last
        # From here on it is a function of whole numbers, and no more of the embedding.
        step = self._spec.noise * self._spec.clip / STEPS
        np.multiply(steps, step, out=values, casting="same_kind")
        if released.grad_fn is not None:
            kept = torch.from_numpy(clipped), torch.from_numpy(scale), self._spec.clip
            released.grad_fn.register_prehook(partial(_through_clipping, *kept))
        return released

    def account(self, made: Sequence[Encoding]) -> list[Any]:
        """Charge for every encoding that did not leave before; their names and batches."""
        charged = []
        for item in made:
            name = self._names.get((item.purpose, item.number), b"")
            if self._account.charge(item, name):
                charged.append((name.hex(), item.batch.part, item.batch.number))
        return charged

    def release(self, encoding: Encoding) -> Release:
        """The draw's name; one release of a sample is (2/σ)-GDP."""
        name = self._names.get((encoding.purpose, encoding.number), b"")
        return Release(name, self.price())

    def price(self) -> float:
        """One release of a sample is (2/σ)-GDP."""
        return mu_of(1, self._spec.noise) ** 2

    def spent(self) -> Mapping[str, float]:
        """Releases, μ, and ε for δ of the sample that was released most often."""
        return self._account.spent()

    def recall(self, entries: Iterator[Mapping[str, Any]]) -> None:
        """Take up the releases that a ledger knows of."""
        self._account.recall(entries)

    def state(self) -> dict[str, Any]:
        """Secret and account."""
        return {"secret": self._secret.hex(), "account": self._account.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave; the account never goes back."""
        self._secret = bytes.fromhex(state["secret"])
        self._noise = SecretNoise(self._secret)
        self._account.restore(state["account"])


def refuse_mixing(encoder: nn.Module, party: str, kind: str) -> None:
    """Raise ConfigError if a sample's embedding depends on the others of its batch.

    Clipping bounds what a sample does to its own embedding. In batch norm it does something to
    everybody's, which no bound here covers.
    """
    for name, module in encoder.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"party.{party}.protect: '{kind}' protects a sample in its own embedding, and "
                f"batch norm ('{name}') carries it into those of its whole batch; choose an "
                'encoder without it (of the ResNets: norm = "group"), or leave out '
                f"'{kind}'"
            )


def clip(values: Array, most: float) -> tuple[Array, Array]:
    """Every row shortened to a norm of ``most`` where it is longer; and the factors."""
    kind = values.dtype.type
    norm = np.sqrt(np.einsum("ij,ij->i", values, values))[:, None]
    # Shorter ones count as of full length: their factor is exactly 1, also where the norm is 0.
    np.maximum(norm, kind(most), out=norm)
    scale = np.divide(kind(most), norm, out=norm)
    return values * scale, scale


def in_steps(rows: Array, steps_per_unit: float, most: float) -> Array:
    """Rows as whole numbers of steps (float64), each of a norm of at most ``most`` steps.

    Rounding goes towards zero and makes no row longer. Whether a row is short enough is asked of
    the whole numbers: floating point may have left it a little too long.
    """
    steps: Array = np.multiply(rows, steps_per_unit, dtype=np.float64)
    np.trunc(steps, out=steps)
    # The sum of squares is off by a unit in the last place for each of them at most.
    most_squared = most * most * (1.0 - (rows.shape[1] + 4) * 2.0**-52)
    factor = 1.0
    while (long := np.einsum("ij,ij->i", steps, steps) > most_squared).any():
        factor -= 2.0**-20
        steps[long] = np.trunc(steps[long] * factor)
    return steps


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
