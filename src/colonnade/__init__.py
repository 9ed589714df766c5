"""Colonnade: vertical federated learning. Columns from many owners, one model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from colonnade.core.errors import ColonnadeError
from colonnade.run.fit import fit
from colonnade.run.result import Result

if TYPE_CHECKING:
    from colonnade.estimator import VerticalClassifier, VerticalRegressor

__all__ = ["ColonnadeError", "Result", "VerticalClassifier", "VerticalRegressor", "fit"]


def __getattr__(name: str) -> Any:
    """The estimators, when they are first asked for: they bring all of scikit-learn along."""
    if name in ("VerticalClassifier", "VerticalRegressor"):
        from colonnade import estimator

        return getattr(estimator, name)
    raise AttributeError(f"module 'colonnade' has no attribute '{name}'")
