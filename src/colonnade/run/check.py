"""A look at a run before it trains: how data are understood, what is doubtful, what it will cost.

``look_at_data`` gives the doubts, for the start of every training. ``check`` gives everything, and
collects what is wrong instead of ending at the first mistake. Nothing is written.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from colonnade.core.errors import ColonnadeError
from colonnade.core.federation import LoopState, Stop
from colonnade.core.task import TaskKind, infer_kind
from colonnade.data.blocks import Block
from colonnade.data.column_check import column_doubts, column_views
from colonnade.data.pooling import PooledBlock
from colonnade.quality.evaluation import evaluate
from colonnade.quality.headline import IMBALANCED
from colonnade.run.assembly import Blueprint
from colonnade.run.fitting import fit_blueprint
from colonnade.run.samples import Arrangement, arrange
from colonnade.run.sources import Sources, load_sources
from colonnade.run.spec import RunSpec

__all__ = ["Checked", "check", "look_at_data"]

# Exchanges that are tried to see what one costs.
_TRIED = 3
_FEW_SAMPLES = 50
_FEW_OF_A_CLASS = 10


@dataclass(kw_only=True)
class Checked:
    """What was found: lines to read, doubts, and mistakes that training would end with."""

    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def look_at_data(spec: RunSpec, sources: Sources, arrangement: Arrangement) -> tuple[str, ...]:
    """Doubts about data that can be used: each one sentence with its remedy.

    Args:
        spec: The settings.
        sources: Blocks and labels.
        arrangement: Their samples.

    Returns:
        The doubts; columns first, then labels.
    """
    kind = spec.label_holder.task or sources.kind or infer_kind(arrangement.values)
    found = [f"party '{name}': {note}" for name, b in sources.blocks.items() for note in b.notes]
    found += _strange_holder(sources)
    for block, rows, truth in _with_labels(arrangement):
        found += column_doubts(block, rows, truth, kind)
    if spec.label_holder.task is None and sources.kind is None:
        found += _guess(sources.labels.name, arrangement.values, kind)
    return (*found, *_balance(sources.labels.name, arrangement.values, kind))


def _strange_holder(sources: Sources) -> Iterator[str]:
    """A label holder without a block may be a slip of the pen: its name is nearly a party's."""
    name, parties = sources.label_holder, list(sources.blocks)
    close = difflib.get_close_matches(name.lower(), map(str.lower, parties), n=1, cutoff=0.75)
    if name not in parties and close:
        meant = next(party for party in parties if party.lower() == close[0])
        yield f"the label holder '{name}' has no block of its own; did you mean '{meant}'?"


def _with_labels(
    arrangement: Arrangement,
) -> Iterator[tuple[Block, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Every block, the rows of its labelled samples, and their labels."""
    for name, block in arrangement.blocks.items():
        rows = arrangement.rows[name]
        here = rows >= 0
        parts = block.blocks.values() if isinstance(block, PooledBlock) else (block,)
        for part in parts:
            yield part, rows[here], arrangement.values[here]


def _guess(label: str, values: np.ndarray[Any, Any], kind: TaskKind) -> Iterator[str]:
    """Of numbers nobody can tell whether they are classes: say what they are taken for."""
    if values.dtype.kind in "iuf" and kind != "binary" and bool(np.all(np.mod(values, 1) == 0)):
        count = len(np.unique(values))
        others = "multiclass" if kind == "regression" else "regression"
        yield (
            f"the label '{label}' has {count} whole numbers and is taken as a {kind}; if it is a "
            f'{others}, set label_holder.task = "{others}" (task= in Python)'
        )


def _balance(label: str, values: np.ndarray[Any, Any], kind: TaskKind) -> Iterator[str]:
    if len(values) < _FEW_SAMPLES:
        yield (
            f"there are only {len(values)} labelled samples: whatever quality comes out may be "
            "chance"
        )
    if kind == "regression":
        return
    classes, counts = np.unique(values, return_counts=True)
    rarest, fewest = classes[counts.argmin()], int(counts.min())
    share = fewest / len(values)
    if len(classes) == 2 and share < IMBALANCED:
        yield (
            f"only {fewest} of {len(values)} samples ({100 * share:.1f} %) have '{label}' = "
            f"{rarest}: accuracy hides failure, so AUC is the headline; "
            'label_holder.class_weights = "balanced" has both classes count alike'
        )
    elif fewest < _FEW_OF_A_CLASS:
        yield (
            f"only {fewest} of {len(values)} samples have '{label}' = {rarest}; a class needs "
            "samples in every part, so use more, or put rare classes together"
        )


def check(spec: RunSpec) -> Checked:
    """Look at everything that a run reads, without training.

    Args:
        spec: The settings.

    Returns:
        How data are understood, doubts, and mistakes; a run without mistakes trains.
    """
    found = Checked()
    try:
        sources = load_sources(spec)
    except ColonnadeError as error:
        found.errors.append(str(error))
        return found
    for name, block in sources.blocks.items():
        _describe(spec, name, block, found)
    try:
        arrangement = arrange(spec, sources)
        found.lines += _overlap(sources, arrangement)
        found.lines += _label_lines(spec, sources, arrangement)
        found.warnings += look_at_data(spec, sources, arrangement)
        blueprint = fit_blueprint(spec, sources, arrangement)
        found.lines += _cost(spec, blueprint, arrangement)
    except ColonnadeError as error:
        # Of a column it is known already, in the words of the column's own look.
        if str(error) not in found.errors and not found.errors:
            found.errors.append(str(error))
    return found


def _describe(spec: RunSpec, name: str, block: Block, found: Checked) -> None:
    views, errors = column_views(block, spec.prepare_of(name))
    found.errors += errors
    num_rows = len(block.ids)
    if not block.columns:
        found.lines.append(f"{name}: {num_rows} rows, an array of {block.values.shape[1:]}")
        return
    width = sum(view.width for view in views)
    found.lines.append(f"{name}: {num_rows} rows, {len(block.columns)} columns as {width} numbers")
    found.lines += [f"  {view}" for view in views]


def _overlap(sources: Sources, arrangement: Arrangement) -> list[str]:
    num_labels = len(sources.labels.ids)
    total = sum(arrangement.roll.num_samples.values())
    complete = sum(arrangement.roll.num_complete.values())
    parts = ", ".join(f"{part} {n}" for part, n in arrangement.roll.num_samples.items())
    lines = [f"samples: {total} of {num_labels} labelled, {complete} known to all ({parts})"]
    if isinstance(next(iter(arrangement.blocks.values())), PooledBlock):
        return lines
    for name, rows in arrangement.rows.items():
        lines.append(f"  {name} has {int((rows >= 0).sum())} of them")
    return lines


def _label_lines(spec: RunSpec, sources: Sources, arrangement: Arrangement) -> list[str]:
    values, label = arrangement.values, sources.labels.name
    said = spec.label_holder.task or sources.kind
    kind = said or infer_kind(values)
    how = "as said" if said else "guessed; label_holder.task says otherwise"
    lines = [f"label '{label}': {kind} ({how})"]
    if kind != "regression":
        classes, counts = np.unique(values, return_counts=True)
        order = np.argsort(-counts)[:10]
        shares = ", ".join(f"{classes[at]} {counts[at] / len(values):.1%}" for at in order)
        lines.append(f"  {len(classes)} classes: {shares}")
    return lines


def _cost(spec: RunSpec, blueprint: Blueprint, arrangement: Arrangement) -> list[str]:
    """What is to come, by a few exchanges that are thrown away."""
    federation = blueprint.build(blueprint.training_data(arrangement))
    total = federation.num_exchanges(spec.stop)
    line = f"to come: {total} exchanges of up to {spec.data.batch_size} samples"
    if any(spec.protect_of(name, blueprint.label_holder) for name in blueprint.participants):
        return [line]  # an exchange that is tried would be charged like any other
    began = time.monotonic()
    trial = Stop(exchanges=min(_TRIED, total))
    quiet = replace(trial, evaluate_every=total + _TRIED)
    for _ in federation.train(quiet, LoopState(), evaluate):
        pass
    each = (time.monotonic() - began) / min(_TRIED, total)
    traffic = federation.fabric.meter.parties.values()
    moved = sum(item.bytes_up + item.bytes_down for item in traffic) / min(_TRIED, total)
    seconds = each * total
    return [f"{line}, about {moved * total / 1e6:.1f} MB and {seconds:.0f} s in this process"]
