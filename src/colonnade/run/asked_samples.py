"""Samples to predict, in blocks that somebody gives: each one's row at every party, and its id."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd

from colonnade.align.plain import rows_of_ids
from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, MissingBlock
from colonnade.data.blocks import Block
from colonnade.data.given_tables import BlockLike, GivenData, LabelsLike, give
from colonnade.run.assembly import Blueprint
from colonnade.run.samples import Rows

__all__ = ["aligned", "given_samples", "ids_as_given"]

Array = np.ndarray[Any, Any]


def given_samples(
    blueprint: Blueprint, blocks: Mapping[str, BlockLike], labels: LabelsLike, ids: Any
) -> GivenData:
    """Blocks and labels under the ids that training used: a column of that name, or the index.

    Blocks of strangers are left aside, unless the name looks like that of a party whose block is
    not there: a method that can do without would silently predict without it.
    """
    if not isinstance(blocks, Mapping):
        raise ConfigError("blocks: expected each party's table by the party's name")
    known = (*blueprint.owners, *blueprint.left)
    own = {name: item for name, item in blocks.items() if name in known}
    if not own and blocks:
        names = ", ".join(map(repr, blocks))
        raise MissingBlock(f"no party {names}{nearest(str(next(iter(blocks))), known)}")
    absent = [name for name in blueprint.owners if name not in own]
    for name in blocks:
        if name not in known and get_close_matches(str(name), absent, n=1):
            raise MissingBlock(f"no party {name!r}{nearest(str(name), known)}")
    spec = blueprint.spec.party
    columns = {name: spec[name].id for name in own if name in spec and ids is None}
    named = {name: column for name, column in columns.items() if column is not None}
    holder = blueprint.label_holder
    return give(own, labels, label_holder=holder, ids=ids, id_columns=named, is_new=True)


def aligned(
    blueprint: Blueprint,
    blocks: Mapping[str, Block],
    wanted: np.ndarray[Any, Any] | None,
) -> tuple[dict[str, Block], dict[str, Rows], np.ndarray[Any, Any]]:
    """The blocks, the row of every sample in each (-1: not there), and the ids as text.

    Every sample must be in every block, or in one if the method can do without some.
    """
    gone = sorted(set(blocks) & set(blueprint.left))
    if gone:
        raise MissingBlock(f"{', '.join(gone)} left this federation; leave its block out")
    tolerant = blueprint.spec.method.info.tolerates_missing
    absent = [name for name in blueprint.owners if name not in blocks]
    if absent and (not tolerant or len(absent) == len(blueprint.owners)):
        raise MissingBlock(
            f"no block of {absent}; method '{blueprint.spec.method.info.name}' needs "
            f"those of {list(blueprint.owners)}"
        )
    own = {name: item for name, item in blocks.items() if name in blueprint.owners}
    name = blueprint.spec.method.info.name
    rows, texts = _found_rows(own, wanted, method=name, tolerant=tolerant)
    return own, rows, texts


def _found_rows(
    blocks: Mapping[str, Block], wanted: Array | None, *, method: str, tolerant: bool
) -> tuple[dict[str, Rows], Array]:
    """The row of every sample in each block (-1: not there), and the ids as text.

    Every sample must be in every block, or in one if the method is ``tolerant``. Samples are those
    of the blocks, in the first one's order, or those ``wanted``.
    """
    first = next(iter(blocks.values())).ids
    if wanted is None and all(
        block.ids is first or np.array_equal(first, block.ids) for block in blocks.values()
    ):
        # The same rows everywhere, as in most requests: nothing to look up.
        return {name: np.arange(len(first)) for name in blocks}, first
    ids = pd.Index(first if wanted is None else wanted)
    for block in blocks.values() if wanted is None else ():
        ids = ids.union(pd.Index(block.ids), sort=False)
    rows = {name: rows_of_ids(block.ids, ids.to_numpy()) for name, block in blocks.items()}
    num_without = int(np.all([item < 0 for item in rows.values()], axis=0).sum())
    if num_without:
        raise MissingBlock(
            f"{num_without} of {len(ids)} samples have no block at any of {sorted(blocks)}; a "
            "prediction needs one at least"
        )
    lacking = {name: int((item < 0).sum()) for name, item in rows.items()}
    if any(lacking.values()) and not tolerant:
        counts = ", ".join(f"'{name}' lacks {count}" for name, count in lacking.items() if count)
        raise MissingBlock(
            f"of {len(ids)} samples, party {counts}; method "
            f"'{method}' needs every block of a sample: leave "
            "those samples out"
        )
    return rows, ids.to_numpy()


def ids_as_given(
    blocks: Mapping[str, Block], rows: Mapping[str, Rows], texts: Array
) -> pd.Index[Any]:
    """The samples' ids as their owners write them: of the first block that has each."""
    first = next(iter(blocks))
    keys, at = blocks[first].keys, rows[first]
    if keys is not None and np.array_equal(at, np.arange(len(keys))):
        return keys  # the caller's own index, as it is
    if keys is not None and (at >= 0).all():
        chosen: pd.Index[Any] = keys.take(at)
        return chosen
    found = texts.copy()
    for name in reversed(list(blocks)):
        own, here = blocks[name].keys, rows[name] >= 0
        if own is not None:
            found[here] = np.asarray(own, dtype=object)[rows[name][here]]
    named: pd.Index[Any] = pd.Index(found, name=None if keys is None else keys.name)
    return named
