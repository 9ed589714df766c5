"""The label holder's side of an alignment over the network: its table, and the samples found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.align.alignment_file import PartyAlignment
from colonnade.align.counting import MemoryCount
from colonnade.align.ids import PreparedIds
from colonnade.align.matching import match
from colonnade.align.participant import AlignParty
from colonnade.align.participant_files import DirectoryStore
from colonnade.align.point_lists import PointLists
from colonnade.align.record import save_record
from colonnade.align.terms import AlignSpec
from colonnade.core.config import dump
from colonnade.core.errors import ConfigError, DataError
from colonnade.core.parties import Parties, Patience, each
from colonnade.data.blocks import Block, make_block, require_columns
from colonnade.data.label_columns import NOTHING_BESIDE, BesideLabels, beside_labels
from colonnade.fabrics.grpc.hub_lane import Lane
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from colonnade.federate.alignments import HolderAlignments
from colonnade.federate.party_agent import ALIGN
from colonnade.federate.pseudonyms import PairNames, agreed_key, keep_keys, new_share
from colonnade.run.alignment_files import (
    key_columns,
    load_alignment,
    read_keyed_table,
    rows_of_samples,
)
from colonnade.run.samples import Rows, Table
from colonnade.run.spec import RunSpec
from colonnade.run.storage import party_directory

__all__ = [
    "HolderTable",
    "Samples",
    "align_over",
    "aligned",
    "held_alignment",
    "is_held",
    "known_samples",
    "preparing",
    "read_holder_table",
]

Progress = Callable[[int, int], None]

# Ten minutes.
_PREPARING_TICKS = 600_000


@dataclass(frozen=True, kw_only=True)
class HolderTable:
    """The label holder's own table: ids, labels, and a block of columns if it takes part."""

    name: str
    terms: AlignSpec
    ids: PreparedIds
    labels: np.ndarray[Any, Any]
    label_name: str
    block: Block | None
    beside: BesideLabels = NOTHING_BESIDE


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The labelled samples of an alignment: numbers, own rows, and presence by party."""

    digest: str
    numbers: Rows
    rows: Rows
    table: Table


def read_holder_table(spec: RunSpec, name: str) -> HolderTable:
    """Read the label holder's table; it has a block if the settings name it as ``party.NAME``."""
    if spec.align is None:
        raise ConfigError("align: missing; a federation aligns privately, add a table [align]")
    holder, own = spec.label_holder, spec.party.get(name)
    file = holder.file or (own.file if own else None)
    id_column = holder.id or (own.id if own else None)
    if own is not None and own.file is not None and holder.file not in (None, own.file):
        raise ConfigError(
            f"label_holder.file: over a network the labels stand in the same table as the block "
            f"of '{name}'; leave one of the two files out"
        )
    if file is None or id_column is None or holder.label is None:
        key = "file" if file is None else "id" if id_column is None else "label"
        raise ConfigError(f"label_holder.{key}: missing; say where the labels are")
    columns = key_columns(spec.align, name, id_column)
    ids, table = read_keyed_table(file, columns, spec.align, f"ids of '{name}'")
    require_columns(table, [holder.label], f"labels '{holder.label}' in {file.name}")
    labels = table[holder.label].to_numpy()
    beside = beside_labels(table, holder.sample_weight, spec.data.split.time, file.name)
    block = None
    if own is not None:
        beside_label = [item for item in spec.label_columns if item not in (own.columns or ())]
        features: pd.DataFrame = table.drop(columns=beside_label)
        block = make_block(name, features, ids=ids.ids[:], columns=own.columns)
        block = replace(block, origin=ids.rows)
    return HolderTable(
        name=name,
        terms=spec.align,
        ids=ids,
        labels=labels,
        label_name=holder.label,
        block=block,
        beside=beside,
    )


def align_over(
    hub: Lane,
    spec: RunSpec,
    holder: HolderTable,
    parties: tuple[str, ...],
    directory: Path,
    *,
    progress: Progress | None = None,
) -> None:
    """Match everybody's ids privately; every participant keeps its own alignment."""
    store = DirectoryStore(party_directory(directory, holder.name))
    own = AlignParty(
        name=holder.name, ids=holder.ids, spec=holder.terms, store=store, count=MemoryCount()
    )
    # A label holder with a block is a party at its own side.
    takes_part = holder.block is not None
    session = Session(
        hub,
        parties,
        purpose=ALIGN,
        at_side={holder.name: own} if takes_part else {},
        patience=preparing(spec.patience),
    )
    fabric = GrpcFabric(session)
    try:
        everyone = Parties(fabric, preparing(spec.patience))
        # Without the settings that are the label holder's own.
        terms = json.dumps(dump(replace(holder.terms, columns={}, counts=None)))
        fabric.run(everyone.ask("agree", terms, among=parties))
        overlap = fabric.run(
            match(
                everyone,
                spec=holder.terms,
                own=None if takes_part else own,
                label_holder=holder.name,
                lists=PointLists(directory / "matching" / "lists"),
                progress=progress,
            )
        )
        save_record(overlap.record, directory / "matching" / "record.npz")
        shares = {name: new_share() for name in parties}
        digest = overlap.digest
        others = fabric.run(everyone.ask("pair", digest, each(shares), among=parties))
        keep_keys(
            directory,
            {name: agreed_key(digest, name, shares[name], others[name]) for name in parties},
        )
    finally:
        fabric.close()


def aligned(
    hub: Lane,
    spec: RunSpec,
    holder: HolderTable,
    parties: tuple[str, ...],
    kept: HolderAlignments,
    *,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
) -> Path:
    """The directory of an alignment of these ids: one that everybody still has, or a new one."""
    place = held_alignment(hub, spec, holder, parties, kept, asked=parties, say=say)
    if place is not None:
        return place
    say(f"aligning with {', '.join(parties)}")
    kept.clear()
    place = kept.begin()
    align_over(hub, spec, holder, parties, place, progress=progress)
    return kept.place(kept.keep(place, holder.terms))


def held_alignment(
    hub: Lane,
    spec: RunSpec,
    holder: HolderTable,
    parties: tuple[str, ...],
    kept: HolderAlignments,
    *,
    asked: tuple[str, ...],
    say: Callable[[str], None] = lambda line: None,
) -> Path | None:
    """The directory of an alignment of these ids between these parties that ``asked`` still have.

    ``asked`` are those of the parties that are connected.
    """
    for digest in kept.fitting(holder.ids, parties, holder.terms):
        if is_held(hub, spec, PairNames.read(kept.place(digest), holder.name), asked):
            say(f"the alignment '{digest[:12]}' of these ids is used again")
            return kept.place(digest)
    return None


def is_held(hub: Lane, spec: RunSpec, pairs: PairNames, parties: tuple[str, ...]) -> bool:
    """Whether every party has an alignment and its key, and a table that still fits it."""
    if not parties:
        return True
    patience = preparing(spec.patience)
    marks = {name: pairs.marks[name] for name in parties}
    fabric = GrpcFabric(Session(hub, parties, purpose=ALIGN, patience=patience))
    try:
        holding = Parties(fabric, patience).ask("holds", pairs.digest, each(marks))
        return all(fabric.run(holding).values())
    finally:
        fabric.close()


def preparing(patience: Patience) -> Patience:
    """Patience before the first exchange, while tables are read and whole lists blinded.

    No party can be left out then, whatever the run's policy.
    """
    timeout = patience.timeout
    return Patience(timeout=None if timeout is None else max(timeout, _PREPARING_TICKS))


def known_samples(holder: HolderTable, owners: tuple[str, ...], directory: Path) -> Samples:
    """The labelled samples that a party of this run has, in the order of their numbers."""
    path = DirectoryStore(party_directory(directory, holder.name)).alignment_path
    alignment: PartyAlignment = load_alignment(path, holder.ids)
    absent = sorted(set(owners) - set(alignment.names))
    if absent:
        raise ConfigError(
            f"data.alignment: {absent} had no part in the alignment between "
            f"{list(alignment.names)}; align with all parties of this run"
        )
    rows = rows_of_samples(alignment, holder.ids)
    columns = [alignment.names.index(name) for name in owners]
    table = alignment.presence[:, columns]
    numbers = np.flatnonzero((rows >= 0) & table.any(axis=1))
    if not len(numbers):
        raise DataError(f"no labelled sample of '{holder.name}' is at a party of this run")
    return Samples(
        digest=alignment.digest, numbers=numbers, rows=rows[numbers], table=table[numbers]
    )
