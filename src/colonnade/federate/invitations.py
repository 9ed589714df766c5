"""Members: invited by a file, enrolled with its token, revoked, listed.

The label holder hands an invitation's file to one party. The file pins the federation's authority,
so that the party enrols at no other hub. It carries a random token, so that nobody else can enrol
in the party's place. The hub keeps the token's hash only.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import re
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

from colonnade.core.config import dump, parse
from colonnade.core.errors import ColonnadeError, ConfigError, IdentityRefused
from colonnade.federate.certificates import (
    Reason,
    certificate_pem,
    check_name,
    key_print,
    load_certificate,
    load_request,
    refused,
    serial_of,
)
from colonnade.federate.federation_directory import FederationDirectory, split_address
from colonnade.federate.offline_signing import AwaitsSigning
from colonnade.federate.register import Invited, Member, Register, Revocation
from colonnade.files import write_atomically

__all__ = [
    "Invitation",
    "enrol",
    "invite",
    "membership_rows",
    "parse_duration",
    "read_invitation",
    "revoke",
]

_LOG = logging.getLogger("colonnade.membership")
_KIND = "colonnade invitation"
# An invitation holds one certificate and a few lines.
_MOST_BYTES = 16_384
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """Content of an invitation's file; its holder can enrol as ``party``, once."""

    kind: str = _KIND
    version: int = 1
    label_holder: str
    party: str
    address: str
    enrolment: str
    serving: str | None = None
    expires: str
    token: str = field(repr=False)
    authority: str

    def __post_init__(self) -> None:
        if self.kind != _KIND or self.version != 1:
            raise ConfigError(f"kind: expected '{_KIND}' of version 1")
        check_name(self.label_holder, "label_holder")
        check_name(self.party, "party")
        split_address(self.address, "address")
        split_address(self.enrolment, "enrolment")
        if self.serving is not None:
            split_address(self.serving, "serving")
        _moment(self.expires, "expires")
        if not re.fullmatch(r"[A-Za-z0-9_-]{43}", self.token):
            raise ConfigError("token: not a token of an invitation")

    @property
    def expiry(self) -> datetime.datetime:
        """When the invitation expires."""
        return _moment(self.expires, "expires")


def parse_duration(text: str, where: str) -> datetime.timedelta:
    """``7d``, ``12h`` or ``30m``."""
    found = re.fullmatch(r"([1-9][0-9]{0,3})([mhd])", text)
    if found is None:
        raise ConfigError(f"{where}: expected a duration such as 7d, 12h or 30m, got '{text}'")
    return datetime.timedelta(**{_UNITS[found[2]]: int(found[1])})


def invite(
    federation: FederationDirectory,
    party: str,
    out: Path,
    *,
    valid: datetime.timedelta = datetime.timedelta(days=7),
    replace_member: bool = False,
) -> Invitation:
    """Write an invitation for a party; an earlier one that is still open is withdrawn."""
    check_name(party, "party")
    settings = federation.settings
    if party == settings.name:
        raise ConfigError(f"party: '{party}' is the label holder; it belongs already")
    if out.exists():
        raise ConfigError(f"{out}: exists; name another file with --out")
    moment = federation.now()
    invitation = Invitation(
        label_holder=settings.name,
        party=party,
        address=settings.address,
        enrolment=settings.enrolment,
        serving=settings.serving,
        expires=_written(moment + valid),
        token=secrets.token_urlsafe(32),
        authority=federation.authority_certificate.decode(),
    )
    fields = {key: item for key, item in dump(invitation).items() if item is not None}
    content = json.dumps(fields, indent=2) + "\n"
    is_written = False
    try:
        with federation.register.changing() as register:
            if party in register.members and not replace_member:
                raise ConfigError(
                    f"party: '{party}' is a member already; --replace invites it anew, and its "
                    "present identity is good until it has joined again"
                )
            _withdraw(register, party, moment)
            register.invitations[hashed(invitation.token)] = Invited(
                party=party, made=_written(moment), expires=invitation.expires
            )
            federation.record.note("invited", party=party, expires=invitation.expires)
            # Inside the change: if the file can't be written, nobody is invited.
            write_atomically(out, content.encode(), owner_only=True)
            is_written = True
    except ColonnadeError:
        # If the register can't be written, there is no file.
        if is_written:
            out.unlink(missing_ok=True)
        raise
    return invitation


def read_invitation(path: Path) -> Invitation:
    """Read an invitation's file, strictly."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: too large for an invitation")
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; give the path of an invitation") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not an invitation: not text") from error
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    try:
        invitation = parse(Invitation, json.loads(content))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not an invitation: not JSON") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: not an invitation: {error}") from error
    load_certificate(invitation.authority.encode(), f"{path}: authority")
    return invitation


def hashed(token: str) -> str:
    """A token's hash, which the hub keeps; a random token needs no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def enrol(federation: FederationDirectory, token: str, request: bytes) -> bytes:
    """Issue a certificate (PEM) for the request's key to the party that the token invites.

    A party that lost the answer may ask again with the same key, and gets the same answer.
    """
    key = load_request(request)
    own_print, moment = key_print(key), federation.now()
    awaited: AwaitsSigning | None = None
    with federation.register.changing() as register:
        invited = register.invitations.get(hashed(token))
        if invited is None:
            raise refused(
                Reason.UNKNOWN_INVITATION,
                "this federation has not made this invitation; ask the label holder for one",
            )
        if invited.used is not None:
            answered = _earlier_answer(register, invited, own_print)
            if answered is not None:
                return answered
            remedy = "if that was not you, tell the label holder at once, who can revoke it"
            raise _unusable(Reason.USED_INVITATION, invited, "was used", invited.used, remedy)
        if invited.key is not None and invited.key != own_print:
            raise _unusable(
                Reason.USED_INVITATION, invited, "was used with another key", invited.made
            )
        if invited.withdrawn is not None:
            withdrawn = invited.withdrawn
            raise _unusable(Reason.WITHDRAWN_INVITATION, invited, "was withdrawn", withdrawn)
        if moment > _moment(invited.expires, "expires"):
            raise _unusable(Reason.EXPIRED_INVITATION, invited, "expired", invited.expires)
        try:
            certificate = federation.issue_member(invited.party, key, request)
        except AwaitsSigning as error:
            # From now on the invitation is this key's.
            register.invitations[hashed(token)] = replace(invited, key=own_print)
            awaited = error
        else:
            pem = certificate_pem(certificate)
            register.members[invited.party] = Member(
                enrolled=_written(moment),
                serial=serial_of(certificate),
                expires=_written(certificate.not_valid_after_utc),
            )
            federation.record.note("enrolled", party=invited.party, serial=serial_of(certificate))
            register.invitations[hashed(token)] = replace(
                invited, used=_written(moment), key=own_print, certificate=pem.decode()
            )
    if awaited is not None:
        raise awaited
    fields = {"party": invited.party, "serial": serial_of(certificate)}
    _LOG.info("a party enrolled", extra={"fields": fields})
    return pem


def revoke(federation: FederationDirectory, party: str) -> tuple[int, int]:
    """Revoke a party; returns how many certificates and open invitations of it ended."""
    moment = federation.now()
    with federation.register.changing() as register:
        member = register.members.pop(party, None)
        num_withdrawn = _withdraw(register, party, moment)
        if member is None and not num_withdrawn:
            known = ", ".join(sorted(register.members)) or "nobody"
            raise ConfigError(
                f"party: '{party}' is no member and has no open invitation (members: {known})"
            )
        serials = [] if member is None else [member.serial, member.successor]
        ended = [serial for serial in serials if serial is not None]
        for serial in ended:
            register.revoked[serial] = Revocation(party=party, revoked=_written(moment))
        federation.record.note("revoked", party=party, serials=ended, invitations=num_withdrawn)
    return len(ended), num_withdrawn


def membership_rows(federation: FederationDirectory) -> list[dict[str, str | None]]:
    """A row each for the label holder, members, open invitations, and revoked parties not back."""
    register, moment = federation.register.read(), federation.now()
    rows: list[dict[str, str | None]] = [_row(federation.settings.name, "label holder", None, None)]
    for name, member in sorted(register.members.items()):
        is_over = _moment(member.expires, "expires") < moment
        what = "expired member" if is_over else "member"
        rows.append(_row(name, what, member.enrolled, member.expires))
    for item in register.invitations.values():
        if _is_open(item) and _moment(item.expires, "expires") >= moment:
            rows.append(_row(item.party, "invited", item.made, item.expires))
    gone = {item.party: item.revoked for item in register.revoked.values()}
    for name, revoked in sorted(gone.items()):
        if name not in register.members:
            rows.append(_row(name, "revoked", revoked, None))
    return rows


def _row(party: str, what: str, since: str | None, expires: str | None) -> dict[str, str | None]:
    return {"party": party, "is": what, "since": since, "expires": expires}


def _is_open(invited: Invited) -> bool:
    return invited.used is None and invited.withdrawn is None


def _earlier_answer(register: Register, invited: Invited, own_print: str) -> bytes | None:
    member = register.members.get(invited.party)
    if invited.certificate is None or invited.key != own_print or member is None:
        return None
    certificate = load_certificate(invited.certificate.encode(), "the register")
    is_current = member.serial == serial_of(certificate)
    return invited.certificate.encode() if is_current else None


def _withdraw(register: Register, party: str, moment: datetime.datetime) -> int:
    open_ones = [
        (token, item)
        for token, item in register.invitations.items()
        if item.party == party and _is_open(item)
    ]
    for token, item in open_ones:
        register.invitations[token] = replace(item, withdrawn=_written(moment))
    return sum(_moment(item.expires, "expires") >= moment for _, item in open_ones)


def _moment(text: str, where: str) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{where}: expected a time, got '{text[:40]}'") from error
    if moment.tzinfo is None:
        raise ConfigError(f"{where}: '{text[:40]}' has no time zone")
    return moment


def _written(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).isoformat(timespec="seconds")


def _unusable(
    reason: Reason,
    invited: Invited,
    how: str,
    when: str,
    remedy: str = "ask the label holder for a new one",
) -> IdentityRefused:
    shown = f"{_moment(when, 'time'):%Y-%m-%d %H:%M} UTC"
    return refused(reason, f"this invitation of '{invited.party}' {how} on {shown}; {remedy}")
