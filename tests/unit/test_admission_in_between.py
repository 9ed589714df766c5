"""Somebody is revoked, or enrols again, between the first look at the register and its lock."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest

from colonnade.core.errors import IdentityRefused
from colonnade.federate.admission import Admission
from colonnade.federate.certificates import Reason, new_key, signing_request
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.invitations import revoke
from colonnade.federate.renewal import issue_renewal
from membership import SetClock, make_federation, make_member


class MeddlingClock(SetClock):
    """Has something happen at the moment when a certificate's time is looked at."""

    happens: Callable[[], object] | None = None

    def __call__(self) -> datetime.datetime:
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return super().__call__()


@pytest.fixture
def clock() -> MeddlingClock:
    return MeddlingClock()


@pytest.fixture
def federation(tmp_path: Path, clock: MeddlingClock) -> FederationDirectory:
    return make_federation(tmp_path / "fed", clock)


@pytest.fixture
def admission(federation: FederationDirectory, clock: MeddlingClock) -> Admission:
    return Admission(federation.directory, now=clock)


def enrols_again(federation: FederationDirectory) -> object:
    return make_member(federation, "telco", replace=True)


def is_revoked(federation: FederationDirectory) -> object:
    return revoke(federation, "telco")


MEANWHILE = [(is_revoked, Reason.REVOKED), (enrols_again, Reason.SUPERSEDED)]


@pytest.mark.parametrize(("happening", "reason"), MEANWHILE)
def test_a_renewed_certificate_is_not_admitted(
    federation: FederationDirectory,
    admission: Admission,
    clock: MeddlingClock,
    happening: Callable[[FederationDirectory], object],
    reason: Reason,
) -> None:
    first = make_member(federation, "telco").certificate
    before = Admission(federation.directory, now=clock)
    second = issue_renewal(federation, before, first, signing_request(new_key(), "telco"))
    clock.happens = lambda: happening(federation)
    with pytest.raises(IdentityRefused) as refused:
        admission(second)
    assert refused.value.reason == reason
    # Who never came in is not shown out.
    assert "telco" not in admission.newly_refused()


@pytest.mark.parametrize(("happening", "reason"), MEANWHILE)
def test_a_certificate_is_not_renewed(
    federation: FederationDirectory,
    admission: Admission,
    clock: MeddlingClock,
    happening: Callable[[FederationDirectory], object],
    reason: Reason,
) -> None:
    first = make_member(federation, "telco").certificate
    clock.happens = lambda: happening(federation)
    before = federation.register.read().members["telco"]
    with pytest.raises(IdentityRefused) as refused:
        issue_renewal(federation, admission, first, signing_request(new_key(), "telco"))
    assert refused.value.reason == reason
    member = federation.register.read().members.get("telco")
    assert member is None or (member.successor is None and member.serial != before.serial)


def test_two_uses_of_a_renewed_certificate_at_once_are_one(
    federation: FederationDirectory, admission: Admission, clock: MeddlingClock
) -> None:
    first = make_member(federation, "telco").certificate
    second = issue_renewal(federation, admission, first, signing_request(new_key(), "telco"))
    elsewhere = Admission(federation.directory, now=SetClock(clock.moment))
    clock.happens = lambda: elsewhere(second)
    assert admission(second) == "telco"
    member = federation.register.read().members["telco"]
    assert member.successor is None
    assert member.successor_expires is None
