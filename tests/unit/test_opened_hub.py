"""A hub opened from a federation's directory: real links of members, renewals, revocation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from colonnade.core.errors import IdentityRefused
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.agent import Agent
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.federation import Federation
from colonnade.federate.invitations import revoke
from colonnade.federate.opening import open_hub
from colonnade.federate.renewal import renew
from membership import SetClock, make_federation, make_member
from networks import QUICK


class Member:
    """A member's agent in a thread."""

    def __init__(self, identity: Identity, hub: Hub) -> None:
        self.agent = Agent(
            identity=identity,
            address=f"127.0.0.1:{hub.port}",
            respondent_for=lambda _: Respondent(name=identity.name),
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
def federation(tmp_path: Path) -> Federation:
    return make_federation(tmp_path / "fed", SetClock())


@pytest.fixture
def hub(federation: Federation) -> Iterator[Hub]:
    with open_hub(
        federation.directory,
        links=QUICK,
        address="127.0.0.1:0",
        enrolment_address="127.0.0.1:0",
        minding_seconds=0.05,
    ) as opened:
        yield opened


def test_members_come_in_and_a_revoked_one_is_cut_off(federation: Federation, hub: Hub) -> None:
    telco = Member(make_member(federation, "telco"), hub)
    shop = Member(make_member(federation, "shop"), hub)
    assert hub.wait_for(["telco", "shop"], 20) == ()
    revoke(federation, "telco")
    refused = telco.ended()
    assert isinstance(refused, IdentityRefused)
    assert "'telco' was revoked" in str(refused)
    assert hub.status()["shop"].is_connected
    shop.stop()


def test_a_refused_party_is_told_why(federation: Federation, hub: Hub) -> None:
    identity = make_member(federation, "telco")
    make_member(federation, "telco", replace=True)
    refused = Member(identity, hub).ended()
    assert isinstance(refused, IdentityRefused)
    assert "newer identity" in str(refused)


def test_a_link_goes_on_with_a_renewed_identity(federation: Federation, hub: Hub) -> None:
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
