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
    """Shares of the samples for validation and test; the rest trains.

    With ``time``, a column of the label holder, the latest samples are for test and those before
    them for validation; samples of the same time stay together.
    ``stratified`` gives every part its share of every class, unless time decides.
    """

    validation: float = 0.15
    test: float = 0.15
    time: str | None = None
    stratified: bool = True

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
    num_samples: int,
    spec: SplitSpec,
    *,
    seed: int,
    test: Samples | None = None,
    times: np.ndarray[Any, Any] | None = None,
    classes: Samples | None = None,
) -> Mapping[str, Samples]:
    """Sample numbers of each part, ascending; parts of no samples are left out.

    Args:
        num_samples: How many samples there are.
        spec: The shares.
        seed: The run's seed.
        test: The test part outright, where a data set has an official one; the validation share is
            then taken of the rest.
        classes: The class of every sample as a number, for a stratified split. Without it samples
            are drawn whatever their label.
        times: Of all samples, to split them by time.

    Returns:
        The samples of each part.

    Raises:
        DataError: If no sample is left to train on.
    """
    if times is not None:
        return _by_time(times, spec)
    order = shuffled(num_samples, derive_seed(seed, "split"))
    by = classes if spec.stratified else None
    if test is None:
        num_test = round(num_samples * spec.test)
        num_validation = round(num_samples * spec.validation)
        test, rest = _drawn(order, num_test, by)
    else:
        rest = order[~np.isin(order, test)]
        num_validation = round(len(rest) * spec.validation)
    validation, train = _drawn(rest, num_validation, by)
    if not len(train):
        raise DataError(
            f"{num_samples} samples leave none to train on after validation and test; "
            "use more samples or smaller shares"
        )
    parts = {"train": train, "validation": validation, "test": test}
    return {name: np.sort(samples) for name, samples in parts.items() if len(samples)}


def _by_time(times: np.ndarray[Any, Any], spec: SplitSpec) -> Mapping[str, Samples]:
    """The latest samples for test, those before them for validation."""
    count = len(times)
    ordered = np.sort(times)

    def since(share: float) -> float:
        """The first time of the latest ``share`` of samples."""
        num_late = round(count * share)
        return float(ordered[count - num_late]) if num_late else np.inf

    is_test = times >= since(spec.test)
    is_held_out = times >= since(spec.validation + spec.test)
    parts = {
        "train": np.flatnonzero(~is_held_out),
        "validation": np.flatnonzero(is_held_out & ~is_test),
        "test": np.flatnonzero(is_test),
    }
    for part, share in (("train", 1.0), ("validation", spec.validation), ("test", spec.test)):
        if share and not len(parts[part]):
            raise DataError(
                f"data.split.time: '{spec.time}' leaves no sample for the {part} part, because too "
                "many have the same time; use other shares, or a finer time"
            )
    return {name: samples for name, samples in parts.items() if len(samples)}


def _drawn(order: Samples, count: int, classes: Samples | None) -> tuple[Samples, Samples]:
    """The first ``count`` samples, or as many of each class as is its share, and the others."""
    if classes is None or not 0 < count < len(order):
        return order[:count], order[count:]
    own = classes[order]
    sizes = np.bincount(own)
    wanted = sizes * (count / len(order))
    # A class keeps one sample to train on; what is missing goes where most was rounded off.
    quotas = np.minimum(np.floor(wanted), np.maximum(sizes - 1, 0)).astype(np.int64)
    for place in np.argsort(quotas - wanted, kind="stable"):
        if quotas.sum() < count and quotas[place] < sizes[place] - 1:
            quotas[place] += 1
    ranks = np.empty(len(order), dtype=np.int64)
    for label in range(len(sizes)):
        ranks[own == label] = np.arange(sizes[label])
    chosen = ranks < quotas[own]
    # Where nearly every sample is a class of its own, some are drawn nevertheless.
    chosen[np.flatnonzero(~chosen)[: count - int(chosen.sum())]] = True
    return order[chosen], order[~chosen]
