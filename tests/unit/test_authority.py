"""A federation's authority and its certificates, against an independent verifier."""

from __future__ import annotations

import datetime
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from colonnade.core.errors import ConfigError, IdentityRefused, StorageError
from colonnade.fabrics.grpc.identity import HUB_NAME
from colonnade.federate.authority import Authority
from colonnade.federate.certificates import (
    Reason,
    Role,
    certificate_pem,
    check_issued,
    check_name,
    check_time,
    key_pem,
    load_certificate,
    load_key,
    load_request,
    name_of,
    new_key,
    signing_request,
)
from colonnade.federate.federation_directory import (
    FederationDirectory,
    FederationSettings,
    split_address,
)
from colonnade.federate.identities import (
    check_identity,
    is_renewal_due,
    load_identity,
    save_identity,
)
from membership import SetClock, make_federation, make_member
from messages import says

MOMENT = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def issue(
    authority: Authority, role: Role = Role.PARTY, name: str = "telco", days: int = 90
) -> x509.Certificate:
    key = new_key().public_key()
    return authority.issue(name, key, role=role, moment=MOMENT, days=days, hosts=("127.0.0.1",))


@pytest.fixture
def authority() -> Authority:
    return Authority.create("bank", moment=MOMENT)


def extension(certificate: x509.Certificate, kind: type[x509.ExtensionType]) -> x509.Extension:
    return certificate.extensions.get_extension_for_class(kind)


def test_the_authority_signs_certificates_of_members_and_nothing_else(
    authority: Authority,
) -> None:
    own = load_certificate(authority.certificate, "authority")
    constraints = extension(own, x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = extension(own, x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    assert "PRIVATE" not in repr(authority)


@pytest.mark.parametrize(
    ("role", "use"),
    [
        (Role.HUB, ExtendedKeyUsageOID.SERVER_AUTH),
        (Role.PARTY, ExtendedKeyUsageOID.CLIENT_AUTH),
    ],
)
def test_a_certificate_says_who_and_what_for(
    authority: Authority, role: Role, use: x509.ObjectIdentifier
) -> None:
    certificate = issue(authority, role)
    assert name_of(certificate) == "telco"
    assert list(extension(certificate, x509.ExtendedKeyUsage).value) == [use]
    assert extension(certificate, x509.BasicConstraints).value.ca is False
    usage = extension(certificate, x509.KeyUsage).value
    assert usage.digital_signature
    assert not usage.key_cert_sign
    names = extension(certificate, x509.SubjectAlternativeName).value
    assert (HUB_NAME in names.get_values_for_type(x509.DNSName)) == (role is Role.HUB)
    assert certificate.not_valid_after_utc == MOMENT + 90 * DAY


def test_no_certificate_outlasts_the_authority(authority: Authority) -> None:
    own = load_certificate(authority.certificate, "authority")
    late = own.not_valid_after_utc - 10 * DAY
    key = new_key().public_key()
    certificate = authority.issue("telco", key, role=Role.PARTY, moment=late, days=90)
    assert certificate.not_valid_after_utc == own.not_valid_after_utc


# Ours against a verifier that was written by others: both accept, or both refuse.


def forged(authority: Authority) -> x509.Certificate:
    """The right names all over, signed with another key."""
    other = Authority.create("bank", moment=MOMENT)
    return issue(replace(authority, key=other.key))


def of_another_federation(_: Authority) -> x509.Certificate:
    return issue(Authority.create("bank", moment=MOMENT))


def signed_by_a_member(authority: Authority) -> x509.Certificate:
    """A member that plays authority."""
    key = new_key()
    member = authority.issue("telco", key.public_key(), role=Role.PARTY, moment=MOMENT, days=90)
    return issue(Authority(certificate=certificate_pem(member), key=key_pem(key)))


CASES: dict[str, tuple[Callable[[Authority], x509.Certificate], datetime.datetime, str | None]] = {
    "good": (issue, MOMENT, None),
    "last second": (issue, MOMENT + 90 * DAY, None),
    "expired": (issue, MOMENT + 90 * DAY + DAY / 86400, Reason.EXPIRED),
    "not yet valid": (issue, MOMENT - DAY, Reason.NOT_YET_VALID),
    "forged": (forged, MOMENT, Reason.FOREIGN),
    "other federation": (of_another_federation, MOMENT, Reason.FOREIGN),
    "signed by a member": (signed_by_a_member, MOMENT, Reason.FOREIGN),
    "hub's": (lambda authority: issue(authority, Role.HUB), MOMENT, Reason.FOREIGN),
}


@pytest.mark.parametrize(("make", "moment", "reason"), CASES.values(), ids=CASES.keys())
def test_a_verifier_of_others_agrees(
    authority: Authority,
    make: Callable[[Authority], x509.Certificate],
    moment: datetime.datetime,
    reason: str | None,
) -> None:
    certificate = make(authority)
    own = load_certificate(authority.certificate, "authority")
    verifier = PolicyBuilder().store(Store([own])).time(moment).build_client_verifier()

    def check() -> None:
        check_issued(certificate, own, Role.PARTY, "it")
        check_time(certificate, moment, "it")

    if reason is None:
        verifier.verify(certificate, [])
        check()
        return
    with pytest.raises(VerificationError):
        verifier.verify(certificate, [])
    with pytest.raises(IdentityRefused) as refused:
        check()
    assert refused.value.reason == reason


# Requests


def test_a_request_carries_a_key_and_no_secret() -> None:
    key = new_key()
    request = signing_request(key, "telco")
    assert load_request(request) == key.public_key()
    assert b"PRIVATE" not in request


def csr(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> x509.CertificateSigningRequest:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "telco")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    return builder.sign(key, hashes.SHA256())


def tampered() -> bytes:
    """One bit of the signature turned."""
    from cryptography.hazmat.primitives.serialization import Encoding

    der = bytearray(csr(new_key()).public_bytes(Encoding.DER))
    der[-1] ^= 1
    return x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)


def of_another_curve() -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return csr(ec.generate_private_key(ec.SECP384R1())).public_bytes(Encoding.PEM)


def with_rsa() -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return csr(rsa.generate_private_key(65537, 2048)).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    "make", [tampered, of_another_curve, with_rsa, lambda: b"", lambda: b"-----BEGIN"]
)
def test_other_requests_are_refused(make: Callable[[], bytes]) -> None:
    with pytest.raises(IdentityRefused) as refused:
        load_request(make())
    assert refused.value.reason == Reason.UNREADABLE


# Names and addresses


@pytest.mark.parametrize("name", ["telco", "a", "shop-2", "a_b", "9lives"])
def test_good_names(name: str) -> None:
    assert check_name(name, "party") == name


@pytest.mark.parametrize(
    "name", ["", "Telco", "-a", "a-", "a.b", "a/b", "..", "a b", "ä", "a" * 61, "a\n", HUB_NAME]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(ConfigError, match="party: "):
        check_name(name, "party")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:7443", ("127.0.0.1", 7443)),
        ("[::1]:7443", ("::1", 7443)),
        ("hub.bank.example:1", ("hub.bank.example", 1)),
    ],
)
def test_good_addresses(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address, "address") == parts


@pytest.mark.parametrize(
    "address", ["", "hub", "hub:", ":1", "hub:0", "hub:65536", "hub:x", "::1:5"]
)
def test_bad_addresses(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        split_address(address, "address")


# A federation's directory


def test_a_new_federation_keeps_its_keys_to_itself(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in federation.directory.iterdir()
    }
    assert stat.S_IMODE(federation.directory.stat().st_mode) == 0o700
    holding = {
        path.name for path in federation.directory.iterdir() if b"PRIVATE KEY" in path.read_bytes()
    }
    assert holding == {"authority.key.pem", "identity.pem"}
    for name in (*holding, "register.json"):
        assert modes[name] == 0o600, name


def test_a_directory_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("here")
    with pytest.raises(ConfigError, match=says(tmp_path, "empty")):
        make_federation(tmp_path, SetClock())
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_what_is_no_federation_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="federation init"):
        FederationDirectory(tmp_path)


def test_mistakes_in_the_settings_name_the_file(tmp_path: Path) -> None:
    file = make_federation(tmp_path / "fed", SetClock()).directory / "federation.toml"
    good = file.read_text()
    for bad, words in (
        (good.replace("address", "adress"), says("adress", "'address'")),
        (good.replace("= 90", "= "), says("TOML", "line 4")),
        ("", says("name", "missing")),
    ):
        file.write_text(bad)
        with pytest.raises(ConfigError, match=words) as error:
            FederationDirectory(file.parent)
        assert str(error.value).startswith(f"{file}: ")


def test_settings_are_checked(tmp_path: Path) -> None:
    good = {"name": "bank", "address": "hub:1", "enrolment": "hub:2"}
    assert FederationSettings(**good, listen="0.0.0.0").listen_enrolment == "0.0.0.0:2"
    assert FederationSettings(**good, listen="::").listen_address == "[::]:1"
    assert FederationSettings(**good).listen_address == "hub:1"
    with pytest.raises(ConfigError, match=says("enrolment", "port")):
        FederationSettings(**{**good, "enrolment": "hub:1"})
    with pytest.raises(ConfigError, match="certificate_days"):
        FederationSettings(**good, certificate_days=0)
    assert FederationSettings(**good, serving="hub:3").serving == "hub:3"
    for taken in ("hub:1", "hub:2"):
        with pytest.raises(ConfigError, match=says("serving", "port")):
            FederationSettings(**good, serving=taken)


def test_the_hub_renews_its_own_certificate(tmp_path: Path) -> None:
    clock = SetClock()
    federation = make_federation(tmp_path / "fed", clock)
    first = federation.hub_identity()
    check_identity(first, Role.HUB, clock())
    clock.advance(days=59)
    assert federation.hub_identity() == first
    clock.advance(days=2)
    second = federation.hub_identity()
    assert second.certificate != first.certificate
    assert federation.hub_identity() == second
    check_identity(second, Role.HUB, clock())


def test_a_clock_that_was_ahead_leaves_no_harm(tmp_path: Path) -> None:
    clock = SetClock()
    federation = make_federation(tmp_path / "fed", clock)
    clock.advance(days=400)
    check_identity(federation.hub_identity(), Role.HUB, clock())
    clock.advance(days=-400)
    check_identity(federation.hub_identity(), Role.HUB, clock())


def test_the_hub_gets_a_certificate_for_a_new_address(tmp_path: Path) -> None:
    clock = SetClock()
    federation = make_federation(tmp_path / "fed", clock)
    first = federation.hub_identity()
    file = federation.directory / "federation.toml"
    file.write_text(file.read_text().replace("127.0.0.1", "hub.bank.example"))
    moved = FederationDirectory(federation.directory, now=clock).hub_identity()
    assert moved.certificate != first.certificate
    names = extension(load_certificate(moved.certificate, "hub"), x509.SubjectAlternativeName)
    assert "hub.bank.example" in names.value.get_values_for_type(x509.DNSName)


# Identities on disk


def test_an_identity_comes_back_as_it_was(tmp_path: Path) -> None:
    identity = make_member(make_federation(tmp_path / "fed", SetClock()), "telco")
    save_identity(tmp_path / "home", identity)
    assert load_identity(tmp_path / "home") == identity
    assert stat.S_IMODE((tmp_path / "home" / "identity.pem").stat().st_mode) == 0o600
    assert "PRIVATE" not in repr(identity)


def test_an_identity_that_others_can_read_is_refused(tmp_path: Path) -> None:
    save_identity(tmp_path, make_member(make_federation(tmp_path / "fed", SetClock()), "telco"))
    (tmp_path / "identity.pem").chmod(0o640)
    with pytest.raises(StorageError, match="chmod 600"):
        load_identity(tmp_path)


def test_an_identity_is_checked_before_anything_is_dialled(tmp_path: Path) -> None:
    clock = SetClock()
    federation = make_federation(tmp_path / "fed", clock)
    good, other = make_member(federation, "telco"), make_member(federation, "shop")
    elsewhere = make_federation(tmp_path / "elsewhere", clock)
    check_identity(good, Role.PARTY, clock())
    bad = {
        Reason.MISMATCH: [replace(good, key=other.key), replace(good, name="shop")],
        Reason.FOREIGN: [
            replace(good, authority=elsewhere.authority_certificate),
            federation.hub_identity(),
        ],
        Reason.UNREADABLE: [replace(good, key=b"nothing"), replace(good, certificate=b"")],
    }
    for reason, identities in bad.items():
        for identity in identities:
            with pytest.raises(IdentityRefused) as refused:
                check_identity(identity, Role.PARTY, clock())
            assert refused.value.reason == reason
    for days, reason in ((91, Reason.EXPIRED), (-1, Reason.NOT_YET_VALID)):
        with pytest.raises(IdentityRefused) as refused:
            check_identity(good, Role.PARTY, clock() + days * DAY)
        assert refused.value.reason == reason


def test_renewal_is_due_when_a_third_is_left(tmp_path: Path) -> None:
    clock = SetClock()
    identity = make_member(make_federation(tmp_path / "fed", clock), "telco")
    clock.advance(days=59)
    assert not is_renewal_due(identity.certificate, clock())
    clock.advance(days=2)
    assert is_renewal_due(identity.certificate, clock())


def test_a_key_of_another_kind_is_refused() -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(IdentityRefused, match="P-256"):
        load_key(key_pem(key), "key")
