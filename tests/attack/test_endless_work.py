"""A label holder that asks for work without end: it is refused, or ends between two steps.

Before, 10^15 local steps kept an agent busy for good; SIGTERM waited for the call under way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from colonnade.core.errors import ProtocolError, RunError
from colonnade.core.messages import Batch, Call
from colonnade.core.step_rules import StepRules
from colonnade.fabrics.grpc import execution
from colonnade.fabrics.grpc.execution import AgentStatus, Execution, PartySession
from colonnade.fabrics.grpc.frames import CallBody, Opening, ReplyBody, decode_frames
from colonnade.federate.party_sessions import parsed_table
from colonnade.methods.fedbcd import FedBCD
from federations import make_federation

WITHOUT_END = 10**15
BATCH = Batch("train", 0)


def party_of(*, most_in_call: int | None = None) -> Any:
    party = make_federation(1, method=FedBCD()).fabric.parties["p0"]  # type: ignore[attr-defined]
    if most_in_call is not None:
        party.step_rules = StepRules("p0", most_in_call)
    return party


def descend(party: Any, steps: int = WITHOUT_END) -> CallBody:
    embedding = party.execute(Call(0, "p0", "embed", (BATCH,), 0, True)).value
    return CallBody("descend", (BATCH, torch.zeros_like(embedding), steps), 0, True)


@contextmanager
def executing(party: Any, *, call_timeout: float) -> Iterator[tuple[Execution, PartySession]]:
    replied = threading.Event()
    executed = Execution(
        party="p0",
        respondent_for=lambda _: party,
        message_bytes=1 << 20,
        call_timeout=call_timeout,
        status=AgentStatus(),
        has_replied=replied.set,
    )
    session = PartySession(Opening(1, "train"), 1 << 20)
    thread = threading.Thread(target=executed.run, daemon=True)
    executed.begin(session)
    thread.start()
    yield executed, session
    executed.end()
    thread.join(30)
    assert not thread.is_alive()


class FirstSteps:
    """Tells when a party has begun a long call: after its third step."""

    def __init__(self, party: Any) -> None:
        self.have_come = threading.Event()
        self._step, self._count = party.step, 0
        party.step = self

    def __call__(self, *arguments: Any) -> None:
        self._step(*arguments)
        self._count += 1
        if self._count == 3:
            self.have_come.set()


def test_more_local_steps_than_a_party_does_are_refused() -> None:
    party = party_of(most_in_call=7)
    body = descend(party)
    call = Call(1, "p0", body.verb, body.arguments, 0, False)
    failure = party.execute(call).failure
    assert failure is not None
    assert failure.kind == "Refused"
    assert "limits.max_local_steps" in failure.message
    assert party.num_local_steps == 7


def test_work_ends_at_its_time_limit_with_an_answer_that_says_so() -> None:
    party = party_of()
    body = descend(party)
    with executing(party, call_timeout=0.05) as (executed, session):
        executed.add(session, 1, body)
    (message,) = session.replies.take(1 << 20)
    (frame,) = decode_frames(message)
    assert isinstance(frame.body, ReplyBody)
    assert frame.body.failure is not None
    assert frame.body.failure.kind == RunError.__name__
    assert "link.call_timeout" in frame.body.failure.message


def test_work_ends_when_the_session_that_asked_is_gone() -> None:
    party = party_of()
    body, steps = descend(party), FirstSteps(party)
    with executing(party, call_timeout=3600) as (executed, session):
        executed.add(session, 1, body)
        assert steps.have_come.wait(30)
        session.replies.close()


@pytest.mark.attack(
    what="10^15 local steps in one call",
    has="the label holder",
    before="an agent that SIGTERM did not end",
    now="refused above the policy's limit; work ends between two steps",
)
def test_work_ends_a_little_after_the_agent_was_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_GRACE_SECONDS", 0.05)
    party = party_of()
    body, steps = descend(party), FirstSteps(party)
    with executing(party, call_timeout=3600) as (executed, session):
        executed.add(session, 1, body)
        assert steps.have_come.wait(30)
        executed.end(hurries=True)
    # Nobody is told of half a call: the party comes back as after a crash.
    assert not session.replies.take(1 << 20)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "9" * 5_000, '{"a": ' + "9" * 5_000 + "}", "x" * 1_000_001],
)
def test_texts_that_no_settings_are_end_in_a_named_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="settings"):
        parsed_table(text, "settings")
