"""A party's own directory: who it is, where its data and its policy are, which hub it dials.

================  =======================================================================
file              what it is
================  =======================================================================
party.toml        name, hub, data file and id column, policy, where health is told, link
identity.pem      own key, own certificate, the authority's certificate; owner only
================  =======================================================================

The directory is its owner's alone. Relative paths in party.toml begin at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from colonnade.core.config import dump, parse
from colonnade.core.errors import ConfigError, StorageError
from colonnade.fabrics.grpc.identity import Identity
from colonnade.fabrics.grpc.settings import LinkSpec
from colonnade.federate.certificates import Now, Role, check_name, now
from colonnade.federate.federation import read_toml, split_address, written_toml
from colonnade.federate.identities import check_identity, load_identity
from colonnade.files import write_atomically

__all__ = ["PARTY", "PartySettings", "make_home", "own_identity", "read_party", "write_party"]

PARTY = "party.toml"


@dataclass(frozen=True, kw_only=True)
class PartySettings:
    """Content of party.toml.

    ``invitation`` is the hash of the invitation that the identity came by. Port 0 in ``health``
    takes any free port. ``link`` is how the party's end of the link behaves.
    """

    name: str
    label_holder: str
    hub: str
    data: Path
    id: str
    policy: Path | None = None
    health: str = "127.0.0.1:0"
    invitation: str | None = None
    link: LinkSpec = field(default_factory=LinkSpec)

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        check_name(self.label_holder, "label_holder")
        split_address(self.hub, "hub")
        host, separator, port = self.health.rpartition(":")
        if not (separator and host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise ConfigError(
                f"health: expected HOST:PORT, such as 127.0.0.1:7480, got '{self.health}'"
            )


def make_home(home: Path) -> None:
    """Make a party's directory, its owner's alone."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
    except OSError as error:
        raise StorageError(f"{home}: can't be made: {error.strerror}") from error


def write_party(home: Path, settings: PartySettings) -> None:
    """Write party.toml."""
    given = {key: value for key, value in vars(settings).items() if value is not None}
    link, usual = dump(given.pop("link")), dump(LinkSpec())
    text = written_toml({key: str(value) for key, value in given.items()})
    chosen = {key: value for key, value in link.items() if value != usual[key]}
    if chosen:
        text += "\n[link]\n" + written_toml(chosen)
    write_atomically(home / PARTY, text.encode(), owner_only=True)


def read_party(home: Path) -> PartySettings:
    """Read party.toml; paths come back absolute."""
    path = home / PARTY
    if not path.is_file():
        raise ConfigError(
            f"{home}: not a party's directory (no {PARTY}); join a federation first: "
            "colonnade party join INVITATION"
        )
    try:
        settings = parse(PartySettings, read_toml(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    policy = None if settings.policy is None else (home / settings.policy).resolve()
    return replace(settings, data=(home / settings.data).resolve(), policy=policy)


def own_identity(home: Path, *, now: Now = now) -> Identity:
    """The party's identity, checked before anything is dialled."""
    settings = read_party(home)
    identity = replace(load_identity(home), name=settings.name)
    check_identity(identity, Role.PARTY, now(), f"identity of '{settings.name}' in {home}")
    return identity
