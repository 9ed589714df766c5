"""Evaluations of the validation part while training goes on: one under way at a time.

Parties answer in order, so each one's answers are made with its weights of the exchange that was
asked about, however late they come; the label holder keeps its own weights of that exchange. It
measures while the parties compute, where a method leaves it time for that. What is due while an
earlier evaluation is still under way is left out, and made up for afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from colonnade.core.beside import Beside
from colonnade.core.evaluation_mode import Evaluation
from colonnade.core.label_holder import LabelHolder
from colonnade.core.patience import Patience

if TYPE_CHECKING:
    from colonnade.core.federation import Federation, Predictions
    from colonnade.core.loop import Timekeeper

__all__ = ["Evaluations", "Measured"]


class Measured(NamedTuple):
    """What an evaluation found, and the exchange that it is about."""

    exchange: int
    metrics: Mapping[str, float]


class Evaluations:
    """Asks all parties at once, and looks in during and after every exchange."""

    def __init__(
        self,
        federation: Federation,
        measure: Callable[[Predictions], Mapping[str, float]],
        time: Timekeeper,
    ) -> None:
        self._federation = federation
        self._measure = measure
        self._under_way: Beside[Predictions] | None = None
        self._exchange = 0
        self._fabric = federation.fabric
        self._is_owed = False
        self._found: Measured | None = None
        self._time = time
        federation.parties.meanwhile.append(self._go_on_meanwhile)

    def ask(self, exchange: int) -> bool:
        """Begin one for this exchange; False if an earlier one is still under way."""
        if self._under_way is not None:
            self._is_owed = True
            return False
        federation = self._federation
        # Nobody waits for it, so it waits for everybody.
        self._fabric = federation.fabric.aside()
        view = replace(
            federation,
            holder=_as_it_is(federation.holder),
            fabric=self._fabric,
            patience=Patience(),
        )
        view.parties.exchange = exchange - 1
        self._exchange, self._is_owed = exchange, False
        plan = federation.holder.parts["validation"].plan
        self._under_way = Beside(view.predicting("validation", plan, each=True))
        return True

    def look(self) -> Measured | None:
        """What came of the one under way, once it is done."""
        self._go_on()
        found, self._found = self._found, None
        return found

    def _go_on(self) -> None:
        if self._under_way is not None and self._under_way.advance():
            self._found = Measured(self._exchange, self._measure(self._under_way.result))
            self._under_way = None

    def _go_on_meanwhile(self) -> None:
        if self._under_way is not None:
            with self._time.on("evaluating"):
                self._go_on()

    @property
    def is_owed(self) -> bool:
        """Whether one was left out, and now there is room for another."""
        return self._is_owed and self._under_way is None

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Who has not answered all of it."""
        return self._fabric.owing()

    def give_up(self) -> None:
        """The run ends: leave the one under way."""
        if self._under_way is not None:
            self._under_way.give_up()
            self._under_way = None


def _as_it_is(holder: LabelHolder) -> LabelHolder:
    """The label holder with a copy of its fusion model, which training no longer changes."""
    view = copy.copy(holder)
    view.fusion = copy.deepcopy(holder.fusion)
    view._evaluating = Evaluation(view.fusion)
    return view
