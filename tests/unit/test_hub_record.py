"""The hub's record of who came and went, its health, and renewal whenever it answers."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.core.errors import IdentityRefused, StorageError
from colonnade.core.parties import Parties
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.agent import Agent
from colonnade.fabrics.grpc.execution import AgentStatus
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from colonnade.federate import opened_hub
from colonnade.federate.certificates import key_pem, new_key
from colonnade.federate.enrolment import enrolment_service, request_enrolment
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.hub_record import HubRecord
from colonnade.federate.hub_service import HubService
from colonnade.federate.identities import save_identity
from colonnade.federate.invitations import Invitation, invite, revoke
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.party_home import PartySettings, make_home, own_identity, write_party
from colonnade.federate.party_service import Service, _renewing
from membership import SetClock, make_federation, make_member
from messages import says
from networks import QUICK


def events(federation: FederationDirectory) -> list[str]:
    return [entry["event"] for entry in federation.record.entries()]


def agent_of(federation: FederationDirectory, identity: Any, port: int) -> tuple[Agent, Any]:
    agent = Agent(
        identity=identity,
        address=f"127.0.0.1:{port}",
        respondent_for=lambda _: Respondent(name=identity.name),
        links=QUICK,
    )
    refused: list[IdentityRefused] = []

    def serve() -> None:
        try:
            agent.serve()
        except IdentityRefused as error:
            refused.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return agent, lambda: (thread.join(30), refused)[1]


def test_everything_that_happens_to_a_member_is_in_the_record(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    identity = make_member(federation, "telco")
    with open_hub(
        federation.directory, links=QUICK, address="127.0.0.1:0", enrols=False, check_seconds=0.05
    ) as hub:
        _, refused = agent_of(federation, identity, hub.port)
        assert hub.wait_for(["telco"], 30) == ()
        fabric = GrpcFabric(Session(hub, ["telco"], purpose="train"))
        fabric.run(Parties(fabric).settle())
        fabric.close()
        revoke(federation, "telco")
        assert refused()
        _, refused = agent_of(federation, identity, hub.port)
        assert refused()
    assert events(federation) == [
        *("invited", "enrolled", "admitted", "session began", "session ended", "revoked"),
        "refused",
    ]
    entries = list(federation.record.entries())
    assert entries[3]["purpose"] == "train"
    assert entries[3]["parties"] == ["telco"]
    assert entries[-1]["reason"] == "revoked"
    assert federation.record.verify() == (7, None)


def test_a_refused_enrolment_is_in_it_too(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    invitation = invite(federation, "telco", tmp_path / "telco.invitation")
    service = enrolment_service(federation.directory, address="127.0.0.1:0")
    port = service.start()
    try:
        guessed = Invitation(
            **{**vars(invitation), "enrolment": f"127.0.0.1:{port}", "token": "a" * 43}
        )
        with pytest.raises(IdentityRefused, match="has not made"):
            request_enrolment(guessed, key_pem(new_key()))
    finally:
        service.stop(0)
    *_, last = federation.record.entries()
    assert (last["event"], last["reason"]) == ("refused", "unknown invitation")
    assert "a" * 43 not in (federation.directory / "audit" / "ledger.jsonl").read_text()


@pytest.mark.attack(
    what="Changing the hub's record afterwards",
    has="write access to the hub's record",
    before="there was no record",
    now="the command names the first entry that does not hold",
)
@pytest.mark.parametrize("how", ["changed", "removed", "cut off", "added"])
def test_what_was_changed_later_shows(tmp_path: Path, how: str) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    for name in ("telco", "shop"):
        make_member(federation, name)
    path = federation.directory / "audit" / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if how == "changed":
        lines[1] = lines[1].replace(b"telco", b"other")
    elif how == "removed":
        del lines[1]
    elif how == "cut off":
        del lines[-1]
    else:
        lines.append(lines[-1])
    path.write_bytes(b"".join(lines))
    result = CliRunner().invoke(app, ["federation", "audit", str(federation.directory), "--verify"])
    assert result.exit_code == 1
    assert "entry" in result.output


def test_the_command_shows_and_verifies_it(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    make_member(federation, "telco")
    command = ["federation", "audit", str(federation.directory)]
    shown = CliRunner().invoke(app, command).output.splitlines()
    assert ["invited: party telco" in shown[0], "enrolled: party telco" in shown[1]] == [True] * 2
    plain = CliRunner().invoke(app, [*command, "--json"]).output.splitlines()
    assert [json.loads(line)["party"] for line in plain] == ["telco", "telco"]
    assert CliRunner().invoke(app, [*command, "--verify"]).output == "2 entries hold\n"


def test_nobody_enrols_unrecorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())

    def full(*_: object, **__: object) -> None:
        raise StorageError("audit: no room")

    monkeypatch.setattr(HubRecord, "note", full)
    with pytest.raises(StorageError, match="no room"):
        make_member(federation, "telco")
    assert not federation.register.read().members
    assert not federation.register.read().invitations


def test_refusals_do_not_fill_the_disk(tmp_path: Path) -> None:
    record = HubRecord(tmp_path, "bank")
    for _ in range(100):
        record.note_refusal(reason="unknown invitation", asked="enrolment")
    entries = list(record.entries())
    assert len(entries) == 60
    assert {(item["reason"], item["asked"]) for item in entries} == {
        ("unknown invitation", "enrolment")
    }


def test_health_and_metrics_of_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    identity = make_member(federation, "telco")
    told: list[tuple[str, int]] = []
    listen = opened_hub.listening_for_probes

    class Told:
        def __init__(self, service: HubService, address: str, where: str) -> None:
            self._context = listen(service, address, where)

        def __enter__(self) -> tuple[str, int]:
            told.append(self._context.__enter__())
            return told[-1]

        def __exit__(self, *error: Any) -> None:
            self._context.__exit__(*error)

    monkeypatch.setattr(opened_hub, "listening_for_probes", Told)
    with open_hub(
        federation.directory, links=QUICK, address="127.0.0.1:0", enrolment_address="127.0.0.1:0"
    ) as hub:
        agent, _ = agent_of(federation, identity, hub.port)
        assert hub.wait_for(["telco"], 30) == ()
        host, port = told[0]

        def asked(path: str) -> str:
            with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=20) as answer:
                return str(answer.read(), "utf-8")

        assert json.loads(asked("/healthz")) == {"healthy": True}
        assert json.loads(asked("/readyz")) == {"ready": True}
        metrics = asked("/metrics")
        for line in (
            'colonnade_hub_connected{party="telco"} 1.0',
            'colonnade_hub_connects_total{party="telco"} 1.0',
            'colonnade_hub_open_connections{listener="hub"} 1.0',
            'colonnade_hub_connections_total{listener="enrolment"} 0.0',
            "colonnade_hub_identity_expiry_timestamp_seconds",
        ):
            assert line in metrics
        agent.stop()


def test_a_party_renews_when_a_hub_that_was_away_answers(tmp_path: Path) -> None:
    """Its certificate is due, no hub runs when the agent starts; the next look is in an hour."""
    clock = SetClock()
    clock.advance(days=-70)
    federation = make_federation(tmp_path / "fed", clock)
    identity = make_member(federation, "telco")
    with open_hub(federation.directory, address="127.0.0.1:0", enrols=False) as hub:
        port = hub.port
    home, table = tmp_path / "home", tmp_path / "table.csv"
    table.write_text("id,calls\n1,2\n")
    make_home(home)
    save_identity(home, identity)
    settings = PartySettings(
        name="telco", label_holder="bank", hub=f"127.0.0.1:{port}", data=table, id="id"
    )
    write_party(home, settings)
    agent, _ = agent_of(federation, identity, port)
    renewed = threading.Event()
    renew = agent.renew
    agent.renew = lambda newer: (renew(newer), renewed.set())[0]  # type: ignore[method-assign]
    with _renewing(agent, home, Service(AgentStatus, stop=agent.stop)):
        with open_hub(federation.directory, address=f"127.0.0.1:{port}", enrols=False):
            assert renewed.wait(60)
            assert own_identity(home).certificate != identity.certificate
        agent.stop()
    assert "renewed" in events(federation)


def test_an_authority_that_expired_says_so(tmp_path: Path) -> None:
    clock = SetClock()
    federation = make_federation(tmp_path / "fed", clock)
    clock.advance(days=4000)
    with (
        pytest.raises(IdentityRefused, match=says("authority", "valid from", "new federation")),
        open_hub(federation.directory, address="127.0.0.1:0", enrols=False, now=clock),
    ):
        pass
