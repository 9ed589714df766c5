"""Samples to predict, in blocks that somebody gives: each one's row at every party, and its id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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

__all__ = ["AskedSamples", "aligned", "given_samples"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class AskedSamples:
    """Samples to predict.

    Attributes:
        blocks: The blocks that are used, by party.
        rows: By party, the row of every sample in its block; -1 where it is not there.
        found: The ids as text; none if they are those of every block.
    """

    blocks: Mapping[str, Block]
    rows: Mapping[str, Rows]
    found: Array | None = None

    @property
    def texts(self) -> Array:
        """The ids as they are compared."""
        return next(iter(self.blocks.values())).ids if self.found is None else self.found

    def ids_as_given(self) -> pd.Index[Any]:
        """The ids as their owners write them: of the first block that has each."""
        first = next(iter(self.blocks))
        keys, at = self.blocks[first].keys, self.rows[first]
        if keys is not None and (self.found is None or np.array_equal(at, np.arange(len(keys)))):
            return keys  # the caller's own index, as it is
        if keys is not None and (at >= 0).all():
            chosen: pd.Index[Any] = keys.take(at)
            return chosen
        ids = self.texts.copy()
        for name in reversed(list(self.blocks)):
            own, here = self.blocks[name].keys, self.rows[name] >= 0
            if own is not None:
                ids[here] = np.asarray(own, dtype=object)[self.rows[name][here]]
        named: pd.Index[Any] = pd.Index(ids, name=None if keys is None else keys.name)
        return named


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
) -> AskedSamples:
    """The samples of the blocks, in the first one's order, or those ``wanted``.

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
    first = next(iter(own.values()))
    if wanted is None and all(block.has_ids_of(first) for block in own.values()):
        # The same rows everywhere, as in most requests: nothing to look up.
        return AskedSamples(blocks=own, rows=dict.fromkeys(own, np.arange(len(first.values))))
    rows, texts = _found_rows(own, wanted, method=name, tolerant=tolerant)
    return AskedSamples(blocks=own, rows=rows, found=texts)


def _found_rows(
    blocks: Mapping[str, Block], wanted: Array | None, *, method: str, tolerant: bool
) -> tuple[dict[str, Rows], Array]:
    """The row of every sample in each block (-1: not there), and the ids as text.

    Every sample must be in every block, or in one if the method is ``tolerant``. Samples are those
    of the blocks, in the first one's order, or those ``wanted``.
    """
    ids = pd.Index(next(iter(blocks.values())).ids if wanted is None else wanted)
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
