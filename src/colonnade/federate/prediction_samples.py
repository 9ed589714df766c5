"""Samples of a prediction: ids from a file, or a part of the run, numbered by an alignment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from colonnade.align.alignment_file import PartyAlignment
from colonnade.align.ids import PreparedIds
from colonnade.align.terms import AlignSpec
from colonnade.core.errors import ConfigError, DataError
from colonnade.data.blocks import Block, make_block, require_columns
from colonnade.data.prepare import Preparation
from colonnade.data.table_files import is_parquet, plain_numbers, read_table
from colonnade.fabrics.grpc.hub_lane import Lane
from colonnade.federate.alignment import (
    HolderTable,
    aligned,
    held_alignment,
    is_held,
    read_holder_table,
)
from colonnade.federate.alignments import HolderAlignments, named_alignment
from colonnade.federate.party_sessions import read_terms
from colonnade.federate.prediction_requests import Request
from colonnade.federate.pseudonyms import PairNames
from colonnade.run.alignment_files import (
    key_columns,
    load_alignment,
    read_keyed_table,
    rows_of_samples,
)
from colonnade.run.assembly import NEW, Blueprint
from colonnade.run.samples import Rows, draw_roll, usable_samples
from colonnade.run.storage import party_directory

__all__ = ["Wanted", "part_of_run", "wanted_ids"]

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The samples that are asked for, in their order, and the alignment that numbers them.

    ``ids`` are as they stand in the file. ``numbers`` are -1 for an id that no party has.
    ``presence`` has a column per name of everybody who was trained together. ``values`` are the
    labels, where they are known. ``pairs`` name the samples to each party.
    """

    ids: pd.Index[Any]
    pairs: PairNames
    numbers: Rows
    presence: np.ndarray[Any, np.dtype[np.bool_]]
    own: torch.Tensor | None = None
    own_rows: Rows | None = None
    values: np.ndarray[Any, Any] | None = None
    part: str = NEW

    def without(self, places: tuple[int, ...]) -> Wanted:
        """The same samples, with parties (by column) that have none of them now."""
        presence = self.presence.copy()
        presence[:, list(places)] = False
        return replace(self, presence=presence)

    def request(self, kept: Rows) -> Request:
        """Some of the samples, as a model is asked for them."""
        return Request(
            numbers=self.numbers[kept],
            presence=self.presence[kept],
            own=self.own,
            own_rows=None if self.own_rows is None else self.own_rows[kept],
            part=self.part,
        )


def kept_terms(run: Path, kept: HolderAlignments) -> tuple[str, AlignSpec]:
    """The alignment of a run and its terms, salt included."""
    digest = named_alignment(run)
    if digest is None:
        raise ConfigError(
            f"{run}: an earlier Colonnade trained this run, and its alignment has no name; resume "
            "it once: colonnade federation train FEDERATION CONFIG --resume"
        )
    return digest, read_terms(kept.place(digest))


def wanted_ids(
    hub: Lane,
    blueprint: Blueprint,
    run: Path,
    kept: HolderAlignments,
    file: Path,
    *,
    id_column: str | None = None,
    away: tuple[str, ...] = (),
    partly: bool = False,
    say: Say = lambda line: None,
) -> Wanted:
    """Find the samples of a file's ids: by the run's alignment, a kept one, or a new one.

    Args:
        hub: For an alignment, if one is needed.
        blueprint: Of the run.
        run: Its directory.
        kept: The label holder's alignments.
        file: A table with the ids, and the label holder's own columns if it has a block and these
            samples are not in its table.
        id_column: The column of the ids; by default as in training.
        away: Parties that are not connected.
        partly: Whether to align new ids without parties that are away, which then have none of
            them; else that is refused.
        say: Told what is done.

    Raises:
        DataError: The ids need an alignment with a party that is away.
    """
    digest, terms = kept_terms(run, kept)
    spec = replace(blueprint.spec, align=terms)
    columns = (id_column,) if id_column else key_columns(terms, kept.holder, _id_column(spec))
    shown = read_table(file, text_columns=columns)
    require_columns(shown, columns, f"ids in {file.name}")
    ids, table = read_keyed_table(file, columns, terms, f"ids in {file.name}")
    pairs = PairNames.read(kept.place(digest), kept.holder)
    known = _in_run(spec, kept.place(digest), kept.holder, ids)
    parties = tuple(name for name in blueprint.elsewhere if name not in away)
    if known is None or not is_held(hub, spec, pairs, parties):
        holder = HolderTable(
            name=kept.holder,
            terms=terms,
            ids=ids,
            labels=np.zeros(0),
            label_name=blueprint.label_name,
            block=None,
        )
        place = None
        if away:
            everybody = blueprint.elsewhere
            place = held_alignment(hub, spec, holder, everybody, kept, asked=parties, say=say)
            if place is None and not (partly and parties):
                raise DataError(
                    f"these ids need an alignment with {', '.join(away)}, not connected now; start "
                    "it (colonnade party run), then give the same command again"
                )
        if place is None:
            place = aligned(hub, spec, holder, parties, kept, say=say)
        pairs = PairNames.read(place, kept.holder)
        known = _numbers(place, kept.holder, ids)
    numbers, alignment = known
    presence = _presence(alignment, numbers, blueprint.everyone, (*blueprint.left, *away))
    own, own_rows = None, None
    if kept.holder in blueprint.everyone:
        own, own_rows = _own_rows(blueprint, spec, kept.holder, ids, table)
        presence[:, blueprint.everyone.index(kept.holder)] = own_rows >= 0
    index = pd.Index(shown[columns[0]].iloc[ids.rows], name=columns[0])
    if not is_parquet(file):
        index = plain_numbers(index)
    if len(columns) > 1:
        index = pd.MultiIndex.from_frame(shown[list(columns)].iloc[ids.rows])
    wanted = Wanted(
        ids=index, pairs=pairs, numbers=numbers, presence=presence, own=own, own_rows=own_rows
    )
    return wanted.without(_left(blueprint))


def part_of_run(blueprint: Blueprint, run: Path, kept: HolderAlignments, part: str) -> Wanted:
    """The samples of a part that the run was trained or measured on, with their labels."""
    digest, terms = kept_terms(run, kept)
    spec = replace(blueprint.spec, align=terms)
    holder = read_holder_table(spec, kept.holder)
    path = party_directory(kept.place(digest), kept.holder) / "alignment.npz"
    alignment = load_alignment(path, holder.ids)
    rows = rows_of_samples(alignment, holder.ids)
    owners = blueprint.everyone
    table = alignment.presence[:, [alignment.names.index(name) for name in owners]]
    found = np.flatnonzero((rows >= 0) & table.any(axis=1))
    found = found[usable_samples(spec, owners, table[found])]
    times = holder.beside.times
    times = None if times is None else times[rows[found]]
    roll = draw_roll(spec, owners, table[found], holder.labels[rows[found]], times=times)
    if part not in roll.samples:
        raise ConfigError(f"--part {part}: there are {', '.join(roll.samples)}")
    numbers = found[roll.samples[part]]
    own, own_rows = None, None
    if holder.block is not None and kept.holder in owners:
        own = blueprint.features({kept.holder: holder.block})[kept.holder]
        own_rows = rows[numbers]
    wanted = Wanted(
        ids=pd.Index(list(map(holder.ids.ids.__getitem__, rows[numbers].tolist()))),
        pairs=PairNames.read(kept.place(digest), kept.holder),
        numbers=numbers,
        presence=roll.presence[part],
        own=own,
        own_rows=own_rows,
        values=holder.labels[rows[numbers]],
        part=part,
    )
    return wanted.without(_left(blueprint))


def _left(blueprint: Blueprint) -> tuple[int, ...]:
    """The places of parties that left for good: nothing of them is asked for."""
    return tuple(map(blueprint.everyone.index, blueprint.left))


def _id_column(spec: Any) -> str | None:
    own = spec.party.get(spec.label_holder.name)
    found: str | None = spec.label_holder.id or (own.id if own else None)
    return found


def _in_run(
    spec: Any, place: Path, holder: str, ids: PreparedIds
) -> tuple[Rows, PartyAlignment] | None:
    """The samples of ids by the run's own alignment; none if it does not know them all."""
    try:
        table = read_holder_table(spec, holder)
        alignment = load_alignment(party_directory(place, holder) / "alignment.npz", table.ids)
    except DataError:
        return None  # the label holder's table is not the one of then
    rows = pd.Index(table.ids.ids[:]).get_indexer(pd.Index(ids.ids[:]))
    if (rows < 0).any():
        return None
    return _by_row(alignment, table.ids)[rows], alignment


def _numbers(place: Path, holder: str, ids: PreparedIds) -> tuple[Rows, PartyAlignment]:
    alignment = load_alignment(party_directory(place, holder) / "alignment.npz", ids)
    return _by_row(alignment, ids), alignment


def _by_row(alignment: PartyAlignment, ids: PreparedIds) -> Rows:
    """The sample number of every kept row; -1 where it is no sample."""
    rows = rows_of_samples(alignment, ids)
    numbers = np.full(len(ids) + 1, -1, dtype=np.int64)
    numbers[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
    return numbers[:-1]


def _presence(
    alignment: PartyAlignment, numbers: Rows, names: tuple[str, ...], left: tuple[str, ...]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    absent = [name for name in names if name not in (*alignment.names, *left)]
    if absent:
        raise ConfigError(f"{', '.join(absent)} had no part in the alignment; align again")
    found = np.zeros((len(numbers), len(names)), dtype=np.bool_)
    known = numbers >= 0
    for place, name in enumerate(names):
        if name in alignment.names:
            column = alignment.presence[:, alignment.names.index(name)]
            found[known, place] = column[numbers[known]]
    return found


def _own_rows(
    blueprint: Blueprint, spec: Any, holder: str, ids: PreparedIds, table: pd.DataFrame
) -> tuple[torch.Tensor, Rows]:
    """The label holder's prepared rows for these ids: from their file, or from its own table."""
    preparation = blueprint.preparations[holder]
    assert isinstance(preparation, Preparation)
    columns = list(preparation.columns)
    block: Block
    if set(columns) <= set(map(str, table.columns)):
        block, rows = (
            make_block(holder, table, ids=ids.ids[:], columns=columns),
            np.arange(len(ids)),
        )
    else:
        whole = read_holder_table(spec, holder)
        assert whole.block is not None
        block = whole.block
        rows = pd.Index(whole.ids.ids[:]).get_indexer(pd.Index(ids.ids[:])).astype(np.int64)
    used = np.unique(rows[rows >= 0])
    features = blueprint.features({holder: block.take(used)})[holder]
    return features, np.where(rows >= 0, np.searchsorted(used, rows), -1)
