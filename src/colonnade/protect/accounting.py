"""What a party's releases amount to, per sample, and when its budget is spent.

Every release of a sample's embedding is one Gaussian mechanism. Its sensitivity is that of
*replacing* the sample's columns at this party: two clipped vectors are at most 2C apart, and the
noise has deviation σC, so one release is (2/σ)-GDP. (That a sample exists is no secret: alignment
told the label holder. If a column block were only removed, i.e. replaced by zeros, the distance
would be C and the figures half as large.) k releases of one sample compose to 2√k/σ exactly. The
label holder knows which samples a batch holds: nothing is amplified by sampling.

ε for a given δ comes from dp-accounting's analysis of the Gaussian mechanism, for a δ that is
smaller by what the noise's table may be off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import BudgetSpent
from colonnade.core.protection import Encoding
from colonnade.protect.budget import Budget, shown_budget
from colonnade.protect.extra import needed
from colonnade.protect.rounded_gaussian import ERROR_OF_A_DRAW

__all__ = ["Account", "epsilon_of", "epsilon_of_mu", "largest_mu", "mu_of", "num_releases_within"]

# So many releases are counted at a time: one by one takes as long as all of them at once.
_MOST_PENDING = 64
# How far apart two clipped embeddings of one sample can be, in units of the clipping norm.
SENSITIVITY = 2.0
# Of all numbers of one person together, of which there are fewer than 2^40.
_ERROR = ERROR_OF_A_DRAW * 2.0**40
_MOST_EPSILON = 30.0


def mu_of(num_releases: int, noise: float) -> float:
    """Gaussian differential privacy of so many releases of one sample."""
    return SENSITIVITY * math.sqrt(num_releases) / noise


@lru_cache(maxsize=4096)
def epsilon_of(num_releases: int, noise: float, delta: float) -> float:
    """The smallest ε for δ of so many releases of one sample."""
    if num_releases == 0:
        return 0.0
    # Gaussian mechanisms in a row are one with a smaller deviation.
    return epsilon_of_mu(mu_of(num_releases, noise), delta)


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The smallest ε for δ of releases that are μ-GDP together; drawn from the table.

    A draw differs from the rounded Gaussian in total variation, so δ grows by (1 + e^ε) times that.
    Where this would be a part of δ to speak of, beyond ε = 30, ε is that of ideal noise.
    """
    if mu == 0:
        return 0.0
    accounting = needed("dp_accounting", "accounting")
    ideal: float = accounting.get_epsilon_gaussian(1.0 / mu, delta)
    if ideal > _MOST_EPSILON:
        return ideal
    slack = (1.0 + math.exp(ideal + 1.0)) * _ERROR
    if slack >= delta:
        return math.inf
    # The root finder may end a last place below the ideal one where the slack is next to nothing.
    found = max(ideal, accounting.get_epsilon_gaussian(1.0 / mu, delta - slack))
    return found if found <= ideal + 1.0 else math.inf


def num_releases_within(budget: Budget, noise: float) -> int:
    """How many releases of one sample a budget allows."""

    def fits(count: int) -> bool:
        if budget.mu is not None:
            return mu_of(count, noise) <= budget.mu
        assert budget.epsilon is not None
        return epsilon_of(count, noise, budget.delta) <= budget.epsilon

    low, high = 0, 1
    while fits(high) and high < 2**40:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_mu(budget: Budget) -> float:
    """The largest μ that a budget allows."""
    if budget.mu is not None:
        return budget.mu
    assert budget.epsilon is not None
    low, high = 0.0, 1.0
    while epsilon_of_mu(high, budget.delta) <= budget.epsilon:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        fits = epsilon_of_mu(middle, budget.delta) <= budget.epsilon
        low, high = (middle, high) if fits else (low, middle)
    return low


class Account:
    """How often each sample of each part was released, and how often it may be.

    It never goes back: not with weights that go back to a checkpoint, and, if there is a ledger
    to ``recall``, not with a process that begins anew. What is sent again, equal noise on equal
    values, is the same release and counts once.
    """

    def __init__(self, *, party: str, noise: float, delta: float, budget: Budget | None) -> None:
        self._party = party
        self._noise = noise
        self._delta = delta if budget is None else budget.delta
        self._budget = budget
        self.allowed = None if budget is None else num_releases_within(budget, noise)
        self._counts: dict[str, np.ndarray[Any, np.dtype[np.int32]]] = {}
        self._most = 0
        # Released and not yet in the counts: part, samples in it, and which.
        self._pending: list[tuple[str, int, Tensor]] = []
        # The names of all releases that were counted.
        self._seen: set[bytes] = set()
        # Batches by part that a ledger knows of, until it is known which samples they hold.
        self._recalled: dict[str, list[int]] = {}
        # Counts by part of a checkpoint, until those of the ledger are known.
        self._kept: dict[str, np.ndarray[Any, np.dtype[np.int32]]] = {}

    @property
    def num_releases(self) -> int:
        """Of the sample that was released most often."""
        self._count()
        return self._most

    def recall(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Take up what the entries of a ledger say was released before."""
        for entry in entries:
            for name, part, number in entry.get("released", ()):
                self._seen.add(bytes.fromhex(name))
                self._recalled.setdefault(part, []).append(number)
            self._most = max(self._most, int((entry.get("spent") or {}).get("releases", 0)))

    def charge(self, encoding: Encoding, name: bytes) -> bool:
        """Count one release of each of an encoding's samples, or raise BudgetSpent.

        False if the release of this name was counted before.
        """
        if name and name in self._seen:
            return False
        batch, plan = encoding.batch, encoding.plan
        if batch.part in self._recalled:
            numbers = self._recalled.pop(batch.part)
            self._pending += [
                (batch.part, plan.num_samples, plan.positions(number)) for number in numbers
            ]
            self._count()
            self._raise_to_checkpoint(batch.part)
        positions = plan.positions(batch.number)
        # Every release adds one at most: unless that could be too many, there is time to count.
        if self.allowed is not None and self._most + len(self._pending) >= self.allowed:
            self._count()
            before = self._counts_of(batch.part, plan.num_samples)[positions.numpy()]
            if self._budget is not None and before.max(initial=0) >= self.allowed:
                raise BudgetSpent(
                    f"party '{self._party}' refuses by its policy, rule 'budget': batch "
                    f"{batch.number} of part '{batch.part}' has samples that were "
                    f"released {before.max()} times; with noise {self._noise:g} the budget "
                    f"({shown_budget(self._budget)}) allows {self.allowed}; use more noise, fewer "
                    "epochs or evaluations, or raise the budget",
                    party=self._party,
                )
        self._pending.append((batch.part, plan.num_samples, positions))
        if len(self._pending) >= _MOST_PENDING:
            self._count()
        self._seen.add(name)
        return True

    def spent(self) -> dict[str, float]:
        """Of the sample that was released most often: releases, μ, and ε for δ."""
        count = self.num_releases
        return {
            "releases": float(count),
            "mu": mu_of(count, self._noise),
            "epsilon": epsilon_of(count, self._noise, self._delta),
            "delta": self._delta,
        }

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        self._count()
        counts = {name: torch.from_numpy(item.copy()) for name, item in self._counts.items()}
        return {"counts": counts, "most": self._most}

    def restore(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint; of what it says and what the ledger says, the larger."""
        self._count()
        for part, item in state["counts"].items():
            self._kept[part] = item.numpy()
            # What the ledger says of a part is counted when its first batch comes.
            if part not in self._recalled:
                self._raise_to_checkpoint(part)
        self._most = max(self._most, state["most"])

    def _raise_to_checkpoint(self, part: str) -> None:
        kept = self._kept.pop(part, None)
        if kept is not None:
            counts = self._counts_of(part, len(kept))
            np.maximum(counts, kept, out=counts)
            self._most = max(self._most, int(counts.max(initial=0)))

    def _count(self) -> None:
        """Bring the counts up to date."""
        for (part, num_samples), released in groupby(self._pending, key=lambda item: item[:2]):
            positions = np.concatenate([item[2].numpy() for item in released])
            counts = self._counts_of(part, num_samples)
            np.add.at(counts, positions, 1)
            self._most = max(self._most, int(counts[positions].max(initial=0)))
        self._pending = []

    def _counts_of(self, part: str, num_samples: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        counts = self._counts.get(part)
        if counts is None:
            counts = np.zeros(num_samples, dtype=np.int32)
        elif len(counts) != num_samples:
            # Samples to predict come without a name that lasts: take the worst case of any before.
            counts = np.full(num_samples, counts.max(initial=0), dtype=np.int32)
        self._counts[part] = counts
        return counts
