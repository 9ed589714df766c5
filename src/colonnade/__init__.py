"""Colonnade: vertical federated learning. Columns from many owners, one model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from colonnade.core.errors import ColonnadeError

if TYPE_CHECKING:
    from colonnade.estimator import VerticalClassifier, VerticalRegressor
    from colonnade.run.fit import fit
    from colonnade.run.result import Result

__all__ = ["ColonnadeError", "Result", "VerticalClassifier", "VerticalRegressor", "fit"]

# Where the rest is, looked up when first asked for: PyTorch and scikit-learn take seconds to load,
# and the command line asks for neither to show its help.
_HOMES = {
    "Result": "colonnade.run.result",
    "VerticalClassifier": "colonnade.estimator",
    "VerticalRegressor": "colonnade.estimator",
    "fit": "colonnade.run.fit",
}


def __getattr__(name: str) -> Any:
    """A public name, from where it is defined."""
    if name not in _HOMES:
        raise AttributeError(f"module 'colonnade' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Public names, whether asked for yet or not."""
    return [*globals(), *_HOMES]
