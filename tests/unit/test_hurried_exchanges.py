"""Requests that a silent party held up are answered by the others: all, and late by little."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

from colonnade.serve.breaker import Breakers
from colonnade.serve.gathering import GRACE_SECONDS, Gathering
from colonnade.serve.predictor import ServedExchange, Unanswered


class Recording:
    """Notes what it is asked; nobody answers."""

    model = SimpleNamespace(parties=("shop", "telco"))

    def __init__(self) -> None:
        self.asked: list[tuple[float, Collection[str]]] = []

    def predict(
        self, ids: Sequence[str], *, deadline: float, without: Collection[str]
    ) -> ServedExchange:
        self.asked.append((deadline, without))
        return ServedExchange(outcomes=[Unanswered(reason="away", parties=()) for _ in ids])

    def predict_here(
        self, ids: Sequence[str], *, deadline: float, without: Collection[str]
    ) -> None:
        """It is asked in a thread."""

    def close(self) -> None:
        """Nothing is open."""


class Patient(Gathering):
    """Gives nobody up, however long this machine takes to begin an exchange."""

    def _give_up(self, item: Any) -> None:
        """Go on waiting."""


def asked_with(breakers: Breakers, patience: float) -> tuple[float, Collection[str], float]:
    """Of an exchange for one request: its deadline, whom it leaves out, and when it began."""
    predictor: Any = Recording()
    before = time.monotonic()

    async def ask() -> None:
        gathering = Patient(
            predictor, breakers, most_waiting=9, most_together=9, watch=lambda *_: None
        )
        await gathering.ask(("a",), arrived=before, patience=patience)
        await gathering.drain()

    asyncio.run(ask())
    ((deadline, without),) = predictor.asked
    return deadline, without, before


def test_an_exchange_has_time_for_those_who_answer_at_all() -> None:
    breakers = Breakers(["shop", "telco"], time.monotonic)
    breakers.silent("shop", 0.2)
    deadline, without, before = asked_with(breakers, 0.0)
    assert deadline >= before + GRACE_SECONDS
    assert without == {"shop"}
    # With time in hand it is asked once more: one silence is no absence.
    deadline, without, before = asked_with(breakers, 600.0)
    assert (deadline, without) == (before + 600.0, frozenset())


def test_nobody_is_probed_in_a_hurry() -> None:
    now = [0.0]
    breakers = Breakers(["shop", "telco"], lambda: now[0])
    for _ in range(3):
        breakers.silent("shop", 0.2)
    now[0] = 100.0
    assert breakers.left_out(0.01) == {"shop"}
    assert breakers.left_out(0.2) == frozenset()


def test_a_party_that_is_sought_is_left_out_until_it_is_back() -> None:
    now = [0.0]
    breakers = Breakers(["shop", "telco"], lambda: now[0])
    breakers.silent("shop", 0.2, is_sought=True)
    for now[0] in (0.0, 1.0, 1000.0):
        assert breakers.left_out(600.0) == {"shop"}
        assert breakers.states() == {"shop": "open", "telco": "closed"}
    breakers.back("shop")
    assert breakers.left_out(600.0) == frozenset()
    # Nobody is sought by haste.
    breakers.silent("telco", 0.001, is_sought=True)
    assert breakers.left_out(600.0) == frozenset()
    # It answers questions, and again not in time: a pause, in which it is not asked.
    for _ in range(2):
        breakers.silent("shop", 0.2, is_sought=True)
        breakers.back("shop")
    assert breakers.left_out(600.0) == {"shop"}
    now[0] += 1.0
    assert breakers.left_out(600.0) == frozenset()
