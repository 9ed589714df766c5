"""Runs a training: records, checkpoints, resumes, stops cleanly, summarises."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from colonnade.core.errors import ColonnadeError, Diverged, Refused, StorageError
from colonnade.core.federation import Event, Federation, LoopState
from colonnade.run.arrangement import arrange, without
from colonnade.run.assembly import Blueprint, TrainingData, fit_blueprint
from colonnade.run.directory import (
    RunDirectory,
    read_blueprint,
    refuse_other_run,
    write_blueprint,
    write_calibration,
)
from colonnade.run.joining import Joining, freeze, joining_of
from colonnade.run.missing import Findings, look_at_missing, warnings_of
from colonnade.run.records import MemoryRecords, Records
from colonnade.run.result import Result, open_result
from colonnade.run.sources import Sources, load_sources
from colonnade.run.spec import RunSpec
from colonnade.run.summary import aligned_line, evaluation_line, progress_line, summarize

__all__ = ["Watcher", "reopen", "train", "train_federation"]


class Watcher(Protocol):
    """Somebody who looks on, such as a progress bar."""

    def began(self, federation: Federation, done: int, total: int) -> None:
        """Training starts, or goes on after ``done`` of ``total`` exchanges."""

    def exchanged(self, event: Event) -> None:
        """An exchange is done."""

    def wants_to_stop(self) -> bool:
        """Whether to stop after this exchange, keeping a checkpoint."""


def train(
    spec: RunSpec,
    *,
    sources: Sources | None = None,
    directory: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Result:
    """Train as the settings say, in memory or in a run directory.

    Data and settings are checked to the end before the directory is touched.
    """
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    sources = sources or load_sources(spec)
    arrangement = arrange(spec, sources)
    blueprint = fit_blueprint(spec, sources, arrangement)
    joining = joining_of(spec, blueprint, arrangement)
    blueprint = joining.inherit(blueprint) if joining else blueprint
    data = blueprint.training_data(arrangement)
    if directory is None:
        records = MemoryRecords()
        federation = blueprint.build(data, make_vault=records.vault)
        freeze(federation, spec)
        before = joining.begin(federation, data, spec) if joining else {}
        return train_federation(
            blueprint, data, federation, LoopState(), records, watcher, joining, before
        )
    blueprint.build(data)  # finds what is wrong with networks before there is a directory
    run = RunDirectory(directory, resume=resume)
    try:
        if resume:
            refuse_other_run(directory, blueprint)
        federation = blueprint.build(data, make_vault=run.vault, make_ledger=run.ledger)
        freeze(federation, spec)
        loop = LoopState()
        if resume:
            loop = run.resume(federation, keeps_best=spec.stop.patience is not None)
            run.log(f"resumed after exchange {loop.exchange}")
        write_blueprint(directory, blueprint)
        before = {}
        if joining and loop.exchange > 0:
            before = joining.recall(directory)
        elif joining:
            before = joining.begin(federation, data, spec, directory)
        if loop.exchange == 0:
            run.checkpoint(federation, loop)  # whatever happens, there is one to go back to
        result = train_federation(blueprint, data, federation, loop, run, watcher, joining, before)
        write_calibration(directory, result.calibration)
        return result
    except ColonnadeError as error:
        run.log(f"{type(error).__name__}: {error}")
        raise
    finally:
        run.close()


def reopen(directory: Path) -> Result:
    """A run with its weights and its data again, to evaluate it on its own held-out parts."""
    blueprint = read_blueprint(directory)
    spec = blueprint.spec
    if spec.data.dataset is None and not any(item.file for item in spec.party.values()):
        raise StorageError(
            f"{directory}: trained on tables in memory, which a run does not keep; evaluate with "
            "Result.load(...).evaluate(blocks, labels)"
        )
    arrangement = arrange(spec, load_sources(spec))
    if blueprint.left:
        arrangement = without(arrangement, blueprint.left)
    data = blueprint.training_data(arrangement)
    return open_result(directory, blueprint, data)


def train_federation(
    blueprint: Blueprint,
    data: TrainingData,
    federation: Federation,
    loop: LoopState,
    records: Records,
    watcher: Watcher | None,
    joining: Joining | None = None,
    before: Mapping[str, Any] | None = None,
) -> Result:
    """Train from where the loop is to the end, with records and checkpoints on the way."""
    began = time.monotonic()
    spec = blueprint.spec
    keeps_best = spec.stop.patience is not None
    # A party may refuse at any time: then there must be weights to go back to.
    keeps_regularly = records.is_lasting or any(item.policy for item in spec.party.values())
    checkpoint_every = spec.record.checkpoint_every or federation.exchanges_per_epoch
    if loop.stopped_by in ("length", "interrupted", "refused"):
        loop.stopped_by = ""  # the settings may now ask for more
    records.log(f"{spec.method.info.name} with {', '.join(blueprint.participants)}")
    records.log(aligned_line(blueprint))
    for warning in warnings_of(data.associations):
        records.log(f"warning: {warning}")
    if watcher is not None:
        watcher.began(federation, loop.exchange, federation.num_exchanges(spec.stop))
    try:
        for event in federation.train(spec.stop, loop):
            if event.metrics is not None or event.exchange % spec.record.log_every == 0:
                records.record(progress_line(federation, event, loop))
            if event.metrics is not None:
                records.record(evaluation_line(event, loop))
            if (event.is_best and keeps_best) or (
                keeps_regularly and event.exchange % checkpoint_every == 0
            ):
                records.checkpoint(federation, loop)
            if watcher is not None:
                watcher.exchanged(event)
                if watcher.wants_to_stop():
                    loop.stopped_by = loop.stopped_by or "interrupted"
        if records.is_lasting:
            records.checkpoint(federation, loop)
    except Refused as refusal:
        return _end_refused(blueprint, data, federation, loop, records, refusal, began)
    except Diverged:
        loop.stopped_by = "diverged"
        records.summarize(summarize(blueprint, federation, loop, {}, time.monotonic() - began))
        raise
    ended = loop.stopped_by != "interrupted"
    if keeps_best and ended and loop.best_exchange not in (0, loop.exchange):
        records.end_with(federation, loop.best_exchange)
    held_out = [part for part in ("validation", "test") if part in data.labels]
    try:
        quality = {part: federation.evaluate(part) for part in held_out}
    except Refused as refusal:
        return _end_refused(blueprint, data, federation, loop, records, refusal, began)
    findings, start = _further(blueprint, data, federation, records, joining, before or {})
    seconds = time.monotonic() - began
    summary = summarize(blueprint, federation, loop, quality, seconds, findings, start)
    records.summarize(summary)
    records.seal(federation)
    records.log(f"stopped by {loop.stopped_by} after exchange {loop.exchange}")
    return Result(
        blueprint=blueprint,
        federation=federation,
        summary=summary,
        calibration=findings.calibration,
    )


def _further(
    blueprint: Blueprint,
    data: TrainingData,
    federation: Federation,
    records: Records,
    joining: Joining | None,
    before: Mapping[str, Any],
) -> tuple[Findings, dict[str, Any] | None]:
    """What is measured beyond quality: by observed set, and without those who joined.

    A party may refuse to release its held-out samples once more: then it is not known.
    """
    findings, start = Findings(warnings=warnings_of(data.associations)), None
    try:
        findings = look_at_missing(federation, data)
        if joining is not None:
            after = joining.quality(federation, data, blueprint.spec)
            start = joining.summary(blueprint.spec, before, after)
    except Refused as refusal:
        records.log(f"not measured by observed set: {refusal}")
    late = joining.warnings(start or {}) if joining else ()
    for warning in late:
        records.log(f"warning: {warning}")
    return replace(findings, warnings=(*findings.warnings, *late)), start


def _end_refused(
    blueprint: Blueprint,
    data: TrainingData,
    federation: Federation,
    loop: LoopState,
    records: Records,
    refusal: Refused,
    began: float,
) -> Result:
    """A party refuses to go on: the run ends with the weights of its last checkpoint."""
    kept = records.go_back(federation)
    loop.stopped_by = "refused"
    loop.exchange = loop.exchange if kept is None else kept
    quality = {}
    for part in ("validation", "test"):
        if part in data.labels:
            # Samples that were released less often may still be measured.
            with contextlib.suppress(Refused):
                quality[part] = federation.evaluate(part)
    seconds = time.monotonic() - began
    summary = summarize(blueprint, federation, loop, quality, seconds, refusal=refusal)
    records.summarize(summary)
    records.seal(federation)
    records.log(f"stopped by a refusal; the weights are those of exchange {loop.exchange}")
    records.log(str(refusal))
    if loop.exchange == 0:
        raise refusal  # nothing was learned: there is no model to end with
    return Result(blueprint=blueprint, federation=federation, summary=summary)
