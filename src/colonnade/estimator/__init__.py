"""The scikit-learn face: one table, and a mapping that says which party has which columns.

For trying vertical federated learning on a table that is in one place, with everything that
scikit-learn brings: pipelines, grid search, cross validation. The parties are made here, in this
process, each with its own columns and its own encoder; what crosses between them is what would
cross between organisations. Where the columns really are in different places, use
``colonnade.fit`` or a run's TOML file.
"""

from __future__ import annotations

from colonnade.estimator.vertical import VerticalClassifier, VerticalRegressor

__all__ = ["VerticalClassifier", "VerticalRegressor"]
