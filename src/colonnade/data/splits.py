"""Splits of the samples into training, validation and test part, from the seed alone.

Every party computes the same split; no row is sent for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.core.errors import ConfigError, DataError
from colonnade.core.seeds import derive_seed, shuffled

__all__ = ["SplitSpec", "split_samples"]

Samples = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class SplitSpec:
    """Shares of the samples for validation and test; the rest trains."""

    validation: float = 0.15
    test: float = 0.15

    def __post_init__(self) -> None:
        for name in ("validation", "test"):
            share = getattr(self, name)
            if not 0 <= share < 1:
                raise ConfigError(f"{name}: a share from 0 to below 1, got {share}")
        if self.validation + self.test >= 1:
            raise ConfigError(
                f"validation + test: nothing is left to train on ({self.validation} + {self.test})"
            )


def split_samples(
    num_samples: int, spec: SplitSpec, *, seed: int, test: Samples | None = None
) -> Mapping[str, Samples]:
    """Sample numbers of each part, ascending; parts of no samples are left out.

    ``test`` gives the test part outright, where a data set has an official one; the validation
    share is then taken of the rest.
    """
    order = shuffled(num_samples, derive_seed(seed, "split"))
    if test is None:
        num_test = round(num_samples * spec.test)
        num_validation = round(num_samples * spec.validation)
        test, rest = order[:num_test], order[num_test:]
    else:
        rest = order[~np.isin(order, test)]
        num_validation = round(len(rest) * spec.validation)
    validation, train = rest[:num_validation], rest[num_validation:]
    if not len(train):
        raise DataError(
            f"{num_samples} samples leave none to train on after validation and test; "
            "use more samples or smaller shares"
        )
    parts = {"train": train, "validation": validation, "test": test}
    return {name: np.sort(samples) for name, samples in parts.items() if len(samples)}
