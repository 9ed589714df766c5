"""Estimators for scikit-learn: one table, and a mapping of parties to columns.

They are for trying vertical federated learning on a table that is in one place, with pipelines,
grid search and cross validation. The parties run in this process, each with its own columns and
its own encoder; the same values cross between them as between organisations. For columns in
different places use ``colonnade.fit`` or a run's TOML file.
"""

from __future__ import annotations

from colonnade.estimator.vertical import VerticalClassifier, VerticalRegressor

__all__ = ["VerticalClassifier", "VerticalRegressor"]
