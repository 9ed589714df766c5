"""DP-SGD at a party: no step tells more of a person than its account says.

Paper: Abadi et al. 2016, Algorithm 1. Departures:

1. No amplification by sampling: the label holder chooses the batches and knows who is in them.
2. Replacing a sample's columns is what must not show, so the sensitivity of a clipped sum is twice
   the clipping norm.
3. Gradients are clipped and summed, and noise is added, in whole steps of a grid, by the rounded
   Gaussian of decision 0015.

The gradient that comes from the label holder may be anything. Each sample's gradient by the weights
is taken by itself, shortened to a norm, and the sum gets noise before the optimizer sees it. So
weights are a function of noisy sums, and so is whatever they carry into other samples' embeddings.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.errors import ConfigError, Diverged, Refused
from colonnade.core.protection import Encoding, Protection
from colonnade.protect.accounting import Account, mu_of
from colonnade.protect.budget import check_delta
from colonnade.protect.noise import SecretNoise
from colonnade.protect.perturb import clip, in_steps, refuse_mixing
from colonnade.protect.protection_spec import Place, ProtectionSpec, check_above_zero
from colonnade.protect.rounded_gaussian import STEPS

__all__ = ["PrivateSteps", "StepsWithNoise"]

# So many samples' gradients are in memory at a time.
_AT_ONCE = 32


@final
@dataclass(frozen=True, kw_only=True)
class PrivateSteps(ProtectionSpec):
    """DP-SGD at the party: every sample's gradient is clipped, their sum has noise.

    Args:
        noise: The noise's standard deviation, in multiples of ``clip``.
        clip: The norm that every sample's gradient by all weights is clipped to; of the sample's
            own loss, not of a mean over the batch.
        delta: The δ that ε is reported for.

    Raises:
        ConfigError: If a value is not above 0.
    """

    kind: ClassVar[str] = "private_steps"
    keeps_account: ClassVar[bool] = True

    noise: float
    clip: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("noise", "clip"):
            check_above_zero(name, getattr(self, name))
            if not 1e-12 < getattr(self, name) < 1e12:
                raise ConfigError(f"{name}: from 1e-12 to 1e12, got {getattr(self, name):g}")
        check_delta(self.delta)

    def stand_at(self, place: Place) -> Protection:
        if place.encoder is not None:
            refuse_mixing(place.encoder, place.owner, self.kind)
        if place.budget is not None and place.account is None:
            raise ConfigError(
                f"party.{place.owner}.policy: a budget over steps and embeddings needs an account "
                "by person, which a label holder does not keep of its own block; leave out "
                "'budget' or 'private_steps'"
            )
        return StepsWithNoise(self, place)


@final
class StepsWithNoise(Protection):
    """Clips each sample's gradient, adds noise to their sum, and keeps account."""

    kind = "private_steps"
    acts_on_steps = True

    def __init__(self, spec: PrivateSteps, place: Place) -> None:
        self._spec, self._party = spec, place.owner
        self._secret = secrets.token_bytes(32) if place.secret is None else place.secret
        self._noise = SecretNoise(self._secret)
        self._people = place.account
        # Of this run alone, and for what it tells; the account by person refuses.
        self._account = Account(party=place.owner, noise=spec.noise, delta=spec.delta, budget=None)

    def differentiate(
        self,
        output: Tensor,
        gradient: Tensor,
        parameters: Sequence[nn.Parameter],
        encoding: Encoding,
        further: Sequence[tuple[nn.Parameter, Tensor]],
    ) -> None:
        """Give every parameter the noisy mean of clipped gradients, charged before it moves."""
        if further:
            raise Refused(
                f"party '{self._party}' refuses, rule '{self.kind}': this method moves weights by "
                "gradients that are no sum over samples; use another method",
                party=self._party,
            )
        count, scale = len(output), STEPS / (self._spec.noise * self._spec.clip)
        total = np.zeros(sum(parameter.numel() for parameter in parameters))
        for begin in range(0, count, _AT_ONCE):
            some = self._by_sample(output, gradient, parameters, begin, begin + _AT_ONCE) * count
            if not np.isfinite(some).all():
                raise Diverged(
                    f"a sample's gradient at party '{self._party}' is not finite, which no noise "
                    "hides; lower its learning rate, or check its data",
                    party=self._party,
                )
            clipped, _ = clip(some, self._spec.clip)
            total += in_steps(clipped, scale, STEPS / self._spec.noise).sum(axis=0)
        batch = encoding.batch
        label = f"step\x1f{encoding.number}\x1f{batch.part}\x1f{batch.number}".encode()
        total += self._noise.whole_numbers(total.shape, label + self._noise.fingerprint(total))
        self._charge(encoding, self._noise.last)
        mean = _shaped(total / scale / max(count, 1), parameters)
        for parameter, own in zip(parameters, mean, strict=True):
            parameter.grad = own

    def _by_sample(
        self,
        output: Tensor,
        gradient: Tensor,
        parameters: Sequence[nn.Parameter],
        begin: int,
        end: int,
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The gradient of each of some samples by all parameters, a row for each."""
        rows = range(begin, min(end, len(output)))
        alone = torch.zeros((len(rows), *output.shape), dtype=output.dtype)
        for place, row in enumerate(rows):
            alone[place, row] = gradient[row]
        found = torch.autograd.grad(
            output,
            parameters,
            alone,
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=True,
            materialize_grads=True,
        )
        flat = torch.cat([item.reshape(len(rows), -1) for item in found], dim=1)
        return flat.cpu().double().numpy()

    def _charge(self, encoding: Encoding, name: bytes) -> None:
        if self._people is not None:
            if encoding.people is None:
                raise Refused(
                    f"'{self._party}' refuses, rule 'account': nobody said who the samples are",
                    party=self._party,
                )
            people = encoding.people[encoding.plan.positions(encoding.batch.number)]
            self._people.charge(name, people[people >= 0], mu_of(1, self._spec.noise) ** 2)
        self._account.charge(encoding, name)

    def spent(self) -> Mapping[str, float]:
        """Of the sample in most steps: how many, μ, and ε for δ; of steps alone."""
        return {f"step_{key}": number for key, number in self._account.spent().items()}

    def state(self) -> dict[str, Any]:
        """Secret and account."""
        return {"secret": self._secret.hex(), "account": self._account.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave; the account never goes back."""
        self._secret = bytes.fromhex(state["secret"])
        self._noise = SecretNoise(self._secret)
        self._account.restore(state["account"])


def _shaped(
    flat: np.ndarray[Any, np.dtype[np.float64]], parameters: Sequence[nn.Parameter]
) -> list[Tensor]:
    found, begin = [], 0
    for parameter in parameters:
        part = torch.from_numpy(flat[begin : begin + parameter.numel()])
        found.append(part.to(parameter.device, parameter.dtype).view(parameter.shape))
        begin += parameter.numel()
    return found
