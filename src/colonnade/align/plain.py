"""The plain join of sample ids: for parties in one process, where ids may be compared openly.

Private matching is in ``align.matching``. Duplicate ids are refused where blocks and labels are
made, before they come here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from colonnade.core.errors import DataError

__all__ = ["Alignment", "align_plainly", "rows_of_ids"]

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
    """Number the samples that have a label and are at one party or more.

    Ids are text; neither a party nor the labels have one twice. Raises DataError if no labelled
    sample is at any party.
    """
    labels = _text(label_ids)
    found = {name: rows_of_ids(ids, labels) for name, ids in blocks.items()}
    known = np.zeros(len(labels), dtype=bool)
    for rows in found.values():
        known |= rows >= 0
    if not known.any():
        raise DataError(_no_overlap(blocks, found, len(labels)))
    # Arrow sorts by UTF-8 bytes: that is the order of code points, as in Python.
    order = pc.array_sort_indices(labels).to_numpy().astype(np.int64)
    label_rows = order[known[order]]
    return Alignment(
        num_samples=len(label_rows),
        rows={name: rows[label_rows] for name, rows in found.items()},
        label_rows=label_rows,
    )


def rows_of_ids(ids: Ids, wanted: Ids | pa.Array) -> Rows:
    """The row of every wanted id among ``ids``, which are text, none twice; -1 where it is not."""
    rows = pc.fill_null(pc.index_in(_text(wanted), value_set=_text(ids)), -1)
    found: Rows = rows.to_numpy().astype(np.int64)
    return found


def _text(ids: Ids | pa.Array) -> pa.Array:
    # "Large" because plain Arrow strings end at two gigabytes.
    return ids if isinstance(ids, pa.Array) else pa.array(ids, pa.large_string())


def _no_overlap(blocks: Mapping[str, Ids], found: Mapping[str, Rows], num_labels: int) -> str:
    counts = ", ".join(
        f"'{name}' shares {int((found[name] >= 0).sum())} of its {len(ids)}"
        for name, ids in blocks.items()
    )
    return (
        f"no labelled sample is at any party: of the {num_labels} labelled ids, party {counts}; "
        "check that every id column holds the same kind of id, written the same way"
    )
