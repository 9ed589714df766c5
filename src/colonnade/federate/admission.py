"""Who may come in: a peer's certificate to a party's name, or a refusal with a named reason.

TLS has already checked the chain and the time when a hub asks; all of it is checked again here,
because the reason must be nameable and because the register knows more: revocations, renewals,
parties that enrolled again. Call it again for a link that has been open for long.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from colonnade.core.errors import IdentityRefused
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


class Admission:
    """The hub's door: call it with a peer's certificate (PEM) for the party's name."""

    def __init__(self, directory: Path, *, now: Now = now) -> None:
        self._federation = Federation(directory, now=now)
        self._authority = load_certificate(
            self._federation.authority_certificate, "the authority's certificate"
        )
        self._connected: set[str] = set()
        self._turn = threading.Lock()

    def __call__(self, pem: bytes) -> str:
        """The name of the party that this certificate admits; IdentityRefused if it does not."""
        certificate = load_certificate(pem, "the certificate that was shown")
        check_issued(certificate, self._authority, Role.PARTY, "the certificate that was shown")
        name, serial = name_of(certificate), serial_of(certificate)
        register = self._federation.register.read()
        where = f"the certificate of '{name}'"
        _check_standing(register, name, serial)
        check_time(certificate, self._federation.now(), where)
        if register.members[name].successor == serial:
            self._promote(name, serial)
        return name

    def enter(self, pem: bytes) -> str:
        """Admit a party that is not connected yet; ``leave`` lets its name go again."""
        name = self(pem)
        with self._turn:
            if name in self._connected:
                raise IdentityRefused(
                    f"'{name}' is connected already; if that is not you, tell the label holder "
                    "that your key was copied",
                    reason=Reason.CONNECTED,
                )
            self._connected.add(name)
        return name

    def leave(self, name: str) -> None:
        """A party is no longer connected."""
        with self._turn:
            self._connected.discard(name)

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
