"""Enrolment and renewal over real TLS on loopback, honest and otherwise."""

from __future__ import annotations

import datetime
import json
import random
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from colonnade.core.errors import (
    ConfigError,
    DataError,
    IdentityRefused,
    ProtocolError,
    RunError,
)
from colonnade.fabrics.grpc.identity import HUB_NAME, Identity
from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.federate.admission import Admission
from colonnade.federate.certificates import (
    Reason,
    key_pem,
    load_certificate,
    load_key,
    new_key,
    signing_request,
)
from colonnade.federate.enrolment import EnrolRequest, enrolment_service, request_enrolment
from colonnade.federate.enrolment_listener import CertificateListener
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.identities import load_identity, save_identity
from colonnade.federate.invitations import Invitation, enrol, invite, read_invitation, revoke
from colonnade.federate.json_calls import _decoded
from colonnade.federate.party_enrolment import check_data, join, renew_if_due
from colonnade.federate.party_home import own_identity, read_party, write_party
from colonnade.federate.renewal import renew, renewal_service
from membership import SetClock, make_federation, make_member
from messages import says

ENROL = "/colonnade.membership.v1/Enrol"
RENEW = "/colonnade.membership.v1/Renew"


@contextmanager
def running(service: CertificateListener) -> Iterator[int]:
    port = service.start()
    try:
        yield port
    finally:
        service.stop(grace_seconds=0)


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A new federation's ports for renewal and for enrolment, both open."""
    directory = make_federation(tmp_path / "fed", SetClock()).directory
    with (
        running(renewal_service(directory, address="127.0.0.1:0")) as renewals,
        running(enrolment_service(directory, address="127.0.0.1:0")) as enrolment,
    ):
        file = directory / "federation.toml"
        told = file.read_text().replace(":7443", f":{renewals}").replace(":7444", f":{enrolment}")
        file.write_text(told)
        yield renewals, enrolment


@pytest.fixture
def renewals(doors: tuple[int, int]) -> int:
    return doors[0]


@pytest.fixture
def enrolment(doors: tuple[int, int]) -> int:
    return doors[1]


@pytest.fixture
def federation(doors: tuple[int, int], tmp_path: Path) -> FederationDirectory:
    return FederationDirectory(tmp_path / "fed")


@pytest.fixture
def invitation(federation: FederationDirectory, tmp_path: Path) -> Invitation:
    return invite(federation, "telco", tmp_path / "telco.invitation")


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address where nobody listens, and nobody else can."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "customers.csv"
    path.write_text("customer_id,calls,plan\n1,2,a\n2,3,b\n2,4,c\n")
    return path


# Enrolment


def test_a_party_enrols_and_is_admitted(
    federation: FederationDirectory, invitation: Invitation, enrolment: int
) -> None:
    identity = request_enrolment(invitation, key_pem(new_key()))
    assert Admission(federation.directory)(identity.certificate) == "telco"
    with pytest.raises(IdentityRefused, match=says("'telco'", "used")) as refused:
        request_enrolment(invitation, key_pem(new_key()))
    assert refused.value.reason == Reason.USED_INVITATION


def test_nobody_there(invitation: Invitation, nowhere: str) -> None:
    with pytest.raises(RunError, match=says(nowhere, "federation enrol")):
        request_enrolment(replace(invitation, enrolment=nowhere), key_pem(new_key()))


def test_another_federations_hub_is_not_trusted(invitation: Invitation, tmp_path: Path) -> None:
    """Whoever took over the address gets neither the token nor a member."""
    other = make_federation(tmp_path / "other", SetClock())
    with running(enrolment_service(other.directory, address="127.0.0.1:0")) as port:
        moved = replace(invitation, enrolment=f"127.0.0.1:{port}")
        with pytest.raises(IdentityRefused, match=says(moved.enrolment, "certificate")) as refused:
            request_enrolment(moved, key_pem(new_key()))
    assert refused.value.reason == Reason.FOREIGN


@pytest.mark.attack(
    what="A member that poses as the hub",
    has="a member's certificate and key",
    before="nothing (held)",
    now="not trusted: it is not good for a hub",
)
def test_a_member_can_not_pass_for_the_hub(
    federation: FederationDirectory, invitation: Invitation
) -> None:
    member = make_member(federation, "shop")
    pool = ThreadPoolExecutor(1)
    impostor = grpc.server(pool)
    pair = (member.key, member.certificate)
    port = impostor.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    impostor.start()
    try:
        moved = replace(invitation, enrolment=f"127.0.0.1:{port}")
        with pytest.raises(IdentityRefused, match=says(moved.enrolment, "certificate")):
            request_enrolment(moved, key_pem(new_key()))
    finally:
        impostor.stop(0).wait()
        pool.shutdown()


def call(port: int, authority: bytes, path: str, content: bytes, **pair: bytes) -> bytes:
    credentials = grpc.ssl_channel_credentials(root_certificates=authority, **pair)
    options = [("grpc.ssl_target_name_override", HUB_NAME)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        answer: bytes = channel.unary_unary(path)(content, timeout=20)
        return answer


def code_of(*arguments: Any, **pair: bytes) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, **pair)
    return error.value.code(), error.value.details()


def test_malformed_messages_end_that_call_only(
    federation: FederationDirectory, invitation: Invitation, enrolment: int
) -> None:
    authority = federation.authority_certificate
    good = {"version": 1, "token": invitation.token, "request": "r"}
    bad = [
        b"",
        b"\x80\x04N.",
        b"null",
        b"[" * 5000,
        b'{"version": NaN}',
        json.dumps(good | {"token": "\ud800"}).encode(),
        json.dumps(good | {"more": 1}).encode(),
        json.dumps(good | {"token": 7}).encode(),
        json.dumps(good | {"token": [invitation.token]}).encode(),
        json.dumps(good | {"version": 2}).encode(),
        json.dumps({"version": 1, "token": invitation.token}).encode(),
        json.dumps(good).replace('{"version"', '{"token":"x","version"').encode(),
    ]
    for content in bad:
        code, details = code_of(enrolment, authority, ENROL, content)
        assert code is grpc.StatusCode.INVALID_ARGUMENT, content
        assert invitation.token not in details
    large = json.dumps(good | {"request": 20_000 * "r"}).encode()
    code, _ = code_of(enrolment, authority, ENROL, large)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    code, _ = code_of(enrolment, authority, "/colonnade.membership.v1/Open", b"{}")
    assert code is grpc.StatusCode.UNIMPLEMENTED
    # Mutual TLS is what renewals need; this door has none.
    code, _ = code_of(enrolment, authority, RENEW, b"{}")
    assert code is grpc.StatusCode.UNIMPLEMENTED
    refused = json.loads(call(enrolment, authority, ENROL, json.dumps(good).encode()))
    assert refused["refused"]["reason"] == Reason.UNREADABLE
    request_enrolment(invitation, key_pem(new_key()))


@given(content=st.binary(max_size=200) | st.from_regex(rb"\{.*\}", fullmatch=True))
def test_no_bytes_but_a_request_are_understood(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        _decoded(EnrolRequest, content)


def test_of_a_key_that_nobody_knows_the_beginning_is_told() -> None:
    content = json.dumps({"token": "secret", "x" * 60: 1}).encode()
    with pytest.raises(ProtocolError) as refused:
        _decoded(EnrolRequest, content)
    assert f"'{'x' * 40}'" in str(refused.value)
    assert "secret" not in str(refused.value)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Bytes changed, removed, added and swapped, at a few places."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 6)):
        place = draw.randrange(len(changed))
        what = draw.randrange(4)
        if what == 0:
            changed[place] = draw.randrange(256)
        elif what == 1:
            del changed[place : place + draw.randrange(1, 40)]
        elif what == 2:
            changed[place:place] = draw.randbytes(draw.randrange(1, 9))
        else:
            other = draw.randrange(len(changed))
            changed[place], changed[other] = changed[other], changed[place]
    return bytes(changed)


# A serial number below zero, which only such a certificate has.
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
def test_whatever_comes_is_refused_by_name(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    made = invite(federation, "telco", tmp_path / "i")
    member = make_member(federation, "shop").certificate
    admission = Admission(federation.directory, now=federation.now)
    key = new_key()
    csr = signing_request(key, "telco").decode()
    good = json.dumps({"version": 1, "token": made.token, "request": csr}).encode()
    draw = random.Random(7)
    num_refused = 0
    for _ in range(3000):
        try:
            request = _decoded(EnrolRequest, mutated(good, draw))
            issued = enrol(federation, request.token, request.request.encode())
        except (ProtocolError, IdentityRefused):
            num_refused += 1
        else:
            assert load_certificate(issued, "issued").public_key() == key.public_key()
        bad = mutated(member, draw)
        try:
            admission(bad)
        except IdentityRefused:
            num_refused += 1
        else:  # only what stands around the certificate was changed
            assert load_certificate(bad, "it") == load_certificate(member, "it")
    assert num_refused > 5900


# Renewal


def member_pair(identity: Identity) -> dict[str, bytes]:
    return {"private_key": identity.key, "certificate_chain": identity.certificate}


def test_a_member_renews_over_mutual_tls(federation: FederationDirectory, renewals: int) -> None:
    old = make_member(federation, "telco")
    new = renew(old, federation.settings.address)
    assert new.name == "telco"
    assert new.key != old.key
    admission = Admission(federation.directory)
    assert admission(old.certificate) == "telco"
    assert admission(new.certificate) == "telco"
    with pytest.raises(IdentityRefused) as refused:
        renew(old, federation.settings.address)
    assert refused.value.reason == Reason.SUPERSEDED
    revoke(federation, "telco")
    with pytest.raises(IdentityRefused) as refused:
        renew(new, federation.settings.address)
    assert refused.value.reason == Reason.REVOKED


def test_a_renewal_needs_a_new_key(federation: FederationDirectory, renewals: int) -> None:
    member = make_member(federation, "telco")
    request = signing_request(load_key(member.key, "it"), "telco").decode()
    content = json.dumps({"version": 1, "request": request}).encode()
    code, details = code_of(
        renewals, federation.authority_certificate, RENEW, content, **member_pair(member)
    )
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "new key" in details


def is_heard(port: int, *, authority: bytes, member: Identity | None, home: Path) -> bool:
    """Talk TLS by hand: whether the hub says anything but goodbye."""
    context = ssl.create_default_context(cadata=authority.decode())
    context.set_alpn_protocols(["h2"])
    if member is not None:
        save_identity(home, member)
        context.load_cert_chain(home / "identity.pem")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=HUB_NAME) as link:
                # In TLS 1.3 a refusal of the certificate comes with the first answer.
                return link.recv(9) != b""
        except (ssl.SSLError, ConnectionError):
            return False


def test_tls_itself_refuses_who_has_no_good_certificate(
    federation: FederationDirectory, renewals: int, tmp_path: Path
) -> None:
    authority = federation.authority_certificate
    good = make_member(federation, "telco")
    assert is_heard(renewals, authority=authority, member=good, home=tmp_path / "good")
    past = SetClock()
    past.advance(days=-100)
    expired = make_member(FederationDirectory(federation.directory, now=past), "shop")
    foreign = make_member(make_federation(tmp_path / "other", SetClock()), "telco")
    for name, member in {
        "none": None,
        "expired": expired,
        "foreign": foreign,
        "hub": federation.hub_identity(),
    }.items():
        heard = is_heard(renewals, authority=authority, member=member, home=tmp_path / name)
        assert not heard, name


def test_no_plaintext(renewals: int, enrolment: int) -> None:
    for port in (renewals, enrolment):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
            raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
            assert b"HTTP" not in raw.recv(100)


def test_two_hubs_do_not_share_a_port(federation: FederationDirectory, enrolment: int) -> None:
    second = enrolment_service(federation.directory)  # at the address that is told, and taken
    with pytest.raises(RunError, match=says("federation.toml", "listen")):
        second.start()
    second.stop(0)


def test_a_hub_that_listens_shows_its_renewed_certificate(tmp_path: Path) -> None:
    clock = SetClock()
    clock.advance(days=-60)
    federation = make_federation(tmp_path / "fed", clock)
    door = enrolment_service(federation.directory, address="127.0.0.1:0", now=clock)
    with running(door) as port:

        def shown() -> x509.Certificate:
            pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=20)
            return load_certificate(pem.encode(), "shown")

        first = shown()
        assert shown() == first
        clock.advance(days=61)
        assert shown().not_valid_after_utc > first.not_valid_after_utc


# Joining


def test_a_party_joins(
    federation: FederationDirectory, invitation: Invitation, table: Path, tmp_path: Path
) -> None:
    file, home = tmp_path / "telco.invitation", tmp_path / "home"
    joined = join(file, data=table, id_column="customer_id", home=home)
    assert joined.is_new
    assert (joined.data.num_rows, joined.data.num_duplicates) == (3, 1)
    assert joined.data.columns == ("calls", "plan")
    settings = read_party(home)
    assert settings.data == table.resolve()
    assert settings.hub == federation.settings.address
    # Nothing leaves unprotected, and no seed is shared, unless that was said.
    assert (settings.allow_unprotected, settings.common_seed) == (False, False)
    identity = own_identity(home)
    assert sorted(path.name for path in home.iterdir()) == [
        "format.json",
        "identity.pem",
        "party.toml",
    ]
    for path in home.iterdir():
        assert path.stat().st_mode & 0o077 == 0
    for path in filter(Path.is_file, federation.directory.rglob("*")):
        assert identity.key not in path.read_bytes()
    # The same again is no second use, and may say more.
    again = join(
        file,
        data=table,
        id_column="customer_id",
        home=home,
        allow_unprotected=True,
        common_seed=True,
    )
    assert not again.is_new
    settings = read_party(home)
    assert (settings.allow_unprotected, settings.common_seed) == (True, True)
    assert own_identity(home) == identity
    # At another place it is.
    with pytest.raises(IdentityRefused, match=says("'telco'", "used")):
        join(file, data=table, id_column="customer_id", home=tmp_path / "thief")
    assert not (tmp_path / "thief").exists()


def test_an_answer_that_was_lost_is_had_again(
    invitation: Invitation, nowhere: str, table: Path, tmp_path: Path
) -> None:
    """The party crashes after the hub has signed, and before it has kept the certificate."""
    file, home = tmp_path / "telco.invitation", tmp_path / "home"
    moved = replace(invitation, enrolment=nowhere)
    (tmp_path / "moved").write_text(json.dumps(vars(moved)))
    with pytest.raises(RunError, match=says(nowhere, "federation enrol")):
        join(tmp_path / "moved", data=table, id_column="customer_id", home=home)
    (pending,) = home.iterdir()
    assert pending.stat().st_mode & 0o077 == 0
    lost = request_enrolment(invitation, pending.read_bytes())
    join(file, data=table, id_column="customer_id", home=home)
    assert own_identity(home) == lost
    assert not pending.exists()


def test_a_wrong_table_spends_no_invitation(
    federation: FederationDirectory, invitation: Invitation, table: Path, tmp_path: Path
) -> None:
    file = tmp_path / "telco.invitation"
    only_ids, empty, holes = (tmp_path / f"{name}.csv" for name in ("ids", "empty", "holes"))
    only_ids.write_text("customer_id\n1\n")
    empty.write_text("customer_id,calls\n")
    holes.write_text("customer_id,calls\n1,2\n,3\n")
    cases = [
        (table, "customer", says("customers.csv", "'customer'", "customer_id")),
        (tmp_path / "absent.csv", "customer_id", says("absent.csv", "no such file")),
        (file, "customer_id", says(file, ".parquet")),
        (only_ids, "customer_id", says("ids.csv", "columns", "'customer_id'")),
        (empty, "customer_id", says("empty.csv", "rows")),
        (holes, "customer_id", says("holes.csv", "'customer_id'", "1 rows", "row 1")),
    ]
    for data, column, words in cases:
        with pytest.raises(DataError, match=words):
            join(file, data=data, id_column=column, home=tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "no such file"),
        ("methods = [", "not readable as TOML"),
        ('method = ["splitnn"]', "method: unknown key"),
        ("rows = 2.0", "rows: a share above 0"),
        ('methods = ["splitn"]', "methods: no method 'splitn'; did you mean 'splitnn'"),
        ('columns = ["call"]', "columns: no column of the table 'call'; did you mean 'calls'"),
        ('key = ["customer"]', "key: no column of the table 'customer'"),
    ],
)
def test_a_wrong_policy_spends_no_invitation(
    federation: FederationDirectory,
    invitation: Invitation,
    table: Path,
    tmp_path: Path,
    text: str | None,
    complaint: str,
) -> None:
    policy, home = tmp_path / "policy.toml", tmp_path / "home"
    if text is not None:
        policy.write_text(text)
    file = tmp_path / "telco.invitation"
    with pytest.raises(ConfigError, match=r"--policy: .*policy\.toml") as caught:
        join(file, data=table, id_column="customer_id", home=home, policy=policy)
    assert complaint in str(caught.value)
    assert not home.exists()
    policy.write_text('methods = ["splitnn"]\ncolumns = ["calls"]\nkey = ["customer_id"]\n')
    assert join(file, data=table, id_column="customer_id", home=home, policy=policy).is_new


def test_how_a_link_behaves_is_set_at_home_and_stays(
    federation: FederationDirectory, invitation: Invitation, table: Path, tmp_path: Path
) -> None:
    file, home = tmp_path / "telco.invitation", tmp_path / "home"
    join(file, data=table, id_column="customer_id", home=home)
    assert "[link]" not in (home / "party.toml").read_text()
    assert read_party(home).link == LinkSpec()
    with (home / "party.toml").open("a") as settings:
        settings.write("\n[link]\nkeepalive = 5.0\nbackoff_most = 60\n")
    assert read_party(home).link == LinkSpec(keepalive=5.0, backoff_most=60.0)
    join(file, data=table, id_column="customer_id", home=home)
    assert read_party(home).link == LinkSpec(keepalive=5.0, backoff_most=60.0)
    with (home / "party.toml").open("a") as settings:
        settings.write("backof = 1\n")
    with pytest.raises(ConfigError, match=says("party.toml", "link.backof", "'backoff'")):
        read_party(home)


def test_parquet_is_read_by_its_header_and_ids(tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / "customers.parquet"
    pd.DataFrame({"customer_id": [5, 6, 6], "calls": [1.0, 2.0, 3.0]}).to_parquet(path)
    summary = check_data(path, "customer_id")
    assert (summary.num_rows, summary.num_duplicates, summary.columns) == (3, 1, ("calls",))


def test_an_expired_invitation_is_found_at_home(
    invitation: Invitation, table: Path, tmp_path: Path
) -> None:
    clock = SetClock(invitation.expiry + datetime.timedelta(seconds=1))
    with pytest.raises(IdentityRefused) as refused:
        join(
            tmp_path / "telco.invitation",
            data=table,
            id_column="customer_id",
            home=tmp_path / "home",
            now=clock,
        )
    assert refused.value.reason == Reason.EXPIRED_INVITATION


def test_anothers_home_is_left_alone(
    federation: FederationDirectory, invitation: Invitation, table: Path, tmp_path: Path
) -> None:
    file, home = tmp_path / "telco.invitation", tmp_path / "home"
    join(file, data=table, id_column="customer_id", home=home)
    before = load_identity(home)
    invite(federation, "shop", tmp_path / "shop.invitation")
    with pytest.raises(ConfigError, match=says("--home", "'telco'", "'bank'")):
        join(tmp_path / "shop.invitation", data=table, id_column="customer_id", home=home)
    with pytest.raises(ConfigError, match=says("--home", "customers.csv", "file")):
        join(tmp_path / "shop.invitation", data=table, id_column="customer_id", home=table)
    assert load_identity(home) == before
    # A new invitation of the same party replaces the identity.
    again = tmp_path / "again.invitation"
    invite(federation, "telco", again, replace_member=True)
    assert join(again, data=table, id_column="customer_id", home=home).is_new
    assert load_identity(home).certificate != before.certificate
    assert read_invitation(again).party == "telco"


def test_an_identity_is_renewed_in_time(
    federation: FederationDirectory,
    invitation: Invitation,
    nowhere: str,
    table: Path,
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    join(tmp_path / "telco.invitation", data=table, id_column="customer_id", home=home)
    assert not renew_if_due(home)
    # A certificate of a federation where they last 5 days, three and a half of which are over.
    past = SetClock()
    past.advance(days=-3.5)
    file = federation.directory / "federation.toml"
    file.write_text(file.read_text().replace("= 90", "= 5"))
    due = make_member(FederationDirectory(federation.directory, now=past), "telco", replace=True)
    save_identity(home, due)
    assert renew_if_due(home)
    assert load_identity(home).certificate != due.certificate
    assert not renew_if_due(home)
    # A hub that is away is no harm yet.
    save_identity(home, due)
    write_party(home, replace(read_party(home), hub=nowhere))
    assert not renew_if_due(home)
    assert load_identity(home) == due
