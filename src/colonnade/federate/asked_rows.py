"""Asks a model for the rows of a file, and goes on where a party refuses some of them.

Batches that are finished are kept until the file is whole, so that nothing is released twice.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import NoAnswer, Refused
from colonnade.core.method import Answer
from colonnade.core.predictions import Predictions
from colonnade.federate.prediction import OpenModel
from colonnade.federate.prediction_samples import Wanted
from colonnade.federate.refused_people import refused_people, say_refused
from colonnade.run.samples import Rows, Table
from colonnade.run.storage import read_json, read_state, write_json, write_state

__all__ = ["AnsweredRows", "AskedRows", "answerable"]


def answerable(wanted: Wanted, *, tolerant: bool) -> Rows:
    """The rows that can be answered: with any block if the method does without, else with all."""
    has_blocks = wanted.presence.any(axis=1) if tolerant else wanted.presence.all(axis=1)
    return np.flatnonzero(has_blocks & (wanted.numbers >= 0))


class AnsweredRows(NamedTuple):
    """Rows with an answer, in the file's order; and for every row of the file, who refused it.

    ``refused`` has a column per name of ``OpenModel.names``.
    """

    rows: Rows
    outputs: Tensor
    used: list[tuple[str, ...]]
    refused: Table


class AskedRows:
    """The rows of one file.

    Args:
        model: The open session.
        wanted: The samples of all rows.
        place: Where finished batches are kept; those of another file are thrown away.
        say: Told what is done.
    """

    def __init__(
        self, model: OpenModel, wanted: Wanted, place: Path, say: Callable[[str], None]
    ) -> None:
        self._model, self._place, self._say = model, place, say
        # As it is without those who are refused.
        self._wanted = wanted
        self._refused = np.zeros_like(wanted.presence)
        # Parties that were asked whom they refuse after they had refused a batch.
        self._have_said: set[str] = set()
        self._is_answered = np.zeros(len(wanted.presence), dtype=bool)
        self._outputs: Tensor | None = None
        self._used: list[tuple[str, ...]] = [()] * len(wanted.presence)

    def run(self) -> AnsweredRows:
        """Ask for all rows that can be answered.

        Raises:
            NoAnswer: A party that the method needs is away; finished batches are kept.
            Refused: A party's rules are against the prediction, or against all people in it.
        """
        rows = answerable(self._wanted, tolerant=self._model.tolerant)
        if len(rows):
            rows = self._begin(rows)
        while len(rows):
            together, errors = self._ask(rows)
            if not errors:
                break
            found = self._refusing(together, {error.party for error in errors})
            self._leave_out(together, found)
            rows = self._left(together)
            if not found.any() or not (len(rows) or self._is_answered.any()):
                raise errors[0]
        say_refused(self._model, self._refused, self._say)
        answered = np.flatnonzero(self._is_answered)
        return AnsweredRows(
            rows=answered,
            outputs=torch.zeros(0) if self._outputs is None else self._outputs[answered],
            used=[self._used[row] for row in answered.tolist()],
            refused=self._refused,
        )

    def _begin(self, rows: Rows) -> Rows:
        """Leave out whom parties refuse; once a batch is finished, its like must come again.

        If nothing is left, all are asked for: then the party says why it refuses.
        """
        everybody = self._wanted
        about = self._place / "request.json"
        digest = self._digest(rows)
        if about.exists() and read_json(about).get("request") != digest:
            shutil.rmtree(self._place)
        write_json(about, {"request": digest})
        path = self._place / "refused.safetensors"
        if not any(self._place.rglob("batch-*")):
            found = refused_people(self._model, self._wanted.request(rows), spent=False)
            write_state(path, {"refused": torch.from_numpy(found)})
        self._leave_out(rows, read_state(path)["refused"].numpy())
        left = self._left(rows)
        if not len(left):
            self._wanted, self._refused = everybody, np.zeros_like(self._refused)
        return left if len(left) else rows

    def _refusing(self, rows: Rows, parties: set[str]) -> Table:
        """Whom parties refuse of batches that these ones refused.

        A party that has said so before refuses all of them: if it could name one after the other,
        the others would be asked, and charged, each time.
        """
        request = self._wanted.request(rows)
        found = refused_people(self._model, request, spent=True)
        again = [self._model.names.index(name) for name in parties & self._have_said]
        found[:, again] = request.presence[:, again]
        self._have_said |= parties
        return found

    def _leave_out(self, rows: Rows, refused: Table) -> None:
        self._refused[rows] |= refused
        self._wanted = replace(self._wanted, presence=self._wanted.presence & ~self._refused)

    def _left(self, rows: Rows) -> Rows:
        left = answerable(self._wanted, tolerant=self._model.tolerant)
        return rows[np.isin(rows, left)]

    def _digest(self, rows: Rows) -> str:
        name, plan = self._model.plan(self._wanted.request(rows))
        about = f"{self._model.model_version} {self._wanted.pairs.digest} {name} {plan.num_batches}"
        return hashlib.sha256(about.encode()).hexdigest()

    def _ask(self, rows: Rows) -> tuple[Rows, list[Refused]]:
        """Ask once: rows of batches that a party refused, and why."""
        request = self._wanted.request(rows)
        _, plan = self._model.plan(request)
        batches = _Finished(self._place / self._digest(rows)[:32])
        known = batches.known(plan.num_batches)
        if known:
            self._say(f"{len(known)} of {plan.num_batches} batches were finished before")
        errors: dict[int, Refused] = {}
        predicting = self._model.predicting(
            request, known=known, finished=batches.keep, refused=errors.__setitem__
        )
        try:
            found = self._model.run(predicting)
        except NoAnswer as error:
            raise NoAnswer(
                f"{error}; then give the same command again: {batches.count} of "
                f"{plan.num_batches} batches are finished and kept in {self._place}",
                parties=error.parties,
            ) from error
        is_refused = np.zeros(len(rows), dtype=bool)
        for number in errors:
            is_refused[plan.positions(number).numpy()] = True
        self._note(rows[~is_refused], found)
        return rows[is_refused], list(errors.values())

    def _note(self, rows: Rows, found: Predictions) -> None:
        if len(rows):
            if self._outputs is None:
                self._outputs = found.outputs.new_zeros(len(self._used), *found.outputs.shape[1:])
            self._outputs[torch.from_numpy(rows)] = found.outputs
        self._is_answered[rows] = True
        for row, used in zip(rows.tolist(), found.used, strict=True):
            self._used[row] = used


class _Finished:
    """Answers of one request's batches."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.count = 0

    def known(self, num_batches: int) -> Mapping[int, Answer]:
        """What is there, by the number of the batch."""
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
