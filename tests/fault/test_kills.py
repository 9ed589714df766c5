"""Kills while organisations join, align, predict and renew: a few of those of ``make faults``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from colonnade.federate.opened_hub import open_hub
from e2e.organisations import PARTIES, Nursery, Organisations
from fault.kills import (
    KILLED,
    PATIENT,
    SECONDS,
    How,
    Membership,
    kill_alignments,
    kill_members,
    kill_predictions,
    num_alignments,
)

# Later than all work.
NEVER = 1_000_000


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("what", "who", "at"),
    # The hub in writing its register, the party between its identity and its settings.
    [("join", "hub", 7), ("join", "party", 8), ("renew", "hub", 9), ("renew", "party", 6)],
)
def test_an_enrolment_and_a_renewal_are_finished_after_a_kill(
    tmp_path: Path, nursery: Nursery, what: str, who: str, at: int
) -> None:
    membership = Membership(tmp_path / "membership", nursery)
    try:
        assert kill_members(membership, what, who, iter([at, NEVER])) == 1
    finally:
        membership.close()


@pytest.mark.attack(
    what="A hub that runs only for short trainings",
    has="nothing: the party's identity grows old meanwhile",
    before="renewal at the agent's start and hourly: missed, and the identity expired",
    now="the agent renews as soon as its hub answers",
)
def test_an_agent_renews_when_its_hub_answers_at_last(tmp_path: Path, nursery: Nursery) -> None:
    membership = Membership(tmp_path / "membership", nursery)
    membership.begin_renewal()
    identity = membership.home / "identity.pem"
    before, pause = identity.read_bytes(), threading.Event()
    try:
        membership.start_party("party")
        while "renewal put off" not in (membership.root / "telco.log").read_text():
            pause.wait(0.05)
        with open_hub(membership.federation, enrols=False):
            while identity.read_bytes() == before:
                pause.wait(0.05)
            while (membership.home / "renewing.key.pem").exists():
                pause.wait(0.05)
        membership.check()
    finally:
        membership.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Iterator[Organisations]:
    """A run whose hub was killed in the alignment, and then a party in the next one.

    Its bits are compared with those of one process on the alignment that was finished.
    """
    organisations = Organisations(
        tmp_path_factory.mktemp("trained"),
        nursery,
        exchanges=3,
        policies=dict.fromkeys(PARTIES, PATIENT),
    )
    try:
        parties = [organisations.start_party(name) for name in PARTIES]
        assert organisations.start_hub(die=20).wait(SECONDS) == KILLED, organisations.logs()
        for party in parties:
            party.kill()
        assert num_alignments(organisations) == 1
        assert kill_alignments(organisations, "telco", "die", iter([9, NEVER])) == 1
        yield organisations
    finally:
        organisations.close()


@pytest.mark.parametrize(("who", "how", "at"), [("hub", "torn", 8), ("telco", "die", 7)])
def test_a_prediction_goes_on_after_a_kill_and_nothing_is_charged_twice(
    trained: Organisations, who: str, how: How, at: int
) -> None:
    assert kill_predictions(trained, who, how, iter([at, NEVER])) == 1
