"""Admission of peers: a certificate gives a party's name, or is refused with a named reason.

TLS has already checked the chain and the time. Both are checked again here, because a refusal
names its reason, and because the register knows more: revocations, renewals, parties that enrolled
again. The hub itself decides about a name that is connected already: only the hub can tell a party
that dials again from another process with the same key.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

from colonnade.core.errors import IdentityRefused, RunError, StorageError
from colonnade.federate.certificates import (
    Now,
    Reason,
    Role,
    check_issued,
    check_time,
    load_certificate,
    name_of,
    now,
    refused,
    serial_of,
)
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.register import Register

__all__ = ["BEHIND", "Admission"]

BEHIND = "its record is older than what a party has seen of it; the label holder has to look"

_LOG = logging.getLogger("colonnade.membership")


class Admission:
    """The hub calls this with a peer's certificate (PEM) and gets the party's name."""

    def __init__(self, directory: Path, *, now: Now = now) -> None:
        self._federation = FederationDirectory(directory, now=now)
        self._authority = load_certificate(
            self._federation.authority_certificate, "the authority's certificate"
        )
        # The certificate that each party came in with last.
        self._admitted: dict[str, bytes] = {}
        self._turn = threading.Lock()

    def __call__(self, pem: bytes) -> str:
        """The name of the party that this certificate admits; IdentityRefused if it does not."""
        # Without the lock, ``newly_refused`` could look up a party by its old certificate while
        # the party comes in with a renewed one, and the party would be cut off.
        with self._turn:
            name = self._checked(pem)
            self._admitted[name] = pem
        return name

    def newly_refused(self) -> dict[str, str]:
        """Admitted parties that are refused since, each with the message; told once.

        The time is not checked: a clock that jumps must not end sound links, and an agent renews
        its identity long before it expires.
        """
        ended = {}
        with self._turn:
            try:
                register = self._federation.register.read()
            except StorageError as error:
                _LOG.error("the register can't be read: %s", error)
                return {}  # nobody is cut off
            for name, pem in self._admitted.items():
                serial = serial_of(load_certificate(pem, f"the certificate of '{name}'"))
                try:
                    _check_standing(register, name, serial)
                except IdentityRefused as error:
                    ended[name] = str(error)
            for name in ended:
                del self._admitted[name]
        return ended

    def _checked(self, pem: bytes) -> str:
        certificate = load_certificate(pem, "the certificate that was shown")
        check_issued(certificate, self._authority, Role.PARTY, "the certificate that was shown")
        name, serial = name_of(certificate), serial_of(certificate)
        try:
            if self._federation.record.is_behind:
                # Whoever was revoked since could come in again.
                _LOG.error("nobody can be admitted: %s", BEHIND)
                raise RunError(f"the hub admits nobody at present: {BEHIND}")
            register = self._federation.register.read()
            _check_standing(register, name, serial)
            check_time(certificate, self._federation.now(), f"the certificate of '{name}'")
            if register.members[name].successor == serial:
                self._promote(name, serial)
        except StorageError as error:
            # The message goes to the peer, which must not learn this machine's paths.
            _LOG.error("nobody can be admitted: %s", error)
            raise RunError("the hub can't check identities at present; try again later") from error
        return name

    def _promote(self, name: str, serial: str) -> None:
        """A renewed certificate is used for the first time: it replaces the one before."""
        with self._federation.register.changing() as register:
            _check_standing(register, name, serial)
            member = register.members[name]
            if member.successor == serial and member.successor_expires is not None:
                register.members[name] = replace(
                    member,
                    serial=serial,
                    expires=member.successor_expires,
                    successor=None,
                    successor_expires=None,
                )


def _check_standing(register: Register, name: str, serial: str) -> None:
    if serial in register.revoked:
        raise refused(
            Reason.REVOKED,
            f"'{name}' was revoked on {register.revoked[serial].revoked[:10]}; only the label "
            "holder can invite it again",
        )
    member = register.members.get(name)
    if member is None:
        raise refused(
            Reason.UNKNOWN_NAME,
            f"no member of this federation is called '{name}'; join by an invitation",
        )
    if serial not in (member.serial, member.successor):
        raise refused(
            Reason.SUPERSEDED,
            f"'{name}' has a newer identity than this one: it was renewed, or enrolled again; "
            "use the newer one, or ask the label holder for a new invitation",
        )
