"""Who may come in: a peer's certificate to a party's name, or a refusal with a named reason.

TLS has already checked the chain and the time when a hub asks; all of it is checked again here,
because the reason must be nameable and because the register knows more: revocations, renewals,
parties that enrolled again. A name that is connected already is the hub's own affair, because
only it can tell a party that dials again from another process with the same key.
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
    serial_of,
)
from colonnade.federate.federation import Federation
from colonnade.federate.register import Register

__all__ = ["Admission"]

_LOG = logging.getLogger("colonnade.membership")


class Admission:
    """The hub's door: call it with a peer's certificate (PEM) for the party's name."""

    def __init__(self, directory: Path, *, now: Now = now) -> None:
        self._federation = Federation(directory, now=now)
        self._authority = load_certificate(
            self._federation.authority_certificate, "the authority's certificate"
        )
        # The certificate that each party came in with last.
        self._admitted: dict[str, bytes] = {}
        self._turn = threading.Lock()

    def __call__(self, pem: bytes) -> str:
        """The name of the party that this certificate admits; IdentityRefused if it does not."""
        # Under the lock, or a party that comes in with a renewed certificate could be looked up
        # by its old one in between, and be thrown out.
        with self._turn:
            name = self._checked(pem)
            self._admitted[name] = pem
        return name

    def no_longer(self) -> dict[str, str]:
        """Parties that came in and belong no more, each with the message; told once.

        The time is not looked at: a clock that jumps must not end links that are sound, and an
        agent renews its identity long before it expires.
        """
        refused = {}
        with self._turn:
            try:
                register = self._federation.register.read()
            except StorageError as error:
                _LOG.error("the register can't be minded: %s", error)
                return {}  # it throws nobody out
            for name, pem in self._admitted.items():
                serial = serial_of(load_certificate(pem, f"the certificate of '{name}'"))
                try:
                    _check_standing(register, name, serial)
                except IdentityRefused as error:
                    refused[name] = str(error)
            for name in refused:
                del self._admitted[name]
        return refused

    def _checked(self, pem: bytes) -> str:
        certificate = load_certificate(pem, "the certificate that was shown")
        check_issued(certificate, self._authority, Role.PARTY, "the certificate that was shown")
        name, serial = name_of(certificate), serial_of(certificate)
        try:
            register = self._federation.register.read()
            _check_standing(register, name, serial)
            check_time(certificate, self._federation.now(), f"the certificate of '{name}'")
            if register.members[name].successor == serial:
                self._promote(name, serial)
        except StorageError as error:
            # The message goes to whoever asks, and this machine's paths are none of its business.
            _LOG.error("nobody can be admitted: %s", error)
            raise RunError("the hub can't check identities at present; try again later") from error
        return name

    def _promote(self, name: str, serial: str) -> None:
        """A renewed certificate is used for the first time: the one before has had its day."""
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
        raise IdentityRefused(
            f"'{name}' was revoked on {register.revoked[serial].revoked[:10]}; only the label "
            "holder can invite it again",
            reason=Reason.REVOKED,
        )
    member = register.members.get(name)
    if member is None:
        raise IdentityRefused(
            f"no member of this federation is called '{name}'; join by an invitation",
            reason=Reason.UNKNOWN_NAME,
        )
    if serial not in (member.serial, member.successor):
        raise IdentityRefused(
            f"'{name}' has a newer identity than this one: it was renewed, or enrolled again; "
            "use the newer one, or ask the label holder for a new invitation",
            reason=Reason.SUPERSEDED,
        )
