"""The plain join of sample ids: for parties in one process, where ids may be compared openly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from colonnade.core.errors import DataError

__all__ = ["Alignment", "align_plainly"]

Ids = np.ndarray[Any, Any]
Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Sample numbers 0 to ``num_samples - 1``, and each participant's row for every one.

    A row of -1 says that a party does not have the sample. Numbers follow the sorted ids, so that
    the order of rows in a file never matters.
    """

    num_samples: int
    rows: Mapping[str, Rows]
    label_rows: Rows


def align_plainly(blocks: Mapping[str, Ids], label_ids: Ids) -> Alignment:
    """Number the samples that have a label and are at one party or more."""
    labels = pd.Index(label_ids)
    known = np.zeros(len(labels), dtype=bool)
    for ids in blocks.values():
        known |= labels.isin(pd.Index(ids))
    if not known.any():
        raise DataError(_no_overlap(blocks, label_ids))
    samples = labels[known].sort_values()
    rows = {name: pd.Index(ids).get_indexer(samples) for name, ids in blocks.items()}
    return Alignment(
        num_samples=len(samples),
        rows={name: item.astype(np.int64) for name, item in rows.items()},
        label_rows=pd.Index(label_ids).get_indexer(samples).astype(np.int64),
    )


def _no_overlap(blocks: Mapping[str, Ids], label_ids: Ids) -> str:
    labels = pd.Index(label_ids)
    counts = ", ".join(
        f"'{name}' shares {len(labels.intersection(pd.Index(ids)))} of its {len(ids)}"
        for name, ids in blocks.items()
    )
    return (
        f"no labelled sample is at any party: of the {len(labels)} labelled ids, party {counts}; "
        "check that every id column holds the same kind of id, written the same way"
    )
