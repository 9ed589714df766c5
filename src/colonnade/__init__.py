"""Colonnade: vertical federated learning. Columns from many owners, one model."""

from __future__ import annotations

from colonnade.core.errors import ColonnadeError
from colonnade.run.fit import fit
from colonnade.run.result import Result

__all__ = ["ColonnadeError", "Result", "fit"]
