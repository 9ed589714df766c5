"""Samples as a private alignment numbered them: its files, checked against the tables of now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.align.alignment_file import PartyAlignment, check_together
from colonnade.align.ids import PreparedIds, prepare_ids
from colonnade.align.plain import Alignment
from colonnade.align.terms import AlignSpec
from colonnade.core.errors import ConfigError, DataError
from colonnade.data.blocks import require_columns
from colonnade.data.table_files import CsvSpec, read_table
from colonnade.run.storage import party_directory

__all__ = [
    "key_columns",
    "label_rows_by_id",
    "load_alignment",
    "number_samples",
    "prepare_column",
    "read_keyed_table",
    "rows_of_samples",
]


def key_columns(terms: AlignSpec, name: str, id_column: str | None) -> tuple[str, ...]:
    """A participant's id columns, one per part of the key."""
    return terms.columns.get(name) or ((id_column,) if id_column else ())


def read_keyed_table(
    path: Path,
    columns: Sequence[str],
    terms: AlignSpec,
    where: str,
    csv: CsvSpec | None = None,
) -> tuple[PreparedIds, pd.DataFrame]:
    """A table's ids under the agreed rules, and its rows that have them, without id columns."""
    table = read_table(path, text_columns=columns, csv=csv)
    require_columns(table, columns, where)
    prepared = prepare_ids(
        [table[name] for name in columns], terms.key, where=where, duplicates=terms.duplicates
    )
    kept = table.drop(columns=list(columns)).iloc[prepared.rows]
    return prepared, kept.reset_index(drop=True)


def prepare_column(ids: np.ndarray[Any, Any], terms: AlignSpec, where: str) -> PreparedIds:
    """The ids of a block that is in memory, under the agreed rules."""
    return prepare_ids([ids], terms.key, where=where, duplicates=terms.duplicates)


def number_samples(
    directory: Path, tables: Mapping[str, PreparedIds], labels: PreparedIds, label_holder: str
) -> Alignment:
    """The labelled samples of an alignment that a party of these has, in the order of numbers.

    Refused if the files do not belong together, or a table is no longer the one that was aligned.
    """
    files = {name: _load(directory, name, tables[name]) for name in tables}
    any_file = next(iter(files.values()))
    apart = any_file.label_holder
    if apart in tables:
        # Labels that stood in a party's own table went by its ids.
        with_labels = files[apart]
        label_rows = label_rows_by_id(tables[apart], with_labels, labels)
    else:
        with_labels = _load(directory, apart, labels)
        label_rows = rows_of_samples(with_labels, labels)
    check_together({item.participant: item.digest for item in (*files.values(), with_labels)})
    rows = {name: rows_of_samples(item, tables[name]) for name, item in files.items()}
    usable = label_rows >= 0
    usable &= np.any([item >= 0 for item in rows.values()], axis=0)
    if not usable.any():
        raise DataError(
            f"{directory}: no labelled sample of '{label_holder}' is at a party of this run; "
            "align again, with these parties"
        )
    return Alignment(
        num_samples=int(usable.sum()),
        rows={name: item[usable] for name, item in rows.items()},
        label_rows=label_rows[usable],
    )


def _load(directory: Path, name: str, ids: PreparedIds) -> PartyAlignment:
    path = party_directory(directory, name) / "alignment.npz"
    if not path.exists():
        raise ConfigError(
            f"data.alignment: {directory} holds nothing of '{name}'; align with all parties of "
            "this run, or name the right directory"
        )
    return load_alignment(path, ids)


def load_alignment(path: Path, ids: PreparedIds) -> PartyAlignment:
    """A participant's own alignment, if its table is still the one that was aligned."""
    alignment = PartyAlignment.load(path)
    alignment.check_ids(ids)
    return alignment


def rows_of_samples(
    alignment: PartyAlignment, ids: PreparedIds
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The row of every sample among those that are kept; -1 where it is not here."""
    place = np.full(ids.num_rows + 1, -1, dtype=np.int64)
    place[ids.rows] = np.arange(len(ids))
    return place[alignment.row_of_sample()]


def label_rows_by_id(
    block: PreparedIds, alignment: PartyAlignment, labels: PreparedIds
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The label's row of every sample, through the ids of the same party's block."""
    of_block = pd.Index(labels.ids[:]).get_indexer(pd.Index(block.ids[:]))
    rows = rows_of_samples(alignment, block)
    return np.where(rows >= 0, of_block[rows], -1).astype(np.int64)
