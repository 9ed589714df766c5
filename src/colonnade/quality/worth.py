"""Worth: how much each party adds to what a federation reaches, as Shapley values.

The game: the value of a set of parties is the quality of the predictions made from their blocks
alone. A party's worth is what it adds, averaged over all orders in which parties could come
together (Shapley 1953). Worths add up to the quality of all blocks less that of none. A set is a
number with bit k for party k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from colonnade.core.errors import ConfigError

__all__ = [
    "MOST_EXACT",
    "PartyWorth",
    "Ratings",
    "Worth",
    "exact_shapley",
    "mean_ratings",
    "r2_ratings",
    "sampled_orders",
    "sets_of_orders",
    "worth_of",
]

# With more parties than this, orders are sampled: the sets double with each.
MOST_EXACT = 12

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class PartyWorth:
    """What one party adds, and where 95 % of the bootstrap's values are."""

    party: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What everybody adds.

    Attributes:
        parties: In party order.
        total: The value of all parties together.
        nothing: The value of none.
        num_orders: How many orders were sampled; 0 if all sets were looked at.
    """

    parties: tuple[PartyWorth, ...]
    total: float
    nothing: float
    num_orders: int


@dataclass(frozen=True, kw_only=True)
class Ratings:
    """How well sets of parties predict each sample, and how that becomes a value.

    Attributes:
        by_set: A row of numbers per sample for every set that was looked at.
        value: From the rows of some sets and weights (replicate, sample) to values
            (set, replicate).
    """

    by_set: dict[int, Array]
    value: Callable[[Array, Array], Array]

    def values(self, sets: Sequence[int], weights: Array) -> Array:
        """The values of these sets, for every row of sample weights."""
        return self.value(np.stack([self.by_set[number] for number in sets]), weights)


def mean_ratings(by_set: dict[int, Array]) -> Ratings:
    """Values that are means over samples: accuracy, or what decisions gain."""

    def value(rows: Array, weights: Array) -> Array:
        means: Array = rows @ weights.T / weights.sum(axis=1)
        return means

    return Ratings(by_set=by_set, value=value)


def r2_ratings(errors: dict[int, Array], truth: Array) -> Ratings:
    """R² from squared errors of numbers."""

    def value(rows: Array, weights: Array) -> Array:
        totals = weights.sum(axis=1)
        means = weights @ truth / totals
        spread = weights @ truth**2 - totals * means**2
        found: Array = 1.0 - rows @ weights.T / spread
        return found

    return Ratings(by_set=errors, value=value)


def exact_shapley(values: Array, num_parties: int) -> Array:
    """Shapley values from the values of all sets.

    Args:
        values: The value of every set by its number, from none to all; further axes are replicates.
        num_parties: How many parties there are.

    Returns:
        A row per party.
    """
    if len(values) != 1 << num_parties:
        raise ConfigError(f"{len(values)} values for the sets of {num_parties} parties")
    numbers = np.arange(len(values))
    sizes = np.array([int(number).bit_count() for number in numbers])
    found = []
    for party in range(num_parties):
        without = numbers[(numbers >> party & 1) == 0]
        # How probably exactly these come before the party in a random order.
        share = np.array(
            [1 / (num_parties * comb(num_parties - 1, size)) for size in sizes[without]]
        )
        gains = values[without | 1 << party] - values[without]
        found.append(np.tensordot(share, gains, axes=1))
    return np.stack(found)


def sampled_orders(num_parties: int, num_orders: int, seed: int) -> np.ndarray[Any, Any]:
    """Random orders of the parties, in pairs: each is followed by its reverse."""
    draw = np.random.Generator(np.random.Philox(key=seed))
    orders = []
    for _ in range(-(-num_orders // 2)):
        order = draw.permutation(num_parties)
        orders += [order, order[::-1]]
    return np.stack(orders)


def sets_of_orders(orders: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """For every order the sets that come together in it, from none to all."""
    steps = np.cumsum(1 << orders.astype(np.int64), axis=1)
    return np.concatenate([np.zeros((len(orders), 1), dtype=np.int64), steps], axis=1)


def worth_of(
    names: Sequence[str],
    ratings: Ratings,
    *,
    orders: np.ndarray[Any, Any] | None = None,
    num_replicates: int = 200,
    seed: int = 0,
) -> Worth:
    """What each party adds, with an interval by bootstrap.

    A replicate draws as many samples with replacement; where orders were sampled, pairs of orders
    too.

    Args:
        names: The parties, by bit.
        ratings: Of all sets, or of those that the orders go through.
        orders: The sampled orders; all sets count without them.
        num_replicates: Of the bootstrap.
        seed: What the bootstrap draws from.

    Returns:
        The worths.
    """
    num_parties = len(names)
    num_samples = len(next(iter(ratings.by_set.values())))
    draw = np.random.Generator(np.random.Philox(key=seed))
    shares = np.full(num_samples, 1 / num_samples)
    weights = np.concatenate(
        [np.ones((1, num_samples)), draw.multinomial(num_samples, shares, size=num_replicates)]
    ).astype(np.float64)
    everybody = (1 << num_parties) - 1
    if orders is None:
        found = exact_shapley(ratings.values(range(everybody + 1), weights), num_parties)
    else:
        found = _by_orders(ratings, orders, weights, draw)
    edges = ratings.values([0, everybody], weights[:1])
    low, high = np.quantile(found[:, 1:], [0.025, 0.975], axis=1)
    return Worth(
        parties=tuple(
            PartyWorth(
                party=name,
                value=float(found[place, 0]),
                low=float(low[place]),
                high=float(high[place]),
            )
            for place, name in enumerate(names)
        ),
        total=float(edges[1, 0]),
        nothing=float(edges[0, 0]),
        num_orders=0 if orders is None else len(orders),
    )


def _by_orders(
    ratings: Ratings, orders: np.ndarray[Any, Any], weights: Array, draw: np.random.Generator
) -> Array:
    """Gains averaged over orders: all of them first, then over drawn pairs for each replicate."""
    sets = sets_of_orders(orders)
    known = sorted(set(sets.ravel().tolist()))
    place_of = {number: place for place, number in enumerate(known)}
    values = ratings.values(known, weights)
    places = np.vectorize(place_of.__getitem__)(sets)
    num_pairs = len(orders) // 2
    counts = np.ones((len(weights), num_pairs))
    counts[1:] = draw.multinomial(num_pairs, np.full(num_pairs, 1 / num_pairs), len(weights) - 1)
    found = np.zeros((orders.shape[1], len(weights)))
    for number, order in enumerate(orders):
        gains = np.diff(values[places[number]], axis=0)
        found[order] += gains * counts[:, number // 2]
    return found / len(orders)
