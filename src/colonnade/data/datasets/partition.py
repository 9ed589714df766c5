"""Repartition: all columns of a data set, split evenly between any number of parties."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from colonnade.core.errors import DataError
from colonnade.data.blocks import Block
from colonnade.data.datasets.description import Dataset

__all__ = ["cut_image", "even_edges", "repartition"]

Array = np.ndarray[Any, Any]


def repartition(dataset: Dataset, num_parties: int) -> Dataset:
    """Split all columns, in order, evenly between parties ``party_1`` to ``party_K``.

    Args:
        dataset: The data set; its parties must have the same samples.
        num_parties: The number of parties.

    Returns:
        The data set with contiguous blocks, of which the last ones may have one column more.
        Images are cut into upright strips, for four parties into quadrants. ``party_1`` holds the
        labels.

    Raises:
        DataError: There are fewer columns than parties, or parties have different samples.
    """
    if num_parties < 1:
        raise DataError(f"num_parties: expected at least 1, got {num_parties}")
    parties = [f"party_{number}" for number in range(1, num_parties + 1)]
    ids = dataset.blocks[dataset.label_holder].ids
    if dataset.grid is not None:
        image = join_image(dataset, ids)
        grid = (2, 2) if num_parties == 4 else (1, num_parties)
        if num_parties > image.shape[3]:
            raise DataError(too_many(dataset, num_parties, image.shape[3]))
        parts = cut_image(image, grid)
        blocks = {
            party: Block(owner=party, ids=ids, values=part)
            for party, part in zip(parties, parts, strict=True)
        }
        return replace(dataset, blocks=blocks, label_holder="party_1", grid=grid)
    table = pool_columns(dataset, ids)
    if num_parties > table.shape[1]:
        raise DataError(too_many(dataset, num_parties, table.shape[1]))
    edges = even_edges(table.shape[1], num_parties)
    blocks = {
        party: Block(owner=party, ids=ids, values=table.iloc[:, start:end])
        for party, (start, end) in zip(parties, pairwise(edges), strict=True)
    }
    return replace(dataset, blocks=blocks, label_holder="party_1", column_order=())


def even_edges(width: int, num_parts: int) -> list[int]:
    """The edges of parts that are equally wide, or the last ones wider by one."""
    size, wider = divmod(width, num_parts)
    widths = [size] * (num_parts - wider) + [size + 1] * wider
    return [0, *np.cumsum(widths).tolist()]


def cut_image(images: Array, grid: tuple[int, int]) -> list[Array]:
    """Cut images (sample, channel, row, column) into rows x columns of parts, row by row."""
    down = even_edges(images.shape[2], grid[0])
    across = even_edges(images.shape[3], grid[1])
    return [
        np.ascontiguousarray(images[:, :, top:bottom, left:right])
        for top, bottom in pairwise(down)
        for left, right in pairwise(across)
    ]


def join_image(dataset: Dataset, ids: Array) -> Array:
    """Put the parts of the images together again."""
    assert dataset.grid is not None
    rows, columns = dataset.grid
    parts = [in_order(dataset, block, ids) for block in dataset.blocks.values()]
    bands = [parts[row * columns : (row + 1) * columns] for row in range(rows)]
    return np.concatenate([np.concatenate(band, axis=3) for band in bands], axis=2)


def pool_columns(dataset: Dataset, ids: Array) -> pd.DataFrame:
    """All columns in one table, in the provider's order where that is known.

    A name that several parties use gets its owner in front: ``owner.name``.
    """
    names = [name for block in dataset.blocks.values() for name in block.columns]
    shared = {name for name in names if names.count(name) > 1}
    tables = []
    for party, block in dataset.blocks.items():
        table = in_order(dataset, block, ids)
        if not isinstance(table, pd.DataFrame):
            raise DataError(
                f"data set '{dataset.name}': the block of party '{party}' is an array and not part "
                "of an image; only tables and images can be dealt out again"
            )
        table = table.reset_index(drop=True)
        table.columns = pd.Index(
            [f"{party}.{name}" if name in shared else name for name in block.columns]
        )
        tables.append(table)
    pooled = pd.concat(tables, axis=1)
    return pooled[list(dataset.column_order)] if dataset.column_order else pooled


def in_order(dataset: Dataset, block: Block, ids: Array) -> Any:
    """The values of a block in the order of these ids."""
    if np.array_equal(block.ids, ids):
        return block.values
    rows = pd.Index(block.ids).get_indexer(pd.Index(ids))
    if len(block.ids) != len(ids) or (rows < 0).any():
        raise DataError(
            f"data set '{dataset.name}': party '{block.owner}' has other samples than label holder "
            f"'{dataset.label_holder}'; columns can only be pooled over the same samples"
        )
    return block.take(rows).values


def too_many(dataset: Dataset, num_parties: int, width: int) -> str:
    return (
        f"num_parties: data set '{dataset.name}' has {width} columns to deal out, "
        f"not enough for {num_parties} parties; ask for {width} or fewer"
    )
