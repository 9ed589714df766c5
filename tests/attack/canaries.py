"""An empirical lower bound on what a mechanism tells, from canaries: two rows to be told apart.

A mechanism that is μ-GDP has, for every ε and every event, P(event | one row) at most
e^ε P(event | the other row) + δ(ε). Canaries estimate both probabilities. Clopper and Pearson's
bounds, corrected for the number of questions, hold for all of them together.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

CONFIDENCE = 0.999
EPSILONS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0)


def delta_of(epsilon: float, mu: float) -> float:
    """The δ of a Gaussian mechanism."""
    tail = math.exp(epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2))
    return float(stats.norm.cdf(-epsilon / mu + mu / 2) - tail)


def excess(one: np.ndarray, two: np.ndarray, mu: float, *, distance: float, spread: float) -> float:
    """By how much canaries exceed the claim of μ at its worst ε; above 0 it is refuted.

    Args:
        one: A score of every canary with the one row, larger where it looks like the one; 0 is
            half way.
        two: The same with the other row.
        mu: What is claimed.
        distance: Between the two scores' means, as the attacker supposes.
        spread: The scores' deviation, as the attacker supposes.

    Returns:
        The largest lower bound of P(one) - e^ε P(two) - δ(ε), over all ε and both directions, which
        all hold together with a confidence of 99.9 %.
    """
    error = (1.0 - CONFIDENCE) / (2 * len(EPSILONS)) / 2
    worst = -math.inf
    for epsilon in EPSILONS:
        # Where a Gaussian score tells best at this ε.
        away = epsilon * spread**2 / distance
        for first, second in ((one > away, two > away), (two < -away, one < -away)):
            most = math.exp(epsilon) * _bound(second, error, upper=True)
            found = _bound(first, error, upper=False) - most - delta_of(epsilon, mu)
            worst = max(worst, found)
    return worst


def _bound(hits: np.ndarray, error: float, *, upper: bool) -> float:
    count, total = int(hits.sum()), len(hits)
    if upper:
        return 1.0 if count == total else float(stats.beta.ppf(1 - error, count + 1, total - count))
    return 0.0 if count == 0 else float(stats.beta.ppf(error, count, total - count + 1))
