"""Colonnade: vertical federated learning. Columns from many owners, one model.

``fit`` trains on tables in memory and gives a ``Result``; ``VerticalClassifier`` and
``VerticalRegressor`` are estimators for scikit-learn. Every error is a ``ColonnadeError``. Runs
from a file and federations between machines are started by the command line.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from colonnade import errors
from colonnade.core.errors import ColonnadeError

if TYPE_CHECKING:
    from colonnade.data.blocks import Block
    from colonnade.data.sql_query import Sql
    from colonnade.estimator import VerticalClassifier, VerticalRegressor
    from colonnade.run.fit import fit
    from colonnade.run.progress_bar import ProgressBar
    from colonnade.run.result import Result

__all__ = [
    "Block",
    "ColonnadeError",
    "ProgressBar",
    "Result",
    "Sql",
    "VerticalClassifier",
    "VerticalRegressor",
    "errors",
    "fit",
]

# Public names are imported on first use: PyTorch and scikit-learn take seconds to load, and the
# help of the command line needs neither.
_HOMES = {
    "Block": "colonnade.data.blocks",
    "ProgressBar": "colonnade.run.progress_bar",
    "Result": "colonnade.run.result",
    "Sql": "colonnade.data.sql_query",
    "VerticalClassifier": "colonnade.estimator",
    "VerticalRegressor": "colonnade.estimator",
    "fit": "colonnade.run.fit",
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name == "__version__":
        return version("colonnade")
    if name not in _HOMES:
        raise AttributeError(f"module 'colonnade' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return [*globals(), *_HOMES]
