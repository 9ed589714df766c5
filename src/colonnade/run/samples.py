"""From blocks and labels to samples: their common order, who has which, who trains on what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from colonnade.align.plain import Alignment, align_plainly, rows_of_ids
from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, DataError
from colonnade.core.task import TaskKind, infer_kind
from colonnade.data.association import Association, presence_and_label
from colonnade.data.blocks import Block
from colonnade.data.drawn_presence import KnownValues, draw_presence
from colonnade.data.pooling import PooledBlock
from colonnade.data.splits import split_samples
from colonnade.fabrics import SimulatedSpec
from colonnade.methods import METHODS
from colonnade.run.sources import Sources
from colonnade.run.spec import RunSpec

__all__ = [
    "Arrangement",
    "Roll",
    "Rows",
    "Table",
    "arrange",
    "bounds_of",
    "draw_roll",
    "narrowed",
    "usable_samples",
    "without",
]

Rows = np.ndarray[Any, np.dtype[np.int64]]
Table = np.ndarray[Any, np.dtype[np.bool_]]

# Up to so many numbers, Python's own look at them is quicker than numpy's.
_FEW = 64


def bounds_of(numbers: Rows) -> tuple[int, int]:
    """The smallest and the largest of some numbers; there is at least one."""
    if len(numbers) > _FEW:
        return int(numbers.min()), int(numbers.max())
    few = numbers.tolist()
    return min(few), max(few)


@dataclass(frozen=True, kw_only=True)
class Roll:
    """What every participant may know of the samples: their parts, and who has which.

    ``samples`` gives the sample numbers of each part, ``presence`` a row for each of them and a
    column per name.
    """

    names: tuple[str, ...]
    samples: Mapping[str, Rows]
    presence: Mapping[str, Table]

    def is_complete(self, part: str) -> bool:
        """Whether everybody has every sample of a part."""
        return bool(self.presence[part].all())

    @property
    def num_samples(self) -> dict[str, int]:
        """How many samples each part has."""
        return {part: len(numbers) for part, numbers in self.samples.items()}

    @property
    def num_complete(self) -> dict[str, int]:
        """How many samples of each part everybody has."""
        return {part: int(table.all(axis=1).sum()) for part, table in self.presence.items()}

    def weights(self, given: np.ndarray[Any, Any] | None) -> dict[str, np.ndarray[Any, Any]]:
        """What the samples of every part count in the loss: 1 on the average in training.

        ``given`` are the weights by sample number; without them all count alike, and nothing is
        returned.
        """
        if given is None:
            return {}
        mean = given[self.samples["train"]].mean()
        if not mean > 0:
            raise DataError("sample weights: all of the training part are 0; let some be above")
        return {part: given[numbers] / mean for part, numbers in self.samples.items()}

    def rows(self, name: str, part: str, row_of_sample: Rows) -> Rows:
        """A party's own row for every sample of a part; -1 where it counts as absent."""
        own = row_of_sample[self.samples[part]]
        here = self.presence[part][:, self.names.index(name)]
        return own if here.all() else np.where(here, own, -1)


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Blocks and labels, the row of every sample in them, and the roll.

    Of each block only the rows that are samples are left.
    """

    blocks: Mapping[str, Block | PooledBlock]
    values: np.ndarray[Any, Any]
    # What every sample counts in the loss, if not all alike.
    weights: np.ndarray[Any, Any] | None = None
    # The row of every sample number in each block; -1 where it is not.
    rows: Mapping[str, Rows]
    # How many rows each block and the labels had.
    num_rows: Mapping[str, int]
    roll: Roll
    # How presence goes with the label in the training part, before any sample is left out.
    associations: tuple[Association, ...] = ()

    @property
    def samples(self) -> Mapping[str, Rows]:
        """The sample numbers of each part."""
        return self.roll.samples


@dataclass(frozen=True, kw_only=True)
class _AllValues:
    """Every sample's label and columns, of blocks that are all in this process."""

    labels: np.ndarray[Any, Any]
    blocks: Mapping[str, Block]
    rows: Mapping[str, Rows]

    def column(self, party: str, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """A party's column for every sample; NaN where the party does not have the sample."""
        block, rows = self.blocks[party], self.rows[party]
        if column not in block.columns or not isinstance(block.values, pd.DataFrame):
            hint = nearest(column, block.columns) if block.columns else "; its block is an array"
            raise ConfigError(f"data.presence: party '{party}' has no column '{column}'{hint}")
        values = pd.to_numeric(block.values[column], errors="coerce").to_numpy(np.float64)
        if np.isnan(values).all():
            raise ConfigError(
                f"data.presence: column '{column}' of party '{party}' holds no numbers; name a "
                "numeric one"
            )
        return np.where(rows >= 0, values[rows], np.nan)


def arrange(spec: RunSpec, sources: Sources) -> Arrangement:
    """Align the blocks that the method uses by id, split the samples, and draw who has which.

    A method that needs every block of a sample refuses incomplete ones, or leaves them out where
    the settings say so.
    """
    _check_names(spec, sources)
    names = tuple(sorted(sources.blocks))
    pools = spec.method.needs.pooled
    owners = names if pools else spec.method.participants(names, sources.label_holder)
    blocks = {name: sources.blocks[name] for name in owners}
    alignment = _alignment(blocks, sources)
    table = np.stack([alignment.rows[name] >= 0 for name in owners], axis=1)
    kept = usable_samples(spec, owners, table)
    if len(kept) < len(table):
        alignment, table = _only(alignment, kept), table[kept]
    values = sources.labels.values[alignment.label_rows]
    times, weights = (
        None if item is None else item[alignment.label_rows]
        for item in (sources.labels.times, sources.labels.weights)
    )
    known = _AllValues(labels=values, blocks=blocks, rows=alignment.rows)
    test = _official_test(sources, alignment)
    used = {name: narrowed(block, alignment.rows[name]) for name, block in blocks.items()}
    arrangement = Arrangement(
        blocks={name: block for name, (block, _) in used.items()},
        values=values,
        weights=weights,
        rows={name: rows for name, (_, rows) in used.items()},
        num_rows={
            **{name: len(block.ids) for name, block in blocks.items()},
            "labels": len(sources.labels.ids),
        },
        roll=draw_roll(
            spec, owners, table, values, sources.kind, test=test, known=known, times=times
        ),
        associations=_associations(spec, sources, owners, table, test, known, times),
    )
    return _pooled(arrangement, sources.label_holder) if pools else arrangement


def _pooled(arrangement: Arrangement, holder: str) -> Arrangement:
    """Everybody's columns at the label holder; every sample is complete."""
    roll = arrangement.roll
    return replace(
        arrangement,
        blocks={holder: PooledBlock.of(arrangement.blocks, arrangement.rows)},  # type: ignore[arg-type]
        rows={holder: np.arange(len(arrangement.values))},
        roll=replace(
            roll,
            names=(holder,),
            presence={part: table[:, :1] for part, table in roll.presence.items()},
        ),
    )


def _associations(
    spec: RunSpec,
    sources: Sources,
    owners: tuple[str, ...],
    table: Table,
    test: np.ndarray[Any, Any] | None,
    known: KnownValues,
    times: np.ndarray[Any, Any] | None,
) -> tuple[Association, ...]:
    """How presence goes with the label in the training part, of samples that nobody has too."""
    classes = _classes(spec, known.labels, sources.kind)
    split = split_samples(
        len(table), spec.data.split, seed=spec.seed, test=test, classes=classes, times=times
    )
    own = split["train"]
    stays = draw_presence(spec.data.presence, owners, "train", own, seed=spec.seed, known=known)
    here = table[own] & stays
    if here.all():
        return ()
    kind = spec.label_holder.task or sources.kind or infer_kind(known.labels)
    by_party = {name: here[:, place] for place, name in enumerate(owners)}
    return tuple(presence_and_label(by_party, known.labels[own], kind))


def usable_samples(spec: RunSpec, owners: tuple[str, ...], table: Table) -> Rows:
    """The samples that the method can learn from, by who has which; refuse to lose others."""
    if spec.method.info.tolerates_missing:
        return np.arange(len(table))
    return _complete(table, owners, spec, "by their ids")


def draw_roll(
    spec: RunSpec,
    owners: tuple[str, ...],
    table: Table,
    labels: np.ndarray[Any, Any],
    kind: TaskKind | None = None,
    *,
    test: np.ndarray[Any, Any] | None = None,
    known: KnownValues | None = None,
    times: np.ndarray[Any, Any] | None = None,
) -> Roll:
    """Split the samples into parts, and draw who counts as having which.

    Only where all blocks are in one process, their values are ``known``. ``times`` of all samples
    split them by time.
    """
    classes = _classes(spec, labels, kind)
    numbers = split_samples(
        len(table), spec.data.split, seed=spec.seed, test=test, classes=classes, times=times
    )
    samples, presence = {}, {}
    for part, own in numbers.items():
        stays = draw_presence(spec.data.presence, owners, part, own, seed=spec.seed, known=known)
        here = table[own] & stays
        if spec.method.info.tolerates_missing:
            kept = np.flatnonzero(here.any(axis=1))
        else:
            kept = _complete(here, owners, spec, f"as data.presence draws the {part} part")
        if not len(kept):
            raise DataError(f"no sample of the {part} part is left; lower data.presence.missing")
        samples[part], presence[part] = own[kept], here[kept]
    return Roll(names=owners, samples=samples, presence=presence)


def _classes(spec: RunSpec, labels: np.ndarray[Any, Any], kind: TaskKind | None) -> Rows | None:
    """The class of every sample as a number; none where the label is no class."""
    if (spec.label_holder.task or kind or infer_kind(labels)) == "regression":
        return None
    return np.unique(labels.astype(str), return_inverse=True)[1].reshape(-1)


def _alignment(blocks: Mapping[str, Block], sources: Sources) -> Alignment:
    """Who of these has which labelled sample: as found privately, or by comparing ids."""
    if sources.alignment is None:
        ids = {name: block.ids for name, block in blocks.items()}
        return align_plainly(ids, sources.labels.ids)
    rows = {name: sources.alignment.rows[name] for name in blocks}
    known = np.flatnonzero(np.any([item >= 0 for item in rows.values()], axis=0))
    if not len(known):
        raise DataError(f"no labelled sample is at any of {', '.join(blocks)}")
    return _only(replace(sources.alignment, rows=rows), known)


def without(arrangement: Arrangement, left: tuple[str, ...]) -> Arrangement:
    """The same samples in the same parts, without the blocks of parties that left.

    A sample that only they had is left out.
    """
    roll = arrangement.roll
    places = [place for place, name in enumerate(roll.names) if name not in left]
    samples, presence = {}, {}
    for part, numbers in roll.samples.items():
        here = roll.presence[part][:, places]
        kept = here.any(axis=1)
        if not kept.any():
            raise DataError(f"no sample of the {part} part is left without {', '.join(left)}")
        samples[part], presence[part] = numbers[kept], here[kept]
    names = tuple(roll.names[place] for place in places)
    return replace(
        arrangement,
        blocks={name: arrangement.blocks[name] for name in names},
        rows={name: arrangement.rows[name] for name in names},
        roll=Roll(names=names, samples=samples, presence=presence),
    )


def narrowed(block: Block, row_of_sample: Rows) -> tuple[Block, Rows]:
    """The rows of a block that are samples, in their order, and the new row of every sample."""
    here = row_of_sample >= 0
    return block.take(row_of_sample[here]), np.where(here, np.cumsum(here) - 1, -1)


def _complete(table: Table, names: tuple[str, ...], spec: RunSpec, how: str) -> Rows:
    """The samples that everybody has; refuse to lose others unless the settings say so."""
    complete = table.all(axis=1)
    num_lost = int((~complete).sum())
    method = spec.method.info.name
    tolerant = [name for name, item in METHODS.items() if item.info.tolerates_missing]
    can_learn = f"use a method that can learn from them: {', '.join(tolerant)}"
    if num_lost == len(table):
        counts = ", ".join(
            f"'{name}' has {count}" for name, count in zip(names, table.sum(axis=0), strict=True)
        )
        raise DataError(
            f"no sample is known to all, {how}: of {len(table)} labelled samples {counts}; check "
            "that every id column holds the same kind of id, written the same way, or "
            f"{can_learn}"
        )
    if num_lost and spec.data.incomplete == "refuse":
        raise DataError(
            f"{num_lost} of {len(table)} labelled samples are incomplete, {how}, and method "
            f"'{method}' needs every block of a sample; set data.incomplete = \"drop\" to lose "
            f"them, or {can_learn}"
        )
    return np.flatnonzero(complete)


def _only(alignment: Alignment, kept: Rows) -> Alignment:
    """The alignment with these samples only, numbered anew in the same order."""
    return Alignment(
        num_samples=len(kept),
        rows={name: item[kept] for name, item in alignment.rows.items()},
        label_rows=alignment.label_rows[kept],
    )


def _check_names(spec: RunSpec, sources: Sources) -> None:
    names = list(sources.blocks)
    for path, given in (
        ("party", spec.party),
        ("fabric.party", spec.fabric.party if isinstance(spec.fabric, SimulatedSpec) else {}),
    ):
        for name in given:
            if name not in names:
                raise ConfigError(f"{path}.{name}: there is no such party{nearest(name, names)}")


def _official_test(sources: Sources, alignment: Alignment) -> np.ndarray[Any, Any] | None:
    if sources.test_ids is None:
        return None
    ids = sources.labels.ids[alignment.label_rows]
    return np.flatnonzero(rows_of_ids(sources.test_ids, ids) >= 0)
