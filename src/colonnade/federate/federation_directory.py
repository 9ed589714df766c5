"""A federation's directory at the label holder: its files, settings and authority.

=====================  =========================================================  ==========
file                   what it is                                                 mode
=====================  =========================================================  ==========
format.json            which format the directory has                             anybody
federation.toml        the label holder's name, and the addresses                 anybody
authority.pem          the authority's certificate                                anybody
authority.key.pem      the authority's key: whoever has it can admit anybody      owner only
identity.pem           the hub's own key and certificate                          owner only
account_seals.json     seals of parties' accounts, which only they can read       anybody
serving.lock           held by who serves                                         owner only
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
from cryptography.hazmat.primitives.asymmetric import ec

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
    load_key,
    name_of,
    new_key,
    now,
    signing_request,
)
from colonnade.federate.hub_record import HubRecord
from colonnade.federate.identities import (
    IDENTITY,
    check_identity,
    is_renewal_due,
    load_identity,
    save_identity,
)
from colonnade.federate.offline_signing import (
    AwaitsSigning,
    CertificateRequest,
    PendingRequests,
    Requests,
    Signed,
    print_of,
)
from colonnade.federate.register import RegisterFile
from colonnade.files import write_atomically
from colonnade.formats import FEDERATION, check_format, write_format

__all__ = [
    "FederationDirectory",
    "FederationSettings",
    "read_toml",
    "split_address",
    "written_toml",
]

SETTINGS = "federation.toml"
AUTHORITY = "authority.pem"
AUTHORITY_KEY = "authority.key.pem"
# The key of the hub's next identity, while the authority signs it elsewhere.
_NEXT_KEY = "identity.next.key.pem"


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """Content of federation.toml.

    Parties dial ``address``, ``serving`` to be asked for predictions beside a training, and
    ``enrolment`` to join. The hub listens at the same ports of
    ``listen``, by default at the addresses themselves. ``health`` is where a hub that runs tells
    its health and metrics; port 0 is any free one, told in the log. ``max_kept_megabytes`` is what
    checkpoints of the runs beside a new one may take before it begins.
    """

    name: str
    address: str
    enrolment: str
    serving: str | None = None
    listen: str | None = None
    certificate_days: int = 90
    health: str = "127.0.0.1:0"
    max_kept_megabytes: int | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        own, enrolment = split_address(self.address, "address"), self.enrolment
        if split_address(enrolment, "enrolment")[1] == own[1]:
            raise ConfigError("enrolment: needs another port than address")
        taken = (self.address, enrolment)
        if self.serving is not None and split_address(self.serving, "serving")[1] in {
            split_address(item, "address")[1] for item in taken
        }:
            raise ConfigError("serving: needs another port than address and enrolment")
        if not 1 <= self.certificate_days <= 825:
            raise ConfigError(
                f"certificate_days: must be from 1 to 825, got {self.certificate_days}"
            )
        if self.max_kept_megabytes is not None and self.max_kept_megabytes < 1:
            raise ConfigError(
                f"max_kept_megabytes: must be at least 1, got {self.max_kept_megabytes}"
            )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts at which parties reach the hub."""
        found = (self.address, self.enrolment, *([self.serving] if self.serving else []))
        return tuple(dict.fromkeys(split_address(item, "address")[0] for item in found))

    @property
    def listen_address(self) -> str:
        """The address at which the hub listens for parties."""
        return self._listening(self.address)

    @property
    def listen_serving(self) -> str:
        """The address at which a hub that serves listens for parties."""
        return self._listening(self.serving or self.address)

    @property
    def listen_enrolment(self) -> str:
        """The address at which the hub listens for parties that join."""
        return self._listening(self.enrolment)

    def _listening(self, address: str) -> str:
        host, port = split_address(address, "address")
        host = self.listen or host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class FederationDirectory:
    """A federation's directory, opened; ``now`` is the clock."""

    def __init__(self, directory: Path, *, now: Now = now) -> None:
        self.directory = directory
        self.now = now
        if not (directory / SETTINGS).is_file():
            raise ConfigError(
                f"{directory}: not a federation's directory (no {SETTINGS}); make one with: "
                "colonnade federation init"
            )
        check_format(directory, FEDERATION)
        try:
            self.settings = parse(FederationSettings, read_toml(directory / SETTINGS))
        except ConfigError as error:
            raise ConfigError(f"{directory / SETTINGS}: {error}") from error
        self.register = RegisterFile(directory)
        self.record = HubRecord(directory, self.settings.name)
        self.pending = PendingRequests(directory)

    @classmethod
    def create(
        cls, directory: Path, settings: FederationSettings, *, now: Now = now
    ) -> FederationDirectory:
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
        write_format(directory, FEDERATION)
        # Last: with this file the directory is a federation's.
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

    @property
    def has_key(self) -> bool:
        """Whether the authority's key is here; if not, certificates are signed elsewhere."""
        return (self.directory / AUTHORITY_KEY).exists()

    def issue_member(
        self, name: str, key: ec.EllipticCurvePublicKey, request: bytes
    ) -> x509.Certificate:
        """A party's certificate for its key, from now on; ``request`` (PEM) is what it sent.

        Raises AwaitsSigning where the authority's key is elsewhere and has not signed it yet.
        """
        days = self.settings.certificate_days
        if not self.has_key:
            return self.pending.certificate_for(
                CertificateRequest(name=name, request=request.decode(), days=days)
            )
        return self.authority().issue(name, key, role=Role.PARTY, moment=self.now(), days=days)

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
                    # Made while the clock was ahead: a new one mends that.
                    if refused.reason != Reason.NOT_YET_VALID:
                        raise
                else:
                    return identity
        if not self.has_key:
            return self._identity_signed_elsewhere()
        identity = _hub_identity(self.authority(), self.settings, self.now)
        save_identity(self.directory, identity)
        return identity

    def _identity_signed_elsewhere(self) -> Identity:
        """The hub's next identity if it was signed; the present one as long as it is good."""
        waiting = self.directory / _NEXT_KEY
        if not waiting.exists():
            write_atomically(waiting, key_pem(new_key()), owner_only=True)
        key = load_key(_read(waiting), str(waiting))
        settings = self.settings
        request = CertificateRequest(
            name=settings.name,
            role="hub",
            request=signing_request(key, settings.name).decode(),
            days=settings.certificate_days,
            hosts=settings.hosts,
        )
        try:
            certificate = self.pending.certificate_for(request)
        except AwaitsSigning:
            present = load_identity(self.directory)
            check_identity(present, Role.HUB, self.now(), str(self.directory / IDENTITY))
            return present
        identity = Identity(
            name=settings.name,
            authority=self.authority_certificate,
            certificate=certificate_pem(certificate),
            key=key_pem(key),
        )
        save_identity(self.directory, identity)
        self.pending.drop(request)
        waiting.unlink()
        return identity

    def export_requests(self) -> Requests:
        """Everything that waits to be signed where the authority's key is."""
        return Requests(
            federation=self.settings.name,
            authority=print_of(self.authority_certificate),
            requests=self.pending.waiting(),
        )

    def import_signed(self, signed: Signed) -> tuple[str, ...]:
        """Keep certificates for those who asked; their names. All are checked first."""
        if signed.authority != print_of(self.authority_certificate):
            raise ConfigError("these certificates are of another federation's authority")
        authority = load_certificate(self.authority_certificate, "the authority's certificate")
        for item in signed.signed:
            self.pending.check(item, authority)
        for item in signed.signed:
            self.record.note("signed elsewhere", party=item.request.name, role=item.request.role)
            self.pending.take(item, authority)
        return tuple(item.request.name for item in signed.signed)


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
    """A TOML file's content; the caller puts the file's name in front of a ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not readable as TOML: {error}") from error
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error


def written_toml(content: Mapping[str, Any], *, under: str = "") -> str:
    """Keys as TOML, tables after them; without what is None and without empty tables."""
    tables = {key: item for key, item in content.items() if isinstance(item, Mapping)}
    plain = {key: item for key, item in content.items() if key not in tables and item is not None}
    # JSON leaves one character as it is that TOML does not allow.
    text = "".join(
        f"{key} = {json.dumps(item, ensure_ascii=False)}\n".replace("\x7f", "\\u007f")
        for key, item in plain.items()
    )
    if under and text:
        text = f"\n[{under}]\n{text}"
    return text + "".join(
        written_toml(item, under=f"{under}.{key}" if under else key) for key, item in tables.items()
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error
