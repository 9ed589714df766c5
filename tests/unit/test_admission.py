"""Invitations, enrolment and admission: every refusal has its reason."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from colonnade.core.errors import ConfigError, IdentityRefused, RunError, StorageError
from colonnade.federate.admission import Admission
from colonnade.federate.authority import Authority
from colonnade.federate.certificates import (
    Reason,
    Role,
    certificate_pem,
    load_certificate,
    name_of,
    new_key,
    signing_request,
)
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.invitations import (
    enrol,
    hashed,
    invite,
    membership_rows,
    parse_duration,
    read_invitation,
    revoke,
)
from colonnade.federate.renewal import issue_renewal
from membership import SetClock, make_federation, make_member
from messages import says


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def federation(tmp_path: Path, clock: SetClock) -> FederationDirectory:
    return make_federation(tmp_path / "fed", clock)


@pytest.fixture
def admission(federation: FederationDirectory, clock: SetClock) -> Admission:
    return Admission(federation.directory, now=clock)


def reason_of(admission: Admission, certificate: bytes) -> str:
    with pytest.raises(IdentityRefused) as refused:
        admission(certificate)
    assert "'telco'" in str(refused.value) or refused.value.reason != Reason.SUPERSEDED
    return refused.value.reason


def request() -> bytes:
    return signing_request(new_key(), "telco")


# Invitations


def test_an_invitation_comes_back_as_it_was(
    federation: FederationDirectory, tmp_path: Path
) -> None:
    made = invite(federation, "telco", tmp_path / "telco.invitation")
    assert read_invitation(tmp_path / "telco.invitation") == made
    assert made.token not in repr(made)
    assert (tmp_path / "telco.invitation").stat().st_mode & 0o077 == 0
    assert made.authority.encode() == federation.authority_certificate


def test_the_hub_keeps_no_token(federation: FederationDirectory, tmp_path: Path) -> None:
    made = invite(federation, "telco", tmp_path / "i")
    enrol(federation, made.token, request())
    for path in filter(Path.is_file, federation.directory.rglob("*")):
        assert made.token not in path.read_text()
    assert hashed(made.token) in (federation.directory / "register.json").read_text()


@pytest.mark.attack(
    what="An invitation used a second time",
    has="an invitation that somebody used",
    before="nothing (held)",
    now="refused, with the time of its use",
)
def test_an_invitation_is_good_once(federation: FederationDirectory, tmp_path: Path) -> None:
    made = invite(federation, "telco", tmp_path / "i")
    certificate = enrol(federation, made.token, request())
    assert name_of(load_certificate(certificate, "it")) == "telco"
    with pytest.raises(IdentityRefused, match=says("'telco'", "used")) as refused:
        enrol(federation, made.token, request())
    assert refused.value.reason == Reason.USED_INVITATION


def test_a_lost_answer_can_be_had_again_with_the_same_key(
    federation: FederationDirectory, tmp_path: Path
) -> None:
    made = invite(federation, "telco", tmp_path / "i")
    key = new_key()
    first = enrol(federation, made.token, signing_request(key, "telco"))
    assert enrol(federation, made.token, signing_request(key, "telco")) == first
    revoke(federation, "telco")
    with pytest.raises(IdentityRefused) as refused:
        enrol(federation, made.token, signing_request(key, "telco"))
    assert refused.value.reason == Reason.USED_INVITATION


def test_many_at_once_get_one_certificate(federation: FederationDirectory, tmp_path: Path) -> None:
    made = invite(federation, "telco", tmp_path / "i")
    requests = [request() for _ in range(8)]
    together = threading.Barrier(len(requests))
    outcomes: list[str] = []

    def ask(own: bytes) -> None:
        # Each with its own view of the directory, as processes have.
        apart = FederationDirectory(federation.directory, now=federation.now)
        together.wait()
        try:
            enrol(apart, made.token, own)
        except IdentityRefused as refused:
            outcomes.append(refused.reason)
        else:
            outcomes.append("enrolled")

    threads = [threading.Thread(target=ask, args=(own,)) for own in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["enrolled"] + 7 * [Reason.USED_INVITATION]


def test_an_invitation_expires(
    federation: FederationDirectory, clock: SetClock, tmp_path: Path
) -> None:
    lasting = parse_duration("12h", "--valid")
    made = invite(federation, "telco", tmp_path / "i", valid=lasting)
    clock.advance(hours=12)
    enrol(federation, made.token, request())
    late = invite(federation, "shop", tmp_path / "j", valid=lasting)
    clock.advance(hours=12, seconds=1)
    with pytest.raises(IdentityRefused) as refused:
        enrol(federation, late.token, request())
    assert refused.value.reason == Reason.EXPIRED_INVITATION


def test_a_new_invitation_withdraws_the_one_before(
    federation: FederationDirectory, tmp_path: Path
) -> None:
    first = invite(federation, "telco", tmp_path / "i")
    second = invite(federation, "telco", tmp_path / "j")
    with pytest.raises(IdentityRefused) as refused:
        enrol(federation, first.token, request())
    assert refused.value.reason == Reason.WITHDRAWN_INVITATION
    enrol(federation, second.token, request())


def test_a_token_of_nobody_is_refused(federation: FederationDirectory, tmp_path: Path) -> None:
    made = invite(federation, "telco", tmp_path / "i")
    before = (federation.directory / "register.json").read_bytes()
    for token in ("", "x", made.token[:-1], hashed(made.token)):
        with pytest.raises(IdentityRefused) as refused:
            enrol(federation, token, request())
        assert refused.value.reason == Reason.UNKNOWN_INVITATION
    assert (federation.directory / "register.json").read_bytes() == before


def test_a_bad_request_spends_no_invitation(
    federation: FederationDirectory, tmp_path: Path
) -> None:
    made = invite(federation, "telco", tmp_path / "i")
    with pytest.raises(IdentityRefused):
        enrol(federation, made.token, b"nothing")
    enrol(federation, made.token, request())


def test_whom_not_to_invite(federation: FederationDirectory, tmp_path: Path) -> None:
    make_member(federation, "telco")
    for name, words in (("telco", "--replace"), ("bank", "label holder"), ("No", "lower-case")):
        with pytest.raises(ConfigError, match=words):
            invite(federation, name, tmp_path / "i")
    assert not (tmp_path / "i").exists()
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match=says(tmp_path / "taken", "--out")):
        invite(federation, "shop", tmp_path / "taken")
    with pytest.raises(StorageError):
        invite(federation, "shop", tmp_path / "taken" / "below")
    assert [row["party"] for row in membership_rows(federation)] == ["bank", "telco"]


@pytest.mark.parametrize("text", ["", "7", "d", "0d", "7w", "-1d", "7d ", "99999d"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(ConfigError, match="--valid"):
        parse_duration(text, "--valid")


def test_good_durations() -> None:
    assert parse_duration("30m", "it") == datetime.timedelta(minutes=30)
    assert parse_duration("7d", "it") == datetime.timedelta(days=7)


def bad_invitations(good: str) -> Iterator[tuple[str, bytes]]:
    plain = json.loads(good)
    yield "not text", b"\xff\xfe\x00"
    yield "not JSON", b"name,calls\n1,2\n"
    yield "nested", b"[" * 10_000
    yield "too large", b" " * 20_000
    yield "a list", b"[]"
    for key, value in (
        ("version", 2),
        ("kind", "recipe"),
        ("party", "../telco"),
        ("enrolment", "nowhere"),
        ("token", "short"),
        ("expires", "2026-01-01T00:00:00"),
        ("authority", "none"),
        ("extra", 1),
    ):
        yield key, json.dumps(plain | {key: value}).encode()
    for key in plain.keys() - {"kind", "version"}:
        yield f"no {key}", json.dumps({k: v for k, v in plain.items() if k != key}).encode()


def test_wrong_files_are_named(federation: FederationDirectory, tmp_path: Path) -> None:
    made = invite(federation, "telco", tmp_path / "good")
    for name, content in bad_invitations((tmp_path / "good").read_text()):
        bad = tmp_path / "bad"
        bad.write_bytes(content)
        with pytest.raises((ConfigError, IdentityRefused)) as error:
            read_invitation(bad)
        assert str(bad) in str(error.value), name
        assert made.token not in str(error.value), name
    with pytest.raises(ConfigError, match=says("absent", "no such file")):
        read_invitation(tmp_path / "absent")


# Admission


def test_a_member_is_admitted_by_its_name(
    federation: FederationDirectory, admission: Admission
) -> None:
    assert admission(make_member(federation, "telco").certificate) == "telco"
    assert admission(make_member(federation, "shop").certificate) == "shop"


@pytest.mark.attack(
    what="An identity of another federation, or of nobody",
    has="a certificate of its own making",
    before="nothing (held)",
    now="refused, with the reason",
)
def test_strangers_are_refused(
    federation: FederationDirectory, admission: Admission, clock: SetClock, tmp_path: Path
) -> None:
    elsewhere = make_federation(tmp_path / "elsewhere", clock)
    assert reason_of(admission, make_member(elsewhere, "telco").certificate) == Reason.FOREIGN
    assert reason_of(admission, federation.hub_identity().certificate) == Reason.FOREIGN
    assert reason_of(admission, federation.authority_certificate) == Reason.FOREIGN
    forger = Authority(certificate=federation.authority_certificate, key=elsewhere.authority().key)
    forged = forger.issue("telco", new_key().public_key(), role=Role.PARTY, moment=clock(), days=9)
    make_member(federation, "telco")
    assert reason_of(admission, certificate_pem(forged)) == Reason.FOREIGN
    for content in (b"", b"nothing", b"-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----"):
        assert reason_of(admission, content) == Reason.UNREADABLE


def test_a_certificate_that_nobody_enrolled_with_is_refused(
    federation: FederationDirectory, admission: Admission, clock: SetClock
) -> None:
    """Signed by the authority, and yet in no register: somebody used its key elsewhere."""
    key = new_key().public_key()
    issue = federation.authority().issue
    unknown = issue("ghost", key, role=Role.PARTY, moment=clock(), days=9)
    assert reason_of(admission, certificate_pem(unknown)) == Reason.UNKNOWN_NAME
    make_member(federation, "telco")
    double = issue("telco", key, role=Role.PARTY, moment=clock(), days=9)
    assert reason_of(admission, certificate_pem(double)) == Reason.SUPERSEDED


@pytest.mark.attack(
    what="An expired identity",
    has="an old certificate and its key",
    before="nothing (held)",
    now="refused, with the reason",
)
def test_time_is_minded(
    federation: FederationDirectory, admission: Admission, clock: SetClock
) -> None:
    certificate = make_member(federation, "telco").certificate
    clock.advance(days=-1)
    assert reason_of(admission, certificate) == Reason.NOT_YET_VALID
    clock.advance(days=91)
    assert admission(certificate) == "telco"
    clock.advance(seconds=1)
    assert reason_of(admission, certificate) == Reason.EXPIRED


@pytest.mark.attack(
    what="A revoked identity",
    has="a certificate that was revoked, and its key",
    before="nothing (held)",
    now="refused, and cut off while connected",
)
def test_a_revocation_is_known_at_once(
    federation: FederationDirectory, admission: Admission, clock: SetClock
) -> None:
    certificate = make_member(federation, "telco").certificate
    assert admission(certificate) == "telco"
    # Another process revokes: the hub's own object is not told.
    revoke(FederationDirectory(federation.directory, now=clock), "telco")
    assert reason_of(admission, certificate) == Reason.REVOKED
    # Back with a new invitation, and the old certificate stays out.
    again = make_member(federation, "telco").certificate
    assert admission(again) == "telco"
    assert reason_of(admission, certificate) == Reason.REVOKED


def test_revoking_withdraws_an_open_invitation(
    federation: FederationDirectory, tmp_path: Path
) -> None:
    made = invite(federation, "telco", tmp_path / "i")
    assert revoke(federation, "telco") == (0, 1)
    with pytest.raises(IdentityRefused) as refused:
        enrol(federation, made.token, request())
    assert refused.value.reason == Reason.WITHDRAWN_INVITATION
    with pytest.raises(ConfigError, match=says("'telco'", "member")):
        revoke(federation, "telco")


def test_enrolling_again_supersedes(federation: FederationDirectory, admission: Admission) -> None:
    first = make_member(federation, "telco").certificate
    second = make_member(federation, "telco", replace=True).certificate
    assert reason_of(admission, first) == Reason.SUPERSEDED
    assert admission(second) == "telco"


@pytest.mark.attack(
    what="A copy of an identity that was renewed",
    has="an old identity and its key",
    before="nothing (held)",
    now="refused as superseded",
)
def test_a_renewal_supersedes_when_it_is_used(
    federation: FederationDirectory, admission: Admission, clock: SetClock
) -> None:
    first = make_member(federation, "telco").certificate
    clock.advance(days=61)
    lost = issue_renewal(federation, admission, first, request())
    # The answer got lost: the old one is still good, and can be renewed again.
    assert admission(first) == "telco"
    second = issue_renewal(federation, admission, first, request())
    assert reason_of(admission, lost) == Reason.SUPERSEDED
    assert admission(first) == "telco"
    assert admission(second) == "telco"
    assert reason_of(admission, first) == Reason.SUPERSEDED
    with pytest.raises(IdentityRefused) as refused:
        issue_renewal(federation, admission, first, request())
    assert refused.value.reason == Reason.SUPERSEDED
    clock.advance(days=60)
    assert admission(second) == "telco"
    # The register goes by the newer certificate: it has thirty days left of its ninety.
    (row,) = (row for row in membership_rows(federation) if row["party"] == "telco")
    assert row["is"] == "member"
    clock.advance(days=31)
    (row,) = (row for row in membership_rows(federation) if row["party"] == "telco")
    assert row["is"] == "expired member"


def test_revoking_ends_a_renewal_that_was_not_used_yet(
    federation: FederationDirectory, admission: Admission
) -> None:
    first = make_member(federation, "telco").certificate
    second = issue_renewal(federation, admission, first, request())
    assert revoke(federation, "telco") == (2, 0)
    assert reason_of(admission, first) == Reason.REVOKED
    assert reason_of(admission, second) == Reason.REVOKED


def test_who_came_in_and_belongs_no_more(
    federation: FederationDirectory, admission: Admission, clock: SetClock
) -> None:
    for name in ("telco", "shop", "gym"):
        admission(make_member(federation, name).certificate)
    assert admission.newly_refused() == {}
    revoke(federation, "telco")
    make_member(federation, "shop", replace=True)
    refused = admission.newly_refused()
    assert refused.keys() == {"telco", "shop"}
    assert "was revoked" in refused["telco"]
    assert "newer identity" in refused["shop"]
    assert admission.newly_refused() == {}
    # A clock that jumps ends no link.
    clock.advance(days=1000)
    assert admission.newly_refused() == {}
    revoke(federation, "gym")
    assert admission.newly_refused().keys() == {"gym"}


def test_a_change_that_can_not_be_kept_is_no_change(
    federation: FederationDirectory,
    admission: Admission,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full disk: nobody is invited, enrolled or revoked, and no file says otherwise."""
    certificate = make_member(federation, "telco").certificate
    open_one = invite(federation, "shop", tmp_path / "shop.invitation")
    before = (federation.directory / "register.json").read_bytes()

    def full(path: Path, content: bytes, *, owner_only: bool = False) -> None:
        raise StorageError(f"{path}: can't be written: No space left on device")

    monkeypatch.setattr("colonnade.federate.register.write_atomically", full)
    with pytest.raises(StorageError):
        invite(federation, "gym", tmp_path / "gym.invitation")
    assert not (tmp_path / "gym.invitation").exists()
    with pytest.raises(StorageError):
        enrol(federation, open_one.token, request())
    with pytest.raises(StorageError):
        revoke(federation, "telco")
    assert admission(certificate) == "telco"
    assert [row["party"] for row in membership_rows(federation)] == ["bank", "telco", "shop"]
    assert (federation.directory / "register.json").read_bytes() == before
    monkeypatch.undo()
    enrol(federation, open_one.token, request())


def test_who_is_what(federation: FederationDirectory, clock: SetClock, tmp_path: Path) -> None:
    make_member(federation, "telco")
    make_member(federation, "shop")
    invite(federation, "gym", tmp_path / "i", valid=datetime.timedelta(days=100))
    invite(federation, "spa", tmp_path / "j")
    revoke(federation, "shop")
    now = {row["party"]: row["is"] for row in membership_rows(federation)}
    expected = {"bank": "label holder", "telco": "member", "gym": "invited", "spa": "invited"}
    assert now == {**expected, "shop": "revoked"}
    for row in membership_rows(federation):
        assert list(row) == ["party", "is", "since", "expires"]
        assert (row["since"] is None) == (row["is"] == "label holder")
        assert (row["expires"] is None) == (row["is"] in ("label holder", "revoked"))
    clock.advance(days=91)
    later = {row["party"]: row["is"] for row in membership_rows(federation)}
    assert later == {
        "bank": "label holder",
        "telco": "expired member",
        "gym": "invited",
        "shop": "revoked",
    }


def test_a_damaged_register_admits_nobody(
    federation: FederationDirectory, admission: Admission
) -> None:
    certificate = make_member(federation, "telco").certificate
    admission(certificate)
    path = federation.directory / "register.json"
    content = path.read_bytes()
    for damaged in (content[:-10], b"[]", b'{"version": 2}', content.replace(b"serial", b"cereal")):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=says("hub", "identities")) as error:
            admission(certificate)
        assert str(path) not in str(error.value)
        assert admission.newly_refused() == {}
        with pytest.raises(StorageError, match=says("register.json", "damaged")):
            revoke(federation, "telco")
        assert path.read_bytes() == damaged
    path.unlink()
    with pytest.raises(RunError, match=says("hub", "identities")):
        admission(certificate)
