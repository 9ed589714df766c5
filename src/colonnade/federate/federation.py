"""A federation's directory at the label holder.

=====================  =========================================================  ==========
file                   what it is                                                 mode
=====================  =========================================================  ==========
federation.toml        the label holder's name, and the addresses                 anybody
authority.pem          the authority's certificate                                anybody
authority.key.pem      the authority's key: whoever has it can admit anybody      owner only
identity.pem           the hub's own key and certificate                          owner only
register.json          members, invitations (hashes of tokens), revocations       owner only
=====================  =========================================================  ==========
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from colonnade.core.config import parse
from colonnade.core.errors import ConfigError, IdentityRefused, StorageError
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.authority import Authority
from colonnade.federate.certificates import (
    Now,
    Reason,
    Role,
    certificate_pem,
    check_name,
    key_pem,
    load_certificate,
    name_of,
    new_key,
    now,
)
from colonnade.federate.identities import (
    IDENTITY,
    check_identity,
    is_renewal_due,
    load_identity,
    save_identity,
)
from colonnade.federate.register import RegisterFile
from colonnade.files import write_atomically

__all__ = ["Federation", "FederationSettings", "read_toml", "split_address", "written_toml"]

SETTINGS = "federation.toml"
AUTHORITY = "authority.pem"
AUTHORITY_KEY = "authority.key.pem"


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """Content of federation.toml.

    Parties dial ``address``, and ``enrolment`` to join. The hub listens on all of ``listen`` at the
    same ports, by default on the addresses themselves.
    """

    name: str
    address: str
    enrolment: str
    listen: str | None = None
    certificate_days: int = 90

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        own, enrolment = split_address(self.address, "address"), self.enrolment
        if split_address(enrolment, "enrolment")[1] == own[1]:
            raise ConfigError("enrolment: needs another port than address")
        if not 1 <= self.certificate_days <= 825:
            raise ConfigError(
                f"certificate_days: must be from 1 to 825, got {self.certificate_days}"
            )

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where the hub is to be found."""
        found = (self.address, self.enrolment)
        return tuple(dict.fromkeys(split_address(item, "address")[0] for item in found))

    @property
    def listen_address(self) -> str:
        """Where the hub listens for parties."""
        return self._listening(self.address)

    @property
    def listen_enrolment(self) -> str:
        """Where the hub listens for those who join."""
        return self._listening(self.enrolment)

    def _listening(self, address: str) -> str:
        host, port = split_address(address, "address")
        host = self.listen or host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Federation:
    """A federation's directory, opened; ``now`` is the clock."""

    def __init__(self, directory: Path, *, now: Now = now) -> None:
        self.directory = directory
        self.now = now
        if not (directory / SETTINGS).is_file():
            raise ConfigError(
                f"{directory}: not a federation's directory (no {SETTINGS}); make one with: "
                "colonnade federation init"
            )
        try:
            self.settings = parse(FederationSettings, read_toml(directory / SETTINGS))
        except ConfigError as error:
            raise ConfigError(f"{directory / SETTINGS}: {error}") from error
        self.register = RegisterFile(directory)

    @classmethod
    def create(cls, directory: Path, settings: FederationSettings, *, now: Now = now) -> Federation:
        """Make a federation: its authority, the hub's own identity, an empty register."""
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(f"{directory}: exists and is not empty; name another directory")
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        except OSError as error:
            raise StorageError(f"{directory}: can't be made: {error.strerror}") from error
        authority = Authority.create(settings.name, moment=now())
        write_atomically(directory / AUTHORITY_KEY, authority.key, owner_only=True)
        write_atomically(directory / AUTHORITY, authority.certificate)
        RegisterFile(directory).create()
        save_identity(directory, _hub_identity(authority, settings, now))
        # Last, because it is what makes the directory a federation's.
        content = {key: value for key, value in vars(settings).items() if value is not None}
        write_atomically(directory / SETTINGS, written_toml(content).encode())
        return cls(directory, now=now)

    @property
    def authority_certificate(self) -> bytes:
        """The authority's certificate: public."""
        return _read(self.directory / AUTHORITY)

    def authority(self) -> Authority:
        """The authority, with its key."""
        key = _read(self.directory / AUTHORITY_KEY)
        return Authority(certificate=self.authority_certificate, key=key)

    def hub_identity(self) -> Identity:
        """The hub's own identity, made anew when it is due or when the addresses changed."""
        path = self.directory / IDENTITY
        if path.exists():
            identity = load_identity(self.directory)
            is_fitting = set(self.settings.hosts) <= _hosts_of(identity.certificate)
            if is_fitting and not is_renewal_due(identity.certificate, self.now()):
                try:
                    check_identity(identity, Role.HUB, self.now(), str(path))
                except IdentityRefused as refused:
                    # From a day when the clock was ahead: the authority can mend that.
                    if refused.reason != Reason.NOT_YET_VALID:
                        raise
                else:
                    return identity
        identity = _hub_identity(self.authority(), self.settings, self.now)
        save_identity(self.directory, identity)
        return identity


def _hub_identity(authority: Authority, settings: FederationSettings, now: Now) -> Identity:
    key = new_key()
    certificate = authority.issue(
        settings.name,
        key.public_key(),
        role=Role.HUB,
        moment=now(),
        days=settings.certificate_days,
        hosts=settings.hosts,
    )
    return Identity(
        name=settings.name,
        authority=authority.certificate,
        certificate=certificate_pem(certificate),
        key=key_pem(key),
    )


def _hosts_of(pem: bytes) -> set[str]:
    certificate = load_certificate(pem, "the hub's certificate")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(item) for item in names.get_values_for_type(x509.IPAddress)}
    return {name_of(certificate), *names.get_values_for_type(x509.DNSName), *addresses}


def split_address(address: str, where: str) -> tuple[str, int]:
    """HOST:PORT into its parts; an IPv6 address stands in brackets."""
    host, separator, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    is_valid = separator and host and port.isascii() and port.isdigit()
    if not is_valid or not 1 <= int(port) <= 65535 or (":" in host) != address.startswith("["):
        raise ConfigError(
            f"{where}: expected HOST:PORT, such as hub.bank.example:7443, got '{address}'"
        )
    return host, int(port)


def read_toml(path: Path) -> Mapping[str, Any]:
    """A TOML file's content; whoever calls names the file in front of a mistake."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not readable as TOML: {error}") from error
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error


def written_toml(content: Mapping[str, str | int | float]) -> str:
    """Plain keys as TOML."""
    lines = []
    for key, value in content.items():
        text = json.dumps(value, ensure_ascii=False)
        # The one character that JSON leaves as it is and TOML does not allow.
        lines.append(f"{key} = {text}".replace("\x7f", "\\u007f"))
    return "\n".join(lines) + "\n"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error
