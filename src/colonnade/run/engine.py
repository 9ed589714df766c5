"""Runs a training: records, checkpoints, resumes, stops cleanly, summarises."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from colonnade.core.errors import (
    BadReply,
    ColonnadeError,
    Diverged,
    MissingBlock,
    PartyRestarted,
    Refused,
    StorageError,
)
from colonnade.core.federation import Event, Federation, LoopState
from colonnade.core.loop import Timekeeper
from colonnade.fabrics.in_process import LocalFabric
from colonnade.quality.evaluation import evaluate
from colonnade.quality.judgement import JUDGEMENT, judge
from colonnade.run.assembly import Blueprint, TrainingData
from colonnade.run.attending import Attending
from colonnade.run.blueprint_files import (
    read_blueprint,
    refuse_other_run,
    resumed_spec,
    write_blueprint,
    write_calibration,
)
from colonnade.run.check import look_at_data
from colonnade.run.comparing import card_maker
from colonnade.run.directory import RunDirectory, local_parties
from colonnade.run.fitting import fit_blueprint
from colonnade.run.keeping import Keeping
from colonnade.run.lanes import Lanes
from colonnade.run.lineage import lineage_of
from colonnade.run.missing_blocks import Findings, look_at_missing, warnings_of
from colonnade.run.records import MemoryRecords, Records, settle_in
from colonnade.run.refit import Trained, refits, train_twice
from colonnade.run.result import Result, open_result
from colonnade.run.samples import arrange, without
from colonnade.run.sources import Sources, load_sources
from colonnade.run.spec import RunSpec, plain_spec
from colonnade.run.storage import write_json
from colonnade.run.summary import (
    Accounts,
    aligned_line,
    evaluation_line,
    progress_line,
    skipped_line,
    summarize,
)
from colonnade.run.trackers import Trackers, require_trackers
from colonnade.run.warm_start import Joining, freeze, joining_of

__all__ = ["Callback", "Watcher", "reopen", "reopen_with_data", "train", "train_federation"]

# Gets every exchange's event; True ends training.
Callback: TypeAlias = Callable[[Event], bool | None]


class Watcher(Protocol):
    """Somebody who looks on, such as a progress bar."""

    def began(self, federation: Federation, done: int, total: int) -> None:
        """Training starts, or goes on after ``done`` of ``total`` exchanges."""

    def exchanged(self, event: Event) -> None:
        """An exchange is done."""

    def wants_to_stop(self) -> bool:
        """Whether to stop after this exchange, keeping a checkpoint."""


# Whatever the caller's mode is, training needs gradients.
@torch.inference_mode(False)
@torch.enable_grad()
def train(
    spec: RunSpec,
    *,
    sources: Sources | None = None,
    directory: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    tell: Callable[[str], None] | None = None,
    callback: Callback | None = None,
    earlier: Result | None = None,
) -> Result:
    """Train as the settings say, in memory or in a run directory.

    Data and settings are checked to the end before the directory is touched. With ``tell``, data
    are looked at for what may mislead, and every doubt is told before training begins. Training
    ends after the exchange whose event the ``callback`` answers with True. Weights begin as those
    of an ``earlier`` result, if there is one.
    """
    if directory is not None:
        plain_spec(spec)  # code of the caller's own can't be kept
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    require_trackers(spec.record.trackers)
    sources = sources or load_sources(spec)

    def once(spec: RunSpec, directory: Path | None, resume: bool, is_first: bool) -> Trained:
        told, called = (tell, callback) if is_first else (None, None)
        return _train_once(spec, sources, directory, resume, watcher, told, called, earlier)

    begun = directory if resume else None
    if refits(spec, len(sources.labels.ids), begun, starts_anew=not (earlier or spec.start.run)):
        return train_twice(spec, once, directory, resume=resume)
    return once(spec, directory, resume, True).result


def _train_once(
    spec: RunSpec,
    sources: Sources,
    directory: Path | None,
    resume: bool,
    watcher: Watcher | None,
    tell: Callable[[str], None] | None,
    callback: Callback | None,
    earlier: Result | None,
) -> Trained:
    """One training, from settings to a result."""
    spec = resumed_spec(directory, spec) if resume and directory is not None else spec
    arrangement = arrange(spec, sources)
    blueprint = fit_blueprint(spec, sources, arrangement)
    known = earlier.as_earlier() if earlier else None
    joining = joining_of(spec, blueprint, arrangement, known)
    blueprint = joining.inherit(blueprint) if joining else blueprint
    data = blueprint.training_data(arrangement)
    if tell is not None:
        data = replace(data, doubts=look_at_data(spec, sources, arrangement))
        for doubt in data.doubts:
            tell(doubt)
    # Before there is a directory: whatever is wrong with networks or protections is found here.
    federation = blueprint.build(data)
    freeze(federation, spec)
    if directory is None:
        records = MemoryRecords()
        settle_in(federation, records, local_parties(federation))
        before = joining.begin(federation, blueprint, data, spec) if joining else {}
        result = train_federation(
            blueprint, data, federation, LoopState(), records, watcher, joining, before, callback
        )
        return Trained(result, blueprint, data)
    run = RunDirectory(directory, resume=resume)
    try:
        if resume:
            refuse_other_run(directory, blueprint)
        settle_in(federation, run, local_parties(federation))
        loop = LoopState()
        if resume:
            loop = run.resume(federation, keeps_best=blueprint.spec.stop.patience is not None)
            run.log(f"resumed after exchange {loop.exchange}")
        write_blueprint(directory, blueprint)
        before = joining.recall(directory) if joining and loop.exchange > 0 else {}
        if joining and loop.exchange == 0:
            before = joining.begin(federation, blueprint, data, spec, directory)
        if loop.exchange == 0:
            run.checkpoint(federation, loop)  # whatever happens, there is one to go back to
        result = train_federation(
            blueprint, data, federation, loop, run, watcher, joining, before, callback
        )
        write_calibration(directory, result.calibration)
        return Trained(result, blueprint, data)
    except ColonnadeError as error:
        run.log(f"{type(error).__name__}: {error}")
        raise
    finally:
        run.close()


def reopen(directory: Path) -> Result:
    """A run with its weights and its data again, to evaluate it on its own held-out parts."""
    blueprint, data = _with_data(directory)
    return open_result(directory, blueprint, data)


def reopen_with_data(directory: Path) -> tuple[Blueprint, TrainingData, Federation]:
    """The same, taken apart: to predict its samples from some blocks only."""
    blueprint, data = _with_data(directory)
    return blueprint, data, open_result(directory, blueprint, data)._federation


def _with_data(directory: Path) -> tuple[Blueprint, TrainingData]:
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
    return blueprint, blueprint.training_data(arrangement)


def train_federation(
    blueprint: Blueprint,
    data: TrainingData,
    federation: Federation,
    loop: LoopState,
    records: Records,
    watcher: Watcher | None,
    joining: Joining | None = None,
    before: Mapping[str, Any] | None = None,
    callback: Callback | None = None,
) -> Result:
    """Train from where the loop is to the end, with records and checkpoints on the way."""
    began = time.monotonic()
    spec = blueprint.spec
    timekeeper = Timekeeper(federation.fabric, loop)
    keeps_best = spec.stop.patience is not None
    # A party may refuse at any time: then there must be weights to go back to.
    keeps_regularly = records.is_lasting or any(item.policy for item in spec.party.values())
    checkpoint_every = spec.record.checkpoint_every or federation.exchanges_per_epoch
    if loop.stopped_by in ("length", "interrupted", "refused", "time", "callback"):
        loop.stopped_by = ""  # the settings may now ask for more
    records.log(f"{spec.method.info.name} with {', '.join(blueprint.participants)}")
    records.log(aligned_line(blueprint))
    for warning in (*data.doubts, *warnings_of(data.associations)):
        records.log(f"warning: {warning}")
    keeping = Keeping(
        federation,
        loop,
        records,
        timekeeper,
        every=checkpoint_every if keeps_regularly else None,
        keeps_best=keeps_best,
    )
    attending = Attending(federation)
    file = records.timeline(spec.record.timeline, loop)
    lanes = Lanes(blueprint, federation, loop, timekeeper, file)
    accounts = Accounts(federation)
    facts = {"method": spec.method.info.name, "parties": ", ".join(blueprint.participants)}
    trackers = Trackers(spec.record.trackers, records.root, facts)
    if watcher is not None:
        watcher.began(federation, loop.exchange, federation.num_exchanges(spec.stop))
    try:
        for event in federation.train(spec.stop, loop, evaluate, timekeeper):
            lines: list[dict[str, Any]] = []
            if event.metrics is not None or event.exchange % spec.record.log_every == 0:
                lines.append(progress_line(federation, event, loop, accounts.look()))
            if event.metrics is not None:
                lines.append(evaluation_line(event, loop))
            for line in lines:
                records.record(line)
                trackers.record(line)
            if event.skipped is not None:
                records.record(skipped_line(event))
            with timekeeper.on("keeping"):
                if (skipped := keeping.after(event)) is not None:
                    records.record(skipped)
            for party, change, text in attending.news():
                records.log(text)
                lanes.attends(party, change, text)
            lanes.after_exchange()
            if callback is not None and callback(event):
                loop.stopped_by = loop.stopped_by or "callback"
            if watcher is not None:
                watcher.exchanged(event)
                if watcher.wants_to_stop():
                    loop.stopped_by = loop.stopped_by or "interrupted"
        if records.is_lasting:
            with timekeeper.on("keeping"):
                keeping.last()
    except Refused as refusal:
        lanes.failed(refusal, "refused")
        return _end_refused(blueprint, data, federation, loop, records, refusal, began)
    except (Diverged, BadReply) as error:
        loop.stopped_by = "diverged" if isinstance(error, Diverged) else "fault"
        lanes.failed(error, loop.stopped_by)
        # Whoever sent one bad answer may send another when asked for its count of steps.
        with contextlib.suppress(BadReply):
            seconds = time.monotonic() - began
            records.summarize(summarize(blueprint, federation, loop, {}, seconds, fault=error))
        raise
    except ColonnadeError as error:
        lanes.failed(error, "restarted" if isinstance(error, PartyRestarted) else "fault")
        raise
    finally:
        lanes.end()
        trackers.close()
    ended = loop.stopped_by != "interrupted"
    if keeps_best and ended and loop.best_exchange not in (0, loop.exchange):
        records.end_with(federation, loop.best_exchange)
    held_out = [part for part in ("validation", "test") if part in data.labels]
    try:
        with timekeeper.on("evaluating"):
            quality = _final_quality(federation, held_out, records)
    except Refused as refusal:
        return _end_refused(blueprint, data, federation, loop, records, refusal, began)
    findings, start = _further(blueprint, data, federation, records, joining, before or {})
    timekeeper.look()
    seconds = time.monotonic() - began
    lineage = lineage_of(blueprint, data)
    summary = summarize(
        blueprint, federation, loop, quality, seconds, findings, start, lineage=lineage
    )
    records.summarize(summary)
    records.seal(federation)
    records.log(f"stopped by {loop.stopped_by} after exchange {loop.exchange}")
    is_here = isinstance(federation.fabric, LocalFabric)
    return Result(
        blueprint=blueprint,
        federation=federation,
        summary=summary,
        calibration=findings.calibration,
        card=card_maker(blueprint, data, federation, quality) if is_here else None,
        lines=records.recorded(),
    )


def _final_quality(
    federation: Federation, held_out: list[str], records: Records
) -> dict[str, Mapping[str, float]]:
    """Metrics by part; none if somebody is away whom the run has gone on without."""
    try:
        quality: dict[str, Mapping[str, float]] = {}
        for part in held_out:
            labels = federation.holder.parts[part]
            found = federation.predictions(part, labels.plan, each=True)
            quality[part] = evaluate(federation, part, found)
            if records.root is not None:
                judged = judge(federation.holder.task, found.outputs, labels.values, part=part)
                write_json(records.root / JUDGEMENT, judged)
        return quality
    except MissingBlock as error:
        if not federation.waits_for_nobody:
            raise
        records.log(f"warning: no quality at the end: {error}")
        return {}


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
            after = joining.quality(federation, blueprint, data)
            start = joining.summary(blueprint.spec, before, after)
    except (Refused, MissingBlock) as error:
        records.log(f"not measured by observed set: {error}")
    late = joining.warnings(start or {}) if joining else ()
    for warning in late:
        records.log(f"warning: {warning}")
    warnings = (*findings.warnings, *late)
    return replace(findings, warnings=warnings, doubts=data.doubts), start


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
                quality[part] = evaluate(federation, part)
    seconds = time.monotonic() - began
    lineage = lineage_of(blueprint, data)
    summary = summarize(
        blueprint, federation, loop, quality, seconds, lineage=lineage, refusal=refusal
    )
    records.summarize(summary)
    records.seal(federation)
    records.log(f"stopped by a refusal; the weights are those of exchange {loop.exchange}")
    records.log(str(refusal))
    if loop.exchange == 0:
        raise refusal  # nothing was learned: there is no model to end with
    return Result(blueprint=blueprint, federation=federation, summary=summary)
