"""Which results are stale: measured with other numerics than those of today."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.core.errors import StorageError
from colonnade.core.numerics import NUMERICS

__all__ = ["StaleResult", "read_outcome", "stale_results", "staleness"]

# Keys without which a file is no experiment's results.
_NEEDED = ("name", "seeds", "fast", "revision", "finished", "cells")


@dataclass(frozen=True, kw_only=True)
class StaleResult:
    """A file of results that does not stand.

    Attributes:
        name: The experiment's name.
        reason: Why, in words.
    """

    name: str
    reason: str


def staleness(outcome: Mapping[str, Any]) -> str:
    """Say why results are stale.

    Args:
        outcome: The content of an experiment's file of results.

    Returns:
        The reason in words; empty if they stand.
    """
    numerics = outcome.get("numerics")
    if numerics == NUMERICS:
        return ""
    if numerics is None:
        return f"measured before numerics had a number (now {NUMERICS})"
    return f"measured with numerics {numerics} (now {NUMERICS})"


def read_outcome(path: Path) -> dict[str, Any]:
    """Read a file of results.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        StorageError: It is not one.
    """
    remedy = "move it away, then measure again"
    try:
        outcome = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise StorageError(f"{path}: damaged, no JSON: {error}; {remedy}") from error
    if not isinstance(outcome, dict) or not outcome.keys() >= set(_NEEDED):
        raise StorageError(f"{path}: not an experiment's results; {remedy}")
    return outcome


def stale_results(directory: Path) -> list[StaleResult]:
    """Find results that do not stand.

    Args:
        directory: The directory with files of results.

    Returns:
        Those that are stale, not finished or of a quick run, by name.

    Raises:
        StorageError: A file is damaged, or there is none.
    """
    files = sorted(directory.glob("*.json"))
    if not files:
        raise StorageError(f"{directory}: no files of results here; name their directory")
    found = []
    for path in files:
        outcome = read_outcome(path)
        reason = staleness(outcome)
        if not reason and not outcome["finished"]:
            reason = "not finished"
        if not reason and outcome["fast"]:
            reason = "a quick run with less training"
        if reason:
            found.append(StaleResult(name=path.stem, reason=reason))
    return found
