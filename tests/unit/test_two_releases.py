"""Two releases in one federation: who works together, who is refused, and what is said of it."""

from __future__ import annotations

import logging
import struct
import threading
from typing import Any

import pytest

from colonnade.core.errors import PartyFailed, PartyRestarted, ProtocolError
from colonnade.core.parties import Parties
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc import agent as agent_module
from colonnade.fabrics.grpc import frames
from colonnade.fabrics.grpc.frames import (
    RELEASE,
    VERSION,
    FrameKind,
    Hello,
    Opening,
    decode_frames,
    encode_frame,
)
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from colonnade.federate.attempts import MOST_RETURNS, attempted
from messages import says
from networks import QUICK, AgentThread, admit, hub_identity

OTHER = "0.9.3"


def test_both_sides_tell_their_release(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The same frames and another release: they work together, and both logs say so."""
    monkeypatch.setattr(agent_module, "RELEASE", OTHER)
    caplog.set_level(logging.WARNING, logger="colonnade")
    hub = Hub(identity=hub_identity(), admit=admit, links=QUICK)
    agent = AgentThread(Respondent(name="telco"), f"127.0.0.1:{hub.port}")
    try:
        assert hub.wait_for(["telco"], 30) == ()
        assert hub.status()["telco"].release == OTHER
        fabric = GrpcFabric(Session(hub, ["telco"], purpose="test"))
        fabric.run(Parties(fabric).settle())
        fabric.close()
    finally:
        agent.stop()
        hub.close()
    said = [record.getMessage() for record in caplog.records]
    assert f"party 'telco' runs colonnade {OTHER}, this hub {RELEASE}" in said
    assert f"the hub runs colonnade {RELEASE}, this agent {OTHER}" in said


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_other_frames_are_refused_with_both_versions(version: int) -> None:
    for frame in (
        encode_frame(FrameKind.HELLO, Hello("telco", 1, 0, OTHER)),
        encode_frame(FrameKind.WELCOME, Opening(0, "", OTHER)),
    ):
        spoken = frame[:4] + struct.pack("<B", version) + frame[5:]
        with pytest.raises(ProtocolError, match=says(f"version {version}", VERSION, RELEASE)):
            list(decode_frames(spoken))


def test_an_agent_of_other_frames_goes_on_dialling(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before any session, and an upgrade of either side mends that."""
    hub = Hub(identity=hub_identity(), admit=admit, links=QUICK)
    was_refused = threading.Event()
    refuse = Hub._refuse
    own = frames.VERSION

    async def noticing(self: Hub, *arguments: Any) -> None:
        await refuse(self, *arguments)
        # The side that was upgraded.
        monkeypatch.setattr(agent_module, "encode_frame", encode_frame)
        was_refused.set()

    def of_another_version(*arguments: Any, **settings: Any) -> bytes:
        frame = encode_frame(*arguments, **settings)
        return frame[:4] + struct.pack("<B", own + 1) + frame[5:]

    monkeypatch.setattr(Hub, "_refuse", noticing)
    monkeypatch.setattr(agent_module, "encode_frame", of_another_version)
    agent = AgentThread(Respondent(name="telco"), f"127.0.0.1:{hub.port}")
    try:
        assert was_refused.wait(30)
        assert hub.wait_for(["telco"], 30) == ()
    finally:
        agent.stop()
        hub.close()


class Crashing:
    """Attempts of a run: a party crashes in each, until there was enough progress."""

    def __init__(self, checkpoints: list[str | None]) -> None:
        self.checkpoints = checkpoints
        self.num_attempts = 0

    def attempt(self) -> str:
        self.num_attempts += 1
        if self.num_attempts > len(self.checkpoints):
            return "trained"
        raise PartyRestarted("it came back", party="telco")

    def progress(self) -> str | None:
        return self.checkpoints[self.num_attempts - 1]


def went_back(_: PartyRestarted) -> None:
    """The run would wait for the party here."""


@pytest.mark.parametrize("checkpoint", [None, "exchange-000000003"])
def test_a_party_that_keeps_crashing_is_named_and_ends_it(checkpoint: str | None) -> None:
    run = Crashing([checkpoint] * 1000)
    with pytest.raises(PartyFailed, match=says("'telco'", MOST_RETURNS + 1, "--resume")) as caught:
        attempted(run.attempt, progress=run.progress, go_back=went_back)
    assert caught.value.party == "telco"
    assert run.num_attempts <= MOST_RETURNS + 2


def test_one_that_crashes_now_and_then_does_not() -> None:
    run = Crashing([f"exchange-{number // 5}" for number in range(60)])
    told = attempted(run.attempt, progress=run.progress, go_back=went_back)
    assert told == "trained"
    assert run.num_attempts == 61
