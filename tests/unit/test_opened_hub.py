"""A hub opened from a federation's directory: real links of members, renewals, revocation."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from colonnade.core.errors import ConfigError, IdentityRefused, RunError
from colonnade.core.messages import Call, Reply
from colonnade.core.parties import Parties
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.agent import Agent
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.identity import HUB_NAME, Identity
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from colonnade.federate import hub_waits
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.invitations import revoke
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.renewal import renew
from membership import SetClock, make_federation, make_member
from networks import QUICK
from probes import ProbeParty


class Member:
    """A member's agent in a thread."""

    def __init__(self, identity: Identity, hub: Hub, respondent: Respondent | None = None) -> None:
        answering = respondent or Respondent(name=identity.name)
        self.agent = Agent(
            identity=identity,
            address=f"127.0.0.1:{hub.port}",
            respondent_for=lambda _: answering,
            links=QUICK,
        )
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.agent.serve()
        except Exception as error:
            self.error = error

    def ended(self) -> Exception | None:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.error

    def stop(self) -> None:
        self.agent.stop()
        assert self.ended() is None


@pytest.fixture
def federation(tmp_path: Path) -> FederationDirectory:
    return make_federation(tmp_path / "fed", SetClock())


@pytest.fixture
def hub(federation: FederationDirectory) -> Iterator[Hub]:
    with open_hub(
        federation.directory,
        links=QUICK,
        address="127.0.0.1:0",
        enrolment_address="127.0.0.1:0",
        check_seconds=0.05,
    ) as opened:
        yield opened


def test_members_come_in_and_a_revoked_one_is_cut_off(
    federation: FederationDirectory, hub: Hub
) -> None:
    telco = Member(make_member(federation, "telco"), hub)
    shop = Member(make_member(federation, "shop"), hub)
    assert hub.wait_for(["telco", "shop"], 20) == ()
    revoke(federation, "telco")
    refused = telco.ended()
    assert isinstance(refused, IdentityRefused)
    assert "'telco' was revoked" in str(refused)
    assert hub.status()["shop"].is_connected
    shop.stop()


def test_a_refused_party_is_told_why(federation: FederationDirectory, hub: Hub) -> None:
    identity = make_member(federation, "telco")
    make_member(federation, "telco", replace=True)
    refused = Member(identity, hub).ended()
    assert isinstance(refused, IdentityRefused)
    assert "newer identity" in str(refused)


def test_a_link_goes_on_with_a_renewed_identity(federation: FederationDirectory, hub: Hub) -> None:
    """Renewed over the hub's own port while the stream is open, then dialled again with it."""
    identity = make_member(federation, "telco")
    member = Member(identity, hub)
    assert hub.wait_for(["telco"], 20) == ()
    renewed = renew(identity, f"127.0.0.1:{hub.port}")
    assert federation.register.read().members["telco"].successor is not None
    member.agent.renew(renewed)
    member.agent.reconnect()
    with hub._changed:
        assert hub._changed.wait_for(lambda: hub.status()["telco"].num_connects == 2, 20)
    assert federation.register.read().members["telco"].successor is None
    # Whoever has the old certificate is not admitted once the new one came in.
    assert isinstance(Member(identity, hub).ended(), IdentityRefused)
    assert hub.status()["telco"].is_connected
    member.stop()


class Standing(ProbeParty):
    """A party that stands still before every call until its gate is opened."""

    gate = threading.Event()

    def execute(self, call: Call) -> Reply:
        assert self.gate.wait(60)
        return super().execute(call)


def test_whoever_is_waited_for_is_in_the_log_of_the_hub(
    federation: FederationDirectory,
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(hub_waits, "_TOLD_SECONDS", 0.01)
    caplog.set_level("INFO", "colonnade.hub")
    standing = Standing(name="telco")
    standing.gate.clear()
    member = Member(make_member(federation, "telco"), hub, standing)
    assert hub.wait_for(["telco"], 20) == ()
    fabric = GrpcFabric(Session(hub, ("telco",), purpose="probe"))

    def told(what: str) -> bool:
        return any(what in item.message for item in caplog.records)

    parties = Parties(fabric, verbs=ProbeParty.verbs)
    parties.start("telco", "echo", torch.ones(1))
    eventually(lambda: told("waiting for a party"))
    assert not told("after a wait")
    standing.gate.set()
    assert fabric.run(parties.arrival()) is not None
    eventually(lambda: told("an answer came after a wait"))
    fabric.close()
    member.stop()


class TestTheHubsOwnCertificate:
    """It is made anew while calls are under way; nothing is lost and nothing happens twice."""

    def shown_by(self, hub: Hub, identity: Identity, tmp_path: Path) -> bytes:
        """The certificate that a member is shown when it dials."""
        path = tmp_path / "member.pem"
        path.write_bytes(identity.key + identity.certificate)
        context = ssl.create_default_context(cadata=identity.authority.decode())
        context.load_cert_chain(path)
        with (
            socket.create_connection(("127.0.0.1", hub.port), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname=HUB_NAME) as secured,
        ):
            der = secured.getpeercert(binary_form=True)
        assert der is not None
        return der

    def test_is_renewed_with_a_stream_under_way(self, tmp_path: Path) -> None:
        clock = SetClock()
        clock.advance(days=-61)
        federation = make_federation(tmp_path / "fed", clock)
        identity = make_member(federation, "telco")
        party = ProbeParty(name="telco")
        with open_hub(
            federation.directory,
            links=QUICK,
            address="127.0.0.1:0",
            enrols=False,
            check_seconds=0.05,
            now=clock,
        ) as hub:
            member = Member(identity, hub, party)
            fabric = GrpcFabric(Session(hub, ["telco"], purpose="test"))
            parties = Parties(fabric)
            before = self.shown_by(hub, identity, tmp_path)
            number = 0
            assert fabric.run(parties.ask("total")) == {"telco": 0.0}
            # From now on the hub's certificate is due; calls go on until it was replaced.
            clock.advance(days=61)
            while hub.status()["telco"].num_connects < 2 or number < 20:
                fabric.run(parties.tell("accumulate", float(number)))
                echoed = fabric.run(parties.ask("echo", torch.arange(50.0) + number))
                assert torch.equal(echoed["telco"], torch.arange(50.0) + number)
                number += 1
                assert number < 100_000
            assert self.shown_by(hub, identity, tmp_path) != before
            assert party.history == [float(item) for item in range(number)]
            assert parties.num_dropped == 0
            assert hub.status()["telco"].num_restarts == 0
            fabric.close()
            member.stop()

    def test_is_left_alone_by_a_clock_that_jumps_back(self, tmp_path: Path) -> None:
        """It is good for whoever is connected; when nobody is, another one does no harm."""
        clock = SetClock()
        federation = make_federation(tmp_path / "fed", clock)
        identity = make_member(federation, "telco")
        with open_hub(
            federation.directory,
            links=QUICK,
            address="127.0.0.1:0",
            enrols=False,
            check_seconds=0.05,
            now=clock,
        ) as hub:
            member = Member(identity, hub)
            assert hub.wait_for(["telco"], 20) == ()
            first = self.shown_by(hub, identity, tmp_path)
            clock.advance(days=-1)
            identity_file = federation.directory / "identity.pem"
            was = identity_file.read_bytes()
            eventually(lambda: identity_file.read_bytes() != was)
            assert self.shown_by(hub, identity, tmp_path) == first
            assert hub.status()["telco"].num_connects == 1
            member.stop()

            def is_replaced() -> bool:
                # For a moment nobody listens.
                with contextlib.suppress(OSError):
                    return self.shown_by(hub, identity, tmp_path) != first
                return False

            eventually(is_replaced)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what must come; the thread that minds the register brings it about."""
    waiting = threading.Event()
    for _ in range(2000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not come")


def test_a_port_that_another_command_holds_is_named(federation: FederationDirectory) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(RunError, match="another command holds the port"),
            open_hub(federation.directory, address="127.0.0.1:0", enrolment_address=address),
        ):
            pass
        with (
            pytest.raises(ConfigError, match="another command of this federation"),
            open_hub(federation.directory, address=address, enrols=False),
        ):
            pass
