"""Predictions between organisations from a file of ids to a file of answers, and quality of a run.

Batches that are finished are kept beside the file of answers until it is whole: a prediction that
ended because a party was away goes on where it was, and releases nothing twice.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from colonnade.core.errors import DataError, NoAnswer, PartyRestarted
from colonnade.core.federation import Predictions
from colonnade.core.method import Answer
from colonnade.data.table_files import write_table
from colonnade.fabrics.grpc.hub import Hub
from colonnade.federate.alignments import HolderAlignments, named_alignment
from colonnade.federate.attempts import attempted
from colonnade.federate.networked_runs import networked_blueprint
from colonnade.federate.prediction import OpenModel
from colonnade.federate.prediction_samples import Wanted, part_of_run, wanted_ids
from colonnade.federate.refused_people import refused_people
from colonnade.federate.told_aggregates import say_aggregates
from colonnade.quality.by_party import measure_each
from colonnade.run.answered import Answered
from colonnade.run.assembly import Blueprint
from colonnade.run.kept_seals import SEALS
from colonnade.run.samples import Rows, Table
from colonnade.run.storage import read_json, read_state, write_json, write_state

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
        progress=lambda: str(len(list(unfinished.glob("*")))),
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
        asked = _answerable(wanted, tolerant=model.tolerant)
        if not len(asked):
            raise DataError(f"no sample of the {part} part is left without {', '.join(away)}")
        refused = np.zeros_like(wanted.presence)
        refused[asked] = refused_people(model, wanted.request(asked))
        wanted = _without_refused(model, wanted, refused, say)
        kept = _answerable(wanted, tolerant=model.tolerant)
        assert wanted.values is not None
        if len(kept) < len(wanted.numbers):
            because = f": {', '.join(away)} away" if away else ""
            say(f"measured on {len(kept)} of {len(wanted.numbers)} samples{because}")
        found = model.run(model.predicting(wanted.request(kept), each=True))
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


def _answerable(wanted: Wanted, *, tolerant: bool) -> Rows:
    has_blocks = wanted.presence.any(axis=1) if tolerant else wanted.presence.all(axis=1)
    return np.flatnonzero(has_blocks & (wanted.numbers >= 0))


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
        asked = _answerable(wanted, tolerant=model.tolerant)
        refused = np.zeros_like(wanted.presence)
        if len(asked):
            batches = _Unfinished(unfinished, _about(model, wanted, asked))
            refused[asked] = batches.refused(lambda: refused_people(model, wanted.request(asked)))
            wanted = _without_refused(model, wanted, refused, say)
            kept = _answerable(wanted, tolerant=model.tolerant)
            request = wanted.request(kept)
            _, plan = model.plan(request)
            known = batches.known(plan.num_batches)
            if known:
                say(f"{len(known)} of {plan.num_batches} batches were finished before")
            try:
                found = model.run(model.predicting(request, known=known, finished=batches.keep))
            except NoAnswer as error:
                raise NoAnswer(
                    f"{error}; then give the same command again: {batches.count} of "
                    f"{plan.num_batches} batches are finished and kept in {unfinished}",
                    parties=error.parties,
                ) from error
            answered = _answered(model, wanted, kept, found)
            say_aggregates(model, say)
            for name in answered.columns:
                column = np.full(len(table), None, dtype=object)
                column[kept] = answered[name].tolist()
                table[name] = column
        return _described(model, table, refused)
    finally:
        model.close()


def _about(model: OpenModel, wanted: Wanted, asked: Rows) -> str:
    name, plan = model.plan(wanted.request(asked))
    return f"{model.model_version} {wanted.pairs.digest} {name} {plan.num_batches}"


def _without_refused(model: OpenModel, wanted: Wanted, refused: Table, say: Say) -> Wanted:
    """The same samples without those that a party refuses, which has no block of them now.

    If no sample is left that can be answered, all stay: then the party says why it refuses.
    """
    left = replace(wanted, presence=wanted.presence & ~refused)
    if not len(_answerable(left, tolerant=model.tolerant)):
        return wanted
    for name, num_refused in zip(model.names, refused.sum(axis=0).tolist(), strict=True):
        if num_refused:
            say(f"'{name}' refuses {num_refused} of {len(refused)} people by its rules")
    return left


def _answered(model: OpenModel, wanted: Wanted, kept: Rows, found: Predictions) -> pd.DataFrame:
    """Answers of the samples that can be answered, in their order."""
    used = np.array([[name in names for name in model.names] for names in found.used], dtype=bool)
    presence = wanted.presence[kept]
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


class _Unfinished:
    """Answers of batches, until all are there; those of another request are thrown away."""

    def __init__(self, place: Path, request: str) -> None:
        self._place = place
        self._digest = hashlib.sha256(request.encode()).hexdigest()
        self.count = 0
        about = self._place / "request.json"
        if about.exists() and read_json(about).get("request") != self._digest:
            shutil.rmtree(self._place)
        write_json(about, {"request": self._digest})

    def refused(self, find: Callable[[], Table]) -> Table:
        """Who was refused when the first batch was finished: the batches follow from that."""
        path = self._place / "refused.safetensors"
        if not any(self._place.glob("batch-*")):
            write_state(path, {"refused": torch.from_numpy(find())})
        found: Table = read_state(path)["refused"].numpy()
        return found

    def known(self, num_batches: int) -> Mapping[int, Answer]:
        """What is there of this request, by the number of the batch."""
        found = {}
        for number in range(num_batches):
            path = self._file(number)
            if path.exists():
                state = read_state(path)
                found[number] = Answer(outputs=state["outputs"], used=tuple(state["used"]))
        self.count = len(found)
        return found

    def keep(self, number: int, answer: Answer) -> None:
        """Write one batch's answer."""
        state: dict[str, Any] = {"outputs": answer.outputs, "used": list(answer.used)}
        write_state(self._file(number), state)
        self.count += 1

    def _file(self, number: int) -> Path:
        return self._place / f"batch-{number:06d}.safetensors"
