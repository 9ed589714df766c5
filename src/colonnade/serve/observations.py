"""What parties tell of the rows that they served, asked for now and then; nobody waits for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from colonnade.core.errors import ColonnadeError, PartyRestarted
from colonnade.federate.prediction import OpenModel
from colonnade.federate.told_aggregates import begin_telling
from colonnade.serve.predictor import ObservedRows

__all__ = ["Observations"]

_LOG = logging.getLogger("colonnade.serve")
# Between two questions to a party.
_ASK_SECONDS = 30.0


class Observations:
    """Aggregates by party; empty for parties whose policy tells none."""

    def __init__(self) -> None:
        self._asked_at: dict[str, float] = {}
        self._asking: dict[str, Callable[[], Mapping[str, int] | None]] = {}
        self._model: OpenModel | None = None
        self._found: dict[str, ObservedRows] = {}

    def found(self) -> Mapping[str, ObservedRows]:
        """What was told so far, by party."""
        return dict(self._found)

    def look(self, model: OpenModel, here: Collection[str]) -> None:
        """Ask who is due, and take what has come; between two exchanges.

        Args:
            model: The open session.
            here: The parties in it that can be asked.

        Raises:
            PartyRestarted: A party lost its half of the session.
        """
        if model is not self._model:
            self._model, self._asking = model, {}
        for party in sorted(here):
            try:
                self._step(model, party)
            except PartyRestarted:
                self._asking.clear()
                raise
            except ColonnadeError as error:
                _LOG.warning("party '%s' tells nothing: %s", party, type(error).__name__)
                self._asking.pop(party, None)

    def _step(self, model: OpenModel, party: str) -> None:
        now = time.monotonic()
        if party not in self._asking:
            if now - self._asked_at.get(party, -_ASK_SECONDS) < _ASK_SECONDS:
                return
            self._asked_at[party] = now
            self._asking[party] = begin_telling(model, party)
        told = self._asking[party]()
        if told is None:
            return
        del self._asking[party]
        if told:
            before = self._found.get(party, ObservedRows())
            far = told.get("far")
            self._found[party] = ObservedRows(
                rows=before.rows + told["rows"],
                far=before.far if far is None else (before.far or 0) + far,
                input_drift=_deviations(told.get("input_drift")),
                embedding_drift=_deviations(told.get("embedding_drift")),
            )


def _deviations(hundredths: int | None) -> float | None:
    return None if hundredths is None else hundredths / 100
