"""Association of presence and label: a test for blocks that are not missing at random.

Per party: Cramér's V of presence and class, or the correlation ratio of a number over presence.
Both are correlations from 0 (independent) to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from colonnade.core.task import TaskKind

__all__ = ["SIGNIFICANCE", "STRONG", "Association", "presence_and_label"]

# Strong: a correlation of at least 0.2, significant at 0.01 over all parties together (each party
# alone is tested at 0.01 / number of parties).
STRONG = 0.2
SIGNIFICANCE = 0.01


@dataclass(frozen=True, kw_only=True)
class Association:
    """How strongly one party's presence depends on the label."""

    party: str
    measure: Literal["cramers_v", "correlation_ratio"]
    value: float
    p_value: float
    is_strong: bool

    @property
    def warning(self) -> str:
        """The warning about a strong association."""
        name = "Cramér's V" if self.measure == "cramers_v" else "correlation ratio"
        return (
            f"whether party '{self.party}' has a sample goes with its label ({name} "
            f"{self.value:.2f}, p = {self.p_value:.1g}; warned of from {STRONG:g} on): blocks are "
            "not missing completely at random, as LASER-VFL assumes, so a model may learn from "
            "what is missing, and quality may not hold where blocks go missing otherwise"
        )


def presence_and_label(
    presence: Mapping[str, np.ndarray[Any, np.dtype[np.bool_]]],
    labels: np.ndarray[Any, Any],
    kind: TaskKind,
) -> list[Association]:
    """The association of each party that has some samples and not others."""
    split = {name: here for name, here in presence.items() if here.any() and not here.all()}
    found = []
    for name, here in split.items():
        if kind == "regression":
            value, p_value = _correlation_ratio(here, labels.astype(np.float64))
        else:
            value, p_value = _cramers_v(here, labels)
        found.append(
            Association(
                party=name,
                measure="correlation_ratio" if kind == "regression" else "cramers_v",
                value=value,
                p_value=p_value,
                is_strong=value >= STRONG and p_value < SIGNIFICANCE / len(split),
            )
        )
    return found


def _cramers_v(here: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> tuple[float, float]:
    """V of a table of two rows, and the p-value of its chi-squared test."""
    # Imported when first needed: it takes a second, and most runs miss nothing.
    from scipy.stats import chi2

    _, codes = np.unique(labels.astype(str), return_inverse=True)
    counts = np.stack(
        [np.bincount(codes[side], minlength=codes.max() + 1) for side in (here, ~here)]
    )
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    p_value = float(chi2.sf(statistic, counts.shape[1] - 1)) if counts.shape[1] > 1 else 1.0
    return float(np.sqrt(statistic / counts.sum())), p_value


def _correlation_ratio(
    here: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]
) -> tuple[float, float]:
    """The root of the share of the variance between the two groups, and its F test's p-value."""
    from scipy.stats import f as f_distribution

    groups = [labels[here], labels[~here]]
    total = float(((labels - labels.mean()) ** 2).sum())
    between = float(sum(len(group) * (group.mean() - labels.mean()) ** 2 for group in groups))
    if total == 0 or len(labels) < 3:
        return 0.0, 1.0
    ratio = min(between / total, 1.0)
    freedom = len(labels) - 2
    statistic = ratio * freedom / (1.0 - ratio) if ratio < 1 else np.inf
    return float(np.sqrt(ratio)), float(f_distribution.sf(statistic, 1, freedom))
