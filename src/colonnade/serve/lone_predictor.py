"""The predictor of one party that owns a whole model: nobody else is asked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from colonnade.core.errors import ColonnadeError, PartyFailed, Refused
from colonnade.core.task import Task
from colonnade.federate.lone_party import LoneParty
from colonnade.files import file_mark
from colonnade.quality.drift import Drift
from colonnade.run.answered import Answered
from colonnade.serve.live_tables import LOOK_SECONDS
from colonnade.serve.outcomes import outcomes_of
from colonnade.serve.predictor import ObservedRows, Outcome, ServedExchange, ServedModel, Unanswered

__all__ = ["LonePredictor"]

_LOG = logging.getLogger("colonnade.serve")
_MOST_TOGETHER = 1024


class LonePredictor:
    """One version of a party's own model over its own table, which is read again when it changes.

    Args:
        party: The party.
        model: What callers may know of the model.
        task: What its outputs mean.
        look_seconds: How often to look at the table.
    """

    def __init__(
        self,
        party: LoneParty,
        model: ServedModel,
        task: Task,
        *,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._party, self._model, self._task = party, model, task
        self._away: str | None = None
        self._drift, self._num_far = Drift(), 0
        self._mark = file_mark(party.data)
        self._is_over = threading.Event()
        self._look_seconds = look_seconds
        self._watching = threading.Thread(target=self._watch, name="table", daemon=True)
        self._watching.start()

    @property
    def model(self) -> ServedModel:
        """What it is."""
        return self._model

    def away(self) -> Mapping[str, str]:
        """The party, while its table can't be used."""
        return {} if self._away is None else {self._party.name: self._away}

    def observed(self) -> Mapping[str, ObservedRows]:
        """How far its served rows are from its training rows."""
        distance = self._drift.distance()
        if distance is None:
            return {}
        seen = ObservedRows(rows=self._drift.num_seen, far=self._num_far, input_drift=distance)
        return {self._party.name: seen}

    def warm_up(self) -> None:
        """Nothing: every answer is a release."""

    def close(self) -> None:
        """Look no more, and let go of the party's files."""
        self._is_over.set()
        self._watching.join()
        self._party.close()

    def _watch(self) -> None:
        while not self._is_over.wait(self._look_seconds):
            self.look()

    def look(self) -> None:
        """Read the table again if it has changed; old rows are not served in its place."""
        mark = file_mark(self._party.data)
        if mark == self._mark:
            return
        self._mark = mark
        try:
            self._party.read_table()
        except ColonnadeError as error:
            _LOG.error("party '%s': its table can't be used: %s", self._party.name, error.told())
            self._away = "its table can't be used"
            return
        self._away = None
        _LOG.info("party '%s': its table was read again", self._party.name)

    def predict_here(
        self, ids: Sequence[str], *, deadline: float, without: Collection[str]
    ) -> None:
        """Nothing: networks compute in a thread."""

    def predict(
        self, ids: Sequence[str], *, deadline: float, without: Collection[str]
    ) -> ServedExchange:
        """Answer for these ids from the own block."""
        name = self._party.name
        gone = Unanswered(reason="away", parties=(name,))
        if self._away is not None or name in without:
            return ServedExchange(outcomes=[gone for _ in ids])
        known = [item for item in ids if self._party.has(item)]
        found: dict[str, Outcome | Unanswered] = {}
        for begin in range(0, len(known), _MOST_TOGETHER):
            found |= self._answered(known[begin : begin + _MOST_TOGETHER])
        return ServedExchange(
            outcomes=[found.get(item, Unanswered(reason="unknown")) for item in ids]
        )

    def _answered(self, ids: Sequence[str]) -> dict[str, Outcome | Unanswered]:
        name = self._party.name
        try:
            outputs = self._party.answer(ids)
        except Refused as error:
            if len(ids) > 1:
                # One person whose account is spent shuts nobody else out.
                return {key: item for one in ids for key, item in self._answered([one]).items()}
            _LOG.warning("party '%s' does not answer: %s", name, error.told())
            return {ids[0]: Unanswered(reason="away", parties=(name,))}
        except PartyFailed as error:
            _LOG.error("party '%s' can't answer: %s", name, error.told())
            return dict.fromkeys(ids, Unanswered(reason="away", parties=(name,)))
        self._drift.see(self._party.features(ids))
        self._num_far += self._party.num_far_outside(ids)
        answered = Answered(
            outputs=outputs,
            used=[(name,)] * len(ids),
            presence=np.ones((len(ids), 1), dtype=np.bool_),
            task=self._task,
            calibration=None,
        )
        outcomes = outcomes_of(answered, {name: [0.0] * len(ids)}, ())
        return dict(zip(ids, outcomes, strict=True))
