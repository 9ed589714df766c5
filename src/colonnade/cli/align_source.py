"""Input of ``colonnade align``: the settings, everybody's ids, and each party's count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from colonnade.align.counting import Count, FileCount, MemoryCount
from colonnade.align.ids import PreparedIds, prepare_pieces
from colonnade.align.sealing import sortable
from colonnade.align.terms import AlignSpec
from colonnade.core.errors import ConfigError
from colonnade.data.datasets import load_dataset
from colonnade.data.id_columns import read_id_columns
from colonnade.run.spec import RunSpec, read_spec

__all__ = ["LABELS_APART", "Source", "count_of", "load_ids", "read_settings"]

# The label holder's list has this suffix when its labels have other ids than its block.
LABELS_APART = " (labels)"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Everybody's ids; ``labels`` has the label holder's where they differ from its block's."""

    blocks: Mapping[str, PreparedIds]
    label_holder: str
    labels: tuple[str, PreparedIds] | None

    @property
    def everyone(self) -> dict[str, PreparedIds]:
        """Ids by participant."""
        return dict(self.blocks) | ({self.labels[0]: self.labels[1]} if self.labels else {})


def read_settings(config: Path) -> tuple[RunSpec, AlignSpec]:
    """The run's settings and how to align; files in them are relative to the file."""
    spec = read_spec(config)
    if spec.align is None:
        raise ConfigError(f"{config}: align: missing; add a table [align] with at least a salt")
    return spec, spec.align


def load_ids(spec: RunSpec, terms: AlignSpec) -> Source:
    """Read and normalise everybody's ids; duplicates are found here, before anything is sent."""

    def prepared(pieces: Iterable[Sequence[Any]], where: str) -> PreparedIds:
        return prepare_pieces(pieces, terms.key, where=where, duplicates=terms.duplicates)

    def from_file(name: str, file: Path | None, column: str | None, key: str) -> PreparedIds:
        columns = terms.columns.get(name) or ((column,) if column else ())
        if file is None or not columns:
            raise ConfigError(f"{key}.{'id' if file else 'file'}: missing; it has no default")
        return prepared(read_id_columns(file, columns, where=key), f"ids of '{name}'")

    if spec.data.dataset is not None:
        dataset = load_dataset(spec.data.dataset, num_parties=spec.data.num_parties)
        tables = dataset.blocks.items()
        blocks = {name: prepared([[block.ids]], f"ids of '{name}'") for name, block in tables}
        holder = spec.label_holder.name or dataset.label_holder
        return _with_labels(blocks, holder, prepared([[dataset.labels.ids]], "ids of the labels"))
    name = spec.label_holder.name
    if name is None:
        raise ConfigError("label_holder.name: missing; say who has the labels")
    blocks = {
        party: from_file(party, item.file, item.id, f"party.{party}")
        for party, item in spec.party.items()
    }
    if spec.label_holder.file is None and name in blocks:
        return Source(blocks=blocks, label_holder=name, labels=None)
    holder_spec = spec.label_holder
    labels = from_file(name, holder_spec.file, holder_spec.id, "label_holder")
    return _with_labels(blocks, name, labels)


def _with_labels(blocks: Mapping[str, PreparedIds], holder: str, labels: PreparedIds) -> Source:
    """Labels are matched with the label holder's block if both have the same ids, else apart."""
    block = blocks.get(holder)
    if block is not None and _same_ids(block, labels):
        return Source(blocks=blocks, label_holder=holder, labels=None)
    name = holder if block is None else f"{holder}{LABELS_APART}"
    return Source(blocks=blocks, label_holder=name, labels=(name, labels))


def _same_ids(first: PreparedIds, second: PreparedIds) -> bool:
    """Whether two have the same ids in any order; compares fingerprints to save memory."""
    if len(first) != len(second):
        return False
    one, other = (
        np.sort(sortable(item.ids.fingerprints(range(len(item))))) for item in (first, second)
    )
    return np.array_equal(one, other)


def count_of(name: str, source: Source, spec: RunSpec, terms: AlignSpec) -> Count:
    """A party's count of alignments: beside its table, or where ``align.counts`` says.

    Named data sets are nobody's secret, so alignments of them are not counted.
    """
    if spec.data.dataset is not None:
        return MemoryCount()
    has_labels_apart = source.labels is not None and source.labels[0] == name
    file = spec.label_holder.file if has_labels_apart else spec.party[name].file
    assert file is not None
    # By party, because two parties may have their columns in one file.
    title = f"{file.name}.{quote(name, safe=' ')}.alignments.json"
    return FileCount((terms.counts or file.parent) / title)
