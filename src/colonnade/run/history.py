"""What a run measured while it trained, as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from colonnade.core.errors import StorageError

__all__ = ["FIRST", "history_of", "recorded_lines"]

# Where a run directory keeps the training that found how long to train on all rows.
FIRST = "first"


def history_of(lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per evaluation of the validation part, by exchange; a column per metric."""
    found = [line for line in lines if line.get("kind") == "evaluation"]
    rows = [{"elapsed": line["elapsed"], **line["metrics"]} for line in found]
    index = pd.Index([line["exchange"] for line in found], name="exchange", dtype="int64")
    return pd.DataFrame(rows, index=index)


def recorded_lines(root: Path) -> list[dict[str, Any]]:
    """The whole lines of a run directory's metrics; none of a saved model.

    Before them come those of the first of two trainings, which alone has evaluations.
    """
    return [*_lines(root / FIRST / "metrics.jsonl"), *_lines(root / "metrics.jsonl")]


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    # What follows the last end of a line was cut off while it was written.
    whole = file.read_bytes().rpartition(b"\n")[0]
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise StorageError(f"{file}: damaged: {error}") from error
