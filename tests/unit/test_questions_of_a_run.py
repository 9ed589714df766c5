"""A run asks parties nothing in vain: every question waits for the slowest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

import colonnade
from colonnade.core.parties import Parties
from tolerant import frames, labels_of

BLOCKS = frames(120)
LABELS = labels_of(BLOCKS)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """How often each party was asked each verb."""
    found: Counter[tuple[str, str]] = Counter()
    ask = Parties.ask

    async def counted(
        self: Parties, verb: str, *arguments: Any, among: Iterable[str] | None = None, **more: Any
    ) -> dict[str, Any]:
        among = None if among is None else list(among)
        found.update((verb, name) for name in (self.names if among is None else among))
        return await ask(self, verb, *arguments, among=among, **more)

    monkeypatch.setattr(Parties, "ask", counted)
    return found


def run(protect: dict[str, Any]) -> None:
    settings = {"party": {"shop": {"protect": [protect]}}} if protect else {}
    colonnade.fit(
        BLOCKS,
        LABELS,
        label_holder="bank",
        epochs=3,
        settings={"record": {"log_every": 1}, **settings},
    )


def test_nobody_is_asked_for_an_account_that_nobody_keeps(asked: Counter[tuple[str, str]]) -> None:
    run({"kind": "quantize", "bits": 4})
    assert not [key for key in asked if key[0] == "privacy_spent"]


def test_only_who_keeps_one_is_asked(asked: Counter[tuple[str, str]]) -> None:
    run({"kind": "perturb", "noise": 2.0})
    assert {name for verb, name in asked if verb == "privacy_spent"} == {"shop"}
