"""Where a run's blocks and labels come from: a named data set, or one file per party."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.align.ids import PreparedIds
from colonnade.align.plain import Alignment, rows_of_ids
from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, DataError
from colonnade.core.task import TaskKind
from colonnade.data.blocks import (
    Block,
    Labels,
    as_ids,
    label_values,
    make_block,
    read_block,
    require_columns,
)
from colonnade.data.datasets import load_dataset
from colonnade.data.label_columns import beside_labels, read_labels
from colonnade.data.leaks import is_recoded, says_the_same
from colonnade.run.alignment_files import (
    key_columns,
    number_samples,
    prepare_column,
    read_keyed_table,
)
from colonnade.run.spec import RunSpec

__all__ = ["Sources", "load_sources", "only_columns"]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Blocks by party, labels, and who holds them."""

    blocks: Mapping[str, Block]
    labels: Labels
    label_holder: str
    kind: TaskKind | None = None
    test_ids: np.ndarray[Any, Any] | None = None
    # Who has which sample as a private alignment found it; ids are compared openly without one.
    alignment: Alignment | None = None

    def __post_init__(self) -> None:
        if not self.blocks:
            raise ConfigError("party: no party has a block; give at least one")
        for name, block in self.blocks.items():
            if self.labels.name in block.columns:
                raise DataError(
                    f"party '{name}': column '{self.labels.name}' is the label; leave it out of "
                    f"party.{name}.columns, or, if it only has the same name, rename one of them"
                )
        if self.alignment is None:
            for block in self.blocks.values():
                self._refuse_copies(block)

    def _refuse_copies(self, block: Block) -> None:
        """A column that is the label under another name, in any coding, gives the answer away."""
        if block.values.ndim != 2:
            return
        rows = rows_of_ids(block.ids, self.labels.ids)
        known = rows >= 0
        truth = self.labels.values[known]
        table = pd.DataFrame(block.values)
        for name in table.columns:
            column = table[name].iloc[rows[known]]
            if is_recoded(column, truth):
                same = says_the_same(column, truth)
                how = "equals the label" if same else "is, in another coding, the label"
                raise DataError(
                    f"party '{block.owner}': column '{name}' {how} '{self.labels.name}' on every "
                    "sample; leave it out"
                )


def load_sources(spec: RunSpec) -> Sources:
    """Read everything that the settings name; no training has started yet."""
    return _from_dataset(spec) if spec.data.dataset is not None else _from_files(spec)


def _from_dataset(spec: RunSpec) -> Sources:
    holder = spec.label_holder
    for key in ("file", "id", "label", "sample_weight"):
        if getattr(holder, key) is not None:
            raise ConfigError(
                f"label_holder.{key}: data.dataset '{spec.data.dataset}' brings its own labels; "
                "leave one of the two out"
            )
    if spec.data.split.time is not None:
        raise ConfigError("data.split.time: a named data set has no times; leave it out")
    assert spec.data.dataset is not None
    dataset = load_dataset(spec.data.dataset, num_parties=spec.data.num_parties)
    blocks = dict(dataset.blocks)
    for name, party in spec.party.items():
        if name not in blocks:
            hint = nearest(name, list(blocks))
            raise ConfigError(f"party.{name}: data set '{dataset.name}' has no such party{hint}")
        if party.file is not None or party.id is not None:
            raise ConfigError(f"party.{name}.file: data set '{dataset.name}' brings its own blocks")
        if party.columns is not None:
            blocks[name] = only_columns(blocks[name], party.columns)
    alignment = None
    name = holder.name or dataset.label_holder
    if spec.data.alignment is not None:
        assert spec.align is not None
        tables = {
            party: prepare_column(block.ids, spec.align, f"ids of '{party}'")
            for party, block in blocks.items()
        }
        label_ids = prepare_column(dataset.labels.ids, spec.align, "ids of the labels")
        alignment = number_samples(spec.data.alignment, tables, label_ids, name)
    return Sources(
        blocks=blocks,
        labels=dataset.labels,
        label_holder=name,
        kind=holder.task or dataset.task,
        test_ids=dataset.test_ids,
        alignment=alignment,
    )


def only_columns(block: Block, columns: tuple[str, ...]) -> Block:
    """The block with these columns only, as a party's settings say."""
    absent = [name for name in columns if name not in block.columns]
    if absent or not isinstance(block.values, pd.DataFrame):
        raise ConfigError(
            f"party.{block.owner}.columns: no column {absent or list(columns)}; "
            f"it has {list(block.columns)}"
        )
    return replace(block, values=block.values[list(columns)])


def _from_files(spec: RunSpec) -> Sources:
    holder = spec.label_holder
    if not spec.party:
        raise ConfigError("data.dataset: missing; name a data set, or give every party a file")
    if holder.name is None:
        raise ConfigError("label_holder.name: missing; say who has the labels")
    own = spec.party.get(holder.name)
    file = holder.file or (own.file if own else None)
    id_column = holder.id or (own.id if own else None)
    if file is None or id_column is None or holder.label is None:
        key = "file" if file is None else "id" if id_column is None else "label"
        raise ConfigError(f"label_holder.{key}: missing; say where the labels are")
    blocks, tables = {}, {}
    for name, party in spec.party.items():
        if party.file is None or party.id is None:
            key = "file" if party.file is None else "id"
            raise ConfigError(f"party.{name}.{key}: missing; it has no default")
        block, tables[name] = _read_block(spec, name, party.file, party.id)
        if party.columns is None and party.file == file:
            block = _features(block, spec)
        blocks[name] = block
    if spec.data.alignment is None:
        csv = holder.csv or spec.csv_of(holder.name)
        labels = read_labels(
            file,
            id_column=id_column,
            column=holder.label,
            weight=holder.sample_weight,
            time=spec.data.split.time,
            csv=csv,
        )
        alignment = None
    else:
        labels, ids = _read_keyed_labels(spec, file, id_column)
        known = {name: item for name, item in tables.items() if item is not None}
        alignment = number_samples(spec.data.alignment, known, ids, holder.name)
    return Sources(
        blocks=blocks,
        labels=labels,
        label_holder=holder.name,
        kind=holder.task,
        alignment=alignment,
    )


def _features(block: Block, spec: RunSpec) -> Block:
    """The label holder's own columns but for the label and what stands beside it."""
    assert isinstance(block.values, pd.DataFrame)
    others = [name for name in spec.label_columns if name in block.columns]
    return replace(block, values=block.values.drop(columns=others)) if others else block


def _read_block(
    spec: RunSpec, name: str, file: Path, id_column: str
) -> tuple[Block, PreparedIds | None]:
    """A party's block: under its id column, or under the key by which it was aligned."""
    columns = spec.party[name].columns
    if spec.data.alignment is None:
        csv = spec.csv_of(name)
        return read_block(name, file, id_column=id_column, columns=columns, csv=csv), None
    assert spec.align is not None
    where = f"ids of '{name}'"
    keys = key_columns(spec.align, name, id_column)
    ids, table = read_keyed_table(file, keys, spec.align, where, spec.csv_of(name))
    block = make_block(name, table, ids=ids.ids[:], columns=columns)
    return replace(block, origin=ids.rows), ids


def _read_keyed_labels(spec: RunSpec, file: Path, id_column: str) -> tuple[Labels, PreparedIds]:
    holder = spec.label_holder
    assert spec.align is not None
    assert holder.name is not None
    assert holder.label is not None
    columns = key_columns(spec.align, holder.name, id_column)
    csv = holder.csv or spec.csv_of(holder.name)
    ids, table = read_keyed_table(file, columns, spec.align, "ids of the labels", csv)
    require_columns(table, [holder.label], f"labels '{holder.label}' in {file.name}")
    beside = beside_labels(table, holder.sample_weight, spec.data.split.time, file.name)
    return Labels(
        ids=as_ids(ids.ids[:], "labels"),
        values=label_values(table[holder.label]),
        name=holder.label,
        **beside._asdict(),
    ), ids
