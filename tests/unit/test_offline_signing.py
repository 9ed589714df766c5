"""The authority's key away from the hub: requests out, certificates back, nothing else gets in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.core.errors import ConfigError, IdentityRefused, RunError
from colonnade.federate.authority import Authority
from colonnade.federate.certificates import Role, certificate_pem, key_pem, new_key
from colonnade.federate.enrolment import enrolment_service, request_enrolment
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.identities import save_identity
from colonnade.federate.invitations import Invitation, invite
from colonnade.federate.offline_signing import read_authority, sign_requests
from colonnade.federate.party_enrolment import renew_if_due
from colonnade.federate.party_home import PartySettings, make_home, own_identity, write_party
from colonnade.federate.renewal import renewal_service
from membership import SetClock, make_federation, make_member
from messages import says


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    place = tmp_path / "vault"
    place.mkdir()
    return place


@pytest.fixture
def federation(tmp_path: Path, vault: Path, clock: SetClock) -> FederationDirectory:
    """A federation whose key was moved away."""
    made = make_federation(tmp_path / "fed", clock)
    lock_away(made, vault)
    return made


def lock_away(federation: FederationDirectory, vault: Path) -> None:
    shutil.copy(federation.directory / "authority.pem", vault)
    (federation.directory / "authority.key.pem").rename(vault / "authority.key.pem")


@pytest.fixture
def invitation(federation: FederationDirectory, tmp_path: Path) -> Iterator[Invitation]:
    service = enrolment_service(federation.directory, address="127.0.0.1:0", now=federation.now)
    port = service.start()
    made = invite(federation, "telco", tmp_path / "telco.invitation")
    yield replace(made, enrolment=f"127.0.0.1:{port}")
    service.stop(0)


def sign_by_command(federation: FederationDirectory, vault: Path, place: Path) -> list[str]:
    """Export, sign and import, as people do it; the lines that were printed."""
    said = []
    for command in (
        ["requests", str(federation.directory), "--out", str(place / "requests.json")],
        [
            *("sign", str(place / "requests.json"), "--authority", str(vault)),
            *("--out", str(place / "signed.json")),
        ],
        ["admit", str(federation.directory), str(place / "signed.json")],
    ):
        result = CliRunner().invoke(app, ["federation", *command], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        said += result.output.splitlines()
    return said


def test_a_party_joins_after_the_label_holder_has_signed(
    federation: FederationDirectory, invitation: Invitation, vault: Path, tmp_path: Path
) -> None:
    key = key_pem(new_key())
    for _ in range(2):
        with pytest.raises(RunError, match=says("'telco'", "away from the hub", "again")):
            request_enrolment(invitation, key)
    assert not federation.register.read().members
    said = sign_by_command(federation, vault, tmp_path)
    assert any("signed: party 'telco'" in line for line in said)
    identity = request_enrolment(invitation, key)
    assert identity.name == "telco"
    assert set(federation.register.read().members) == {"telco"}
    # The answer again, to the same key; nothing waits any more.
    assert request_enrolment(invitation, key).certificate == identity.certificate
    assert not federation.export_requests().requests
    assert not (federation.directory / "authority.key.pem").exists()
    recorded = [entry["event"] for entry in federation.record.entries()]
    assert recorded == ["invited", "signed elsewhere", "enrolled"]
    assert (
        CliRunner()
        .invoke(app, ["federation", "requests", str(federation.directory)])
        .output.startswith("nothing waits")
    )


def test_an_invitation_is_the_first_key_s(
    federation: FederationDirectory, invitation: Invitation
) -> None:
    with pytest.raises(RunError, match="away from the hub"):
        request_enrolment(invitation, key_pem(new_key()))
    with pytest.raises(IdentityRefused, match="another key"):
        request_enrolment(invitation, key_pem(new_key()))
    assert len(federation.export_requests().requests) == 1


@pytest.mark.attack(
    what="Certificates slipped into the signed file",
    has="the file on its way back to the hub",
    before="there was no such file",
    now="refused: another authority, key, name or request",
)
def test_what_nobody_asked_for_or_another_signed_is_refused(
    federation: FederationDirectory, invitation: Invitation, vault: Path, clock: SetClock
) -> None:
    with pytest.raises(RunError, match="away from the hub"):
        request_enrolment(invitation, key_pem(new_key()))
    asked = federation.export_requests()
    signed = sign_requests(asked, read_authority(vault), now=clock)
    (item,) = signed.signed
    renamed = replace(item, request=replace(item.request, name="shop"))
    with pytest.raises(ConfigError, match="nobody has asked"):
        federation.import_signed(replace(signed, signed=(renamed,)))
    longer = replace(item, request=replace(item.request, days=800))
    with pytest.raises(ConfigError, match="nobody has asked"):
        federation.import_signed(replace(signed, signed=(longer,)))
    forger = Authority.create("bank", moment=clock())
    forged = forger.issue("telco", item.request.key, role=Role.PARTY, moment=clock(), days=90)
    with pytest.raises(IdentityRefused):
        federation.import_signed(
            replace(signed, signed=(replace(item, certificate=certificate_pem(forged).decode()),))
        )
    other = read_authority(vault).issue(
        "telco", new_key().public_key(), role=Role.PARTY, moment=clock(), days=90
    )
    with pytest.raises(ConfigError, match="another key"):
        federation.import_signed(
            replace(signed, signed=(replace(item, certificate=certificate_pem(other).decode()),))
        )
    with pytest.raises(ConfigError, match="another federation"):
        sign_requests(asked, forger, now=clock)
    assert federation.export_requests() == asked


def test_renewals_wait_too(tmp_path: Path, vault: Path, clock: SetClock) -> None:
    clock.advance(days=-70)
    federation = make_federation(tmp_path / "fed", clock)
    identity = make_member(federation, "telco")
    clock.advance(days=70)
    federation.hub_identity()
    lock_away(federation, vault)
    service = renewal_service(federation.directory, address="127.0.0.1:0", now=clock)
    port = service.start()
    try:
        home, table = tmp_path / "home", tmp_path / "table.csv"
        table.write_text("id,calls\n1,2\n")
        make_home(home)
        save_identity(home, identity)
        settings = PartySettings(
            name="telco", label_holder="bank", hub=f"127.0.0.1:{port}", data=table, id="id"
        )
        write_party(home, settings)
        assert not renew_if_due(home, now=clock)
        assert not renew_if_due(home, now=clock)
        assert [item.name for item in federation.export_requests().requests] == ["telco"]
        federation.import_signed(
            sign_requests(federation.export_requests(), read_authority(vault), now=clock)
        )
        assert renew_if_due(home, now=clock)
        assert own_identity(home, now=clock).certificate != identity.certificate
        assert not (home / "renewing.key.pem").exists()
    finally:
        service.stop(0)


def test_the_hub_s_own_next_certificate_is_signed_there(
    federation: FederationDirectory, vault: Path, clock: SetClock
) -> None:
    first = federation.hub_identity()
    clock.advance(days=70)
    assert federation.hub_identity() == first  # good for twenty days more
    (asked,) = federation.export_requests().requests
    assert (asked.role, asked.name, asked.hosts) == ("hub", "bank", ("127.0.0.1",))
    federation.import_signed(
        sign_requests(federation.export_requests(), read_authority(vault), now=clock)
    )
    newer = federation.hub_identity()
    assert newer.certificate != first.certificate
    assert newer.key != first.key
    assert federation.hub_identity() == newer
    assert not federation.export_requests().requests
