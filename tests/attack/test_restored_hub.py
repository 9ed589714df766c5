"""A hub that was put back from an old copy: parties have seen more of its record, and say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from colonnade.core.config import dump
from colonnade.core.errors import IdentityRefused, ProtocolError, RunError
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.admission import Admission
from colonnade.federate.backup import back_up, restore
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.identities import save_identity
from colonnade.federate.invitations import revoke
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.party_home import PartySettings, make_home, read_party, write_party
from colonnade.federate.record_witness import check_head, exchange_witness, sign_head
from colonnade.run.storage import write_json
from membership import SetClock, make_federation, make_member
from networks import QUICK


@pytest.fixture
def federation(tmp_path: Path) -> FederationDirectory:
    return make_federation(tmp_path / "bank", SetClock())


@contextmanager
def opened(directory: Path) -> Iterator[Hub]:
    with open_hub(
        directory, links=QUICK, address="127.0.0.1:0", enrols=False, check_seconds=0.05
    ) as hub:
        yield hub


def home_of(federation: FederationDirectory, name: str) -> tuple[Path, Identity]:
    home = federation.directory.parent / name
    make_home(home)
    identity = make_member(federation, name)
    save_identity(home, identity)
    write_party(
        home,
        PartySettings(
            name=name, label_holder="bank", hub="127.0.0.1:1", data=home / "x.csv", id="id"
        ),
    )
    return home, identity


def witnessed(home: Path, hub: Hub) -> bool:
    write_party(home, replace(read_party(home), hub=f"127.0.0.1:{hub.port}"))
    return exchange_witness(home)


@pytest.mark.attack(
    what="A revoked party after an old backup was put back",
    has="its certificate from before the revocation",
    before="admitted again: the restored register knew of no revocation",
    now="nobody is admitted from the moment on that one party shows what it has seen",
)
def test_an_older_copy_is_recognised_and_admits_nobody(
    federation: FederationDirectory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop, _ = home_of(federation, "shop")
    _, revoked = home_of(federation, "telco")
    old = tmp_path / "old.backup"
    back_up(federation.directory, old)
    revoke(federation, "telco")
    with opened(federation.directory) as hub:
        assert witnessed(shop, hub)
    again = tmp_path / "again"
    # Somebody claims that nobody was revoked since.
    restore(old, again, nobody_revoked=True)
    with opened(again) as hub:
        assert not witnessed(shop, hub)
        assert "older than what was seen" in caplog.text
        admission = Admission(again)
        with pytest.raises(RunError, match="admits nobody"):
            admission(revoked.certificate)
    record = FederationDirectory(again).record
    assert record.is_behind
    # The label holder looks, revokes again, and takes note.
    revoke(FederationDirectory(again), "telco")
    assert record.acknowledge()
    with opened(again) as hub:
        assert witnessed(shop, hub)
    assert not record.is_behind
    assert "acknowledged" in [entry["event"] for entry in record.entries()]


@pytest.mark.attack(
    what="A party that claims to have seen entries that never were",
    has="a membership and statements of its own making",
    before="(found with the witness)",
    now="refused: the hub believes its own signature only",
)
def test_a_party_cant_close_the_hub(federation: FederationDirectory, tmp_path: Path) -> None:
    home, identity = home_of(federation, "shop")
    own = sign_head(identity, 10_000, "0" * 64)
    hubs = sign_head(federation.hub_identity(), 1, "0" * 64)
    for forged in (own, replace(own, certificate=hubs.certificate), replace(hubs, entries=10_000)):
        with pytest.raises((ProtocolError, IdentityRefused)):
            check_head(federation.authority_certificate, forged)
    write_json(home / "hub_record.json", dump(replace(hubs, entries=10_000)))
    with opened(federation.directory) as hub:
        # The hub does not answer such a question, and goes on.
        assert witnessed(home, hub)
        assert not federation.record.is_behind
        assert Admission(federation.directory, now=federation.now)(identity.certificate) == "shop"
