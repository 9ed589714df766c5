"""Predictions between organisations from a file of ids to a file of answers, and quality of a run.

Batches that are finished are kept beside the file of answers until it is whole: a prediction that
ended because a party was away goes on where it was, and releases nothing twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from colonnade.core.errors import DataError, PartyRestarted, Refused
from colonnade.data.table_files import write_table
from colonnade.fabrics.grpc.hub import Hub
from colonnade.federate.alignments import HolderAlignments, named_alignment
from colonnade.federate.asked_rows import AnsweredRows, AskedRows, answerable
from colonnade.federate.attempts import attempted
from colonnade.federate.networked_runs import networked_blueprint
from colonnade.federate.prediction import OpenModel
from colonnade.federate.prediction_samples import Wanted, part_of_run, wanted_ids
from colonnade.federate.refused_people import refused_people, say_refused
from colonnade.federate.told_aggregates import say_aggregates
from colonnade.quality.by_party import measure_each
from colonnade.run.answered import Answered
from colonnade.run.assembly import Blueprint
from colonnade.run.kept_seals import SEALS
from colonnade.run.samples import Rows, Table

__all__ = ["alignments_of", "evaluate_over", "predict_over"]

Say = Callable[[str], None]


def predict_over(
    hub: Hub,
    federation: Path,
    run: Path,
    ids: Path,
    out: Path,
    *,
    id_column: str | None = None,
    wait_seconds: float = 30.0,
    say: Say = lambda line: None,
) -> pd.DataFrame:
    """Predict the samples of a file of ids with a run's final weights, and write the answers.

    Args:
        hub: Open, with its parties.
        federation: The federation's directory, where the alignments are.
        run: The run's directory.
        ids: A table with the ids.
        out: Where to write the answers: CSV, or Parquet by its ending. Finished batches are kept
            beside it, in a directory that is removed at the end.
        id_column: The column of the ids; by default as in training.
        wait_seconds: How long to wait for parties that are not connected. After that a method that
            can do without blocks answers without them.
        say: Told what is done.

    Returns:
        What was written. A row per id, in the file's order: the label, ``confidence`` or
        ``spread``, ``blocks`` that were used, those ``missing``, the parties that ``refused`` the
        person, the ``model`` and the ``versions`` of the parties. A sample that the method can't
        predict without a missing block has no label.

    Raises:
        NoAnswer: A party that the method needs is away; finished batches are kept.
        Refused: A party's rules are against the prediction, or against all people in it.
        PartyFailed: A party keeps crashing.
    """
    blueprint = networked_blueprint(run)
    kept = alignments_of(federation, run, blueprint)
    unfinished = out.with_name(f"{out.name}.unfinished")

    def attempt() -> pd.DataFrame:
        away = _absent(hub, blueprint, wait_seconds, say)
        wanted = wanted_ids(
            hub,
            blueprint,
            run,
            kept,
            ids,
            id_column=id_column,
            away=away,
            partly=blueprint.spec.method.info.tolerates_missing,
            say=say,
        )
        return _answers(hub, federation, run, wanted, away, unfinished, say)

    table = attempted(
        attempt,
        progress=lambda: str(len(list(unfinished.rglob("*")))),
        go_back=_asking_again(say),
        remedy="look into its log, then give the command again: what is finished is kept",
    )
    write_table(table, out)
    shutil.rmtree(unfinished, ignore_errors=True)
    return table


def evaluate_over(
    hub: Hub,
    federation: Path,
    run: Path,
    *,
    part: str = "test",
    wait_seconds: float = 30.0,
    say: Say = lambda line: None,
) -> dict[str, float]:
    """Measure a run on a part of its own samples: loss and metrics by name.

    ``hub``, ``federation``, ``run`` and ``wait_seconds`` are as in ``predict_over``. A party that
    restarted meanwhile is asked again.

    Raises:
        DataError: No sample of the part can be answered without the parties that are away.
        PartyFailed: A party keeps crashing.
    """
    blueprint = networked_blueprint(run)
    wanted = part_of_run(blueprint, run, alignments_of(federation, run, blueprint), part)

    def attempt() -> dict[str, float]:
        away = _absent(hub, blueprint, wait_seconds, say)
        return _measured(hub, federation, run, wanted, away, part, say)

    return attempted(
        attempt,
        # Nothing of an evaluation is kept.
        progress=lambda: None,
        go_back=_asking_again(say),
        remedy="look into its log, then give the command again",
    )


def _measured(
    hub: Hub,
    federation: Path,
    run: Path,
    wanted: Wanted,
    away: tuple[str, ...],
    part: str,
    say: Say,
) -> dict[str, float]:
    model = OpenModel(hub, run, wanted.pairs, without=away, seals=federation / SEALS)
    try:
        wanted = wanted.without(tuple(map(model.names.index, away)))
        kept = answerable(wanted, tolerant=model.tolerant)
        if not len(kept):
            raise DataError(f"no sample of the {part} part is left without {', '.join(away)}")
        try:
            wanted = _without_refused(model, wanted, kept, say, spent=False)
            kept = answerable(wanted, tolerant=model.tolerant)
            found = model.run(model.predicting(wanted.request(kept), each=True))
        except Refused:
            wanted = _without_refused(model, wanted, kept, say, spent=True)
            kept = answerable(wanted, tolerant=model.tolerant)
            found = model.run(model.predicting(wanted.request(kept), each=True))
        assert wanted.values is not None
        if len(kept) < len(wanted.numbers):
            because = f": {', '.join(away)} away" if away else ""
            say(f"measured on {len(kept)} of {len(wanted.numbers)} samples{because}")
        values = wanted.values[kept]
        task = model.blueprint.task
        targets = task.encode(values, found.outputs.dtype)
        return {
            "loss": task.loss(found.outputs, targets).item(),
            **task.measure(found.outputs, values),
            **(measure_each(task, found.each, values) if found.each else {}),
        }
    finally:
        model.close()


def _asking_again(say: Say) -> Callable[[PartyRestarted], None]:
    def go_back(error: PartyRestarted) -> None:
        say(f"'{error.party}' came back without what it knew: it is asked again")

    return go_back


def alignments_of(federation: Path, run: Path, blueprint: Blueprint) -> HolderAlignments:
    """The federation's alignments, or those that stand in the run's own directory."""
    digest = named_alignment(run)
    own = run / "alignments"
    root = own if digest and (own / digest).is_dir() else federation / "alignments"
    return HolderAlignments(root=root, holder=blueprint.label_holder)


def _absent(hub: Hub, blueprint: Blueprint, seconds: float, say: Say) -> tuple[str, ...]:
    absent = hub.wait_for(blueprint.elsewhere, timeout=0.2)
    if absent and seconds > 0:
        say(f"waiting for {', '.join(absent)}")
        absent = hub.wait_for(blueprint.elsewhere, timeout=seconds)
    if absent and blueprint.spec.method.info.tolerates_missing:
        say(f"without {', '.join(absent)}")
    return absent


def _answers(
    hub: Hub,
    federation: Path,
    run: Path,
    wanted: Wanted,
    away: tuple[str, ...],
    unfinished: Path,
    say: Say,
) -> pd.DataFrame:
    model = OpenModel(hub, run, wanted.pairs, without=away, seals=federation / SEALS)
    try:
        wanted = wanted.without(tuple(map(model.names.index, away)))
        table = pd.DataFrame(index=wanted.ids)
        found = AskedRows(model, wanted, unfinished, say).run()
        if len(found.rows):
            answered = _answered(model, wanted.presence & ~found.refused, found)
            say_aggregates(model, say)
            for name in answered.columns:
                column = np.full(len(table), None, dtype=object)
                column[found.rows] = answered[name].tolist()
                table[name] = column
        return _described(model, table, found.refused)
    finally:
        model.close()


def _answered(model: OpenModel, presence: Table, found: AnsweredRows) -> pd.DataFrame:
    """Answers of the samples that can be answered, in their order."""
    used = np.array([[name in names for name in model.names] for names in found.used], dtype=bool)
    presence = presence[found.rows]
    # A guess uses no block; whoever was silent gave none.
    presence = np.where(used.any(axis=1, keepdims=True), presence & used, presence)
    answered = Answered(
        outputs=found.outputs,
        used=found.used,
        presence=presence,
        task=model.blueprint.task,
        calibration=model.calibration,
    )
    table = pd.DataFrame({model.blueprint.label_name: answered.values()})
    if model.blueprint.task.kind == "regression":
        table["spread"] = answered.spread()
    else:
        table["confidence"] = answered.confidence(answered.probabilities())
    table["blocks"] = list(found.used)
    return table


def _without_refused(
    model: OpenModel, wanted: Wanted, rows: Rows, say: Say, *, spent: bool
) -> Wanted:
    """The same samples without those that a party refuses, which has no block of them now.

    If no sample is left that can be answered, all stay: then the party says why it refuses.
    """
    refused = np.zeros_like(wanted.presence)
    refused[rows] = refused_people(model, wanted.request(rows), spent=spent)
    left = replace(wanted, presence=wanted.presence & ~refused)
    if not len(answerable(left, tolerant=model.tolerant)):
        return wanted
    say_refused(model, refused, say)
    return left


def _described(model: OpenModel, table: pd.DataFrame, refused: Table) -> pd.DataFrame:
    """The table with the blocks as text, those missing or refused, and versions."""
    label, sure = model.blueprint.label_name, "confidence"
    if model.blueprint.task.kind == "regression":
        sure = "spread"
    for name in (label, sure, "blocks"):
        if name not in table:
            table[name] = None
    used = [names or () for names in table["blocks"]]
    table["blocks"] = ["; ".join(names) for names in used]
    table["missing"] = [
        "; ".join(name for name in model.names if name not in names) for names in used
    ]
    table["refused"] = [
        "; ".join(name for name, refuses in zip(model.names, row, strict=True) if refuses)
        for row in refused.tolist()
    ]
    table["model"] = model.model_version
    table["versions"] = "; ".join(
        f"{name}={version}" for name, version in sorted(model.party_versions.items())
    )
    return table
