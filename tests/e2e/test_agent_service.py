"""An agent as a service, in a process of its own: endpoints, reload, graceful stop, revocation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from colonnade.core.parties import Parties, Patience
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.identities import save_identity
from colonnade.federate.invitations import revoke
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.party_home import PartySettings, make_home, write_party
from membership import SetClock, make_federation, make_member
from networks import QUICK

TESTS = Path(__file__).parents[1]


class AgentProcess:
    """The driver, its log line by line, and its endpoints."""

    def __init__(self, process: subprocess.Popen[str], place: Path) -> None:
        self.process = process
        self.place = place
        self.health = ""

    def log(self, event: str) -> dict[str, Any]:
        """The next line of the log about an event; waits for it."""
        assert self.process.stderr is not None
        for text in self.process.stderr:
            # gRPC's own remarks are no JSON.
            line: dict[str, Any] = json.loads(text) if text.startswith("{") else {}
            if line.get("event", "").startswith(event):
                return line
        raise AssertionError(f"no '{event}' in the log")

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.health}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def federation(tmp_path: Path) -> FederationDirectory:
    return make_federation(tmp_path / "fed", SetClock())


@pytest.fixture
def hub(federation: FederationDirectory) -> Iterator[Hub]:
    with open_hub(
        federation.directory,
        links=QUICK,
        address="127.0.0.1:0",
        enrols=False,
        check_seconds=0.1,
    ) as opened:
        yield opened


@pytest.fixture
def agent(federation: FederationDirectory, hub: Hub, tmp_path: Path) -> Iterator[AgentProcess]:
    home, place = tmp_path / "home", tmp_path / "place"
    make_home(home)
    save_identity(home, make_member(federation, "telco"))
    settings = PartySettings(
        name="telco",
        label_holder="bank",
        hub=f"127.0.0.1:{hub.port}",
        data=tmp_path / "customers.csv",
        id="customer_id",
    )
    write_party(home, settings)
    place.mkdir()
    for name in ("begun", "go"):
        os.mkfifo(place / name)
    (place / "policy").write_text("good")
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, str(TESTS / "e2e" / "agent_driver.py"), str(home), str(place)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    ) as process:
        started = AgentProcess(process, place)
        started.health = started.log("the agent runs")["health"]
        started.log("connected")
        yield started
        process.kill()


def test_an_agent_finishes_the_call_in_hand_and_leaves(hub: Hub, agent: AgentProcess) -> None:
    assert hub.wait_for(["telco"], 60) == ()
    patience = Patience(timeout=60_000)
    fabric = GrpcFabric(Session(hub, ["telco"], purpose="test", patience=patience))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(fabric.run, Parties(fabric, patience).ask("double", 21))
        (agent.place / "begun").read_text()
        assert agent.get("/readyz") == (200, '{"ready": true}\n')
        assert "colonnade_calls_total 1.0" in agent.get("/metrics")[1]

        agent.process.send_signal(signal.SIGHUP)
        agent.log("policy reloaded")
        (agent.place / "policy").write_text("bad")
        agent.process.send_signal(signal.SIGHUP)
        assert agent.log("policy not reloaded")["event"].endswith("policy: not good")

        agent.process.send_signal(signal.SIGTERM)
        agent.log("asked to stop")
        assert json.loads(agent.get("/readyz")[1])["because"] == "stopping"
        assert agent.get("/healthz")[0] == 200
        (agent.place / "go").write_text("go")
        assert answer.result(60) == {"telco": 42}
    agent.log("the agent has left")
    assert agent.process.wait(60) == 0
    fabric.close()


def test_a_revoked_agent_ends_and_says_why(
    federation: FederationDirectory, hub: Hub, agent: AgentProcess
) -> None:
    assert hub.wait_for(["telco"], 60) == ()
    revoke(federation, "telco")
    assert "'telco' was revoked on" in agent.log("the agent ends")["event"]
    assert agent.process.wait(60) == 1
