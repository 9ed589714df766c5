"""A named data set before and after loading, and the functions that loaders share.

``DatasetEntry`` is a row of the registry, ``Dataset`` the loaded blocks and labels. The loaders
themselves are in the other modules of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from colonnade.core.errors import DataError
from colonnade.data.blocks import Block, Labels, make_block

__all__ = [
    "Dataset",
    "DatasetEntry",
    "Loader",
    "Task",
    "assemble",
    "cut_table",
    "numbered_ids",
    "words",
]

Task = Literal["binary", "multiclass", "regression"]


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """A row of the registry: what is known about a data set before any of it is read.

    Args:
        name: Its name in ``load_dataset``.
        summary: One line for a list.
        task: The kind of its label.
        parties: The parties of its natural split.
        label_holder: The party that has the labels.
        num_samples: The number of samples.
        source: Authors and licence.
        load: The function that reads it.
        paths: Its files, relative to a data directory; none for those inside scikit-learn.
    """

    name: str
    summary: str
    task: Task
    parties: tuple[str, ...]
    label_holder: str
    num_samples: int
    source: str
    load: Loader
    paths: tuple[str, ...] = ()

    @property
    def needs_files(self) -> bool:
        """True if the data set is read from files."""
        return bool(self.paths)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A loaded data set, split by columns between parties.

    Args:
        name: Its name in the registry.
        task: The kind of its label.
        blocks: The block of each party, under the party's name.
        labels: The labels; those of a classification are the numbers 0 to K - 1.
        label_holder: The party that has the labels.
        test_ids: The ids of the test part, where the provider (or, by subject, the loader) sets
            one aside.
        source: Authors and licence.
        classes: The names of the classes 0 to K - 1.
        column_order: The provider's order of columns, where it differs from that of the blocks
            one after another.
        grid: For images: the rows and columns of parts that the blocks make up, row by row.

    Raises:
        DataError: The label holder has no block, a block is under another name than its owner's,
            or a test id has no label.
    """

    name: str
    task: Task
    blocks: Mapping[str, Block]
    labels: Labels
    label_holder: str
    test_ids: np.ndarray[Any, Any] | None = None
    source: str
    classes: tuple[str, ...] = ()
    column_order: tuple[str, ...] = ()
    grid: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.label_holder not in self.blocks:
            raise DataError(
                f"data set '{self.name}': label holder '{self.label_holder}' owns no block; "
                f"it must be one of {', '.join(self.blocks)}"
            )
        for party, block in self.blocks.items():
            if block.owner != party:
                raise DataError(
                    f"data set '{self.name}': the block under '{party}' is owned by "
                    f"'{block.owner}'; use the owner's name as the key"
                )
        if self.test_ids is not None:
            unknown = int((~pd.Index(self.test_ids, dtype=object).isin(self.labels.ids)).sum())
            if unknown:
                raise DataError(
                    f"data set '{self.name}': {unknown} of {len(self.test_ids)} test ids have no "
                    "label; test ids must be ids of the labels"
                )


Loader = Callable[[DatasetEntry, Path], Dataset]
"""Reads a data set whose files are under a directory (ignored by those without files)."""


def assemble(
    entry: DatasetEntry,
    blocks: Mapping[str, Block],
    labels: Labels,
    *,
    test_ids: np.ndarray[Any, Any] | None = None,
    classes: Sequence[str] = (),
    column_order: Sequence[str] = (),
    grid: tuple[int, int] | None = None,
) -> Dataset:
    """Make the data set of a registry row from its parts."""
    return Dataset(
        name=entry.name,
        task=entry.task,
        blocks=blocks,
        labels=labels,
        label_holder=entry.label_holder,
        test_ids=test_ids,
        source=entry.source,
        classes=tuple(classes),
        column_order=tuple(column_order),
        grid=grid,
    )


def cut_table(
    table: pd.DataFrame, ids: Any, columns: Mapping[str, Sequence[str]]
) -> dict[str, Block]:
    """Cut a table into blocks, one for each party, by lists of column names."""
    return {
        party: make_block(party, table, ids=ids, columns=names) for party, names in columns.items()
    }


def words(text: str, separator: str | None = None) -> tuple[str, ...]:
    """Names from one text, with spaces and line ends between them, or with a separator."""
    return tuple(text.split(separator))


def numbered_ids(prefix: str, count: int) -> np.ndarray[Any, Any]:
    """Text ids ``prefix-0001`` ... for samples that come without any."""
    digits = max(4, len(str(count)))
    return np.array([f"{prefix}-{number:0{digits}d}" for number in range(1, count + 1)], object)
