"""A party's own directory: its settings (party.toml) and its identity.

================= =======================================================================
file              what it is
================= =======================================================================
format.json       which format the directory has
party.toml        name, hub, data file and id column, policy, health address, link, own
                  settings for training
account.sqlite    what left of every person, for good; unless party.toml names another file
first_weights.key secret of the first weights and of dropout; owner only
identity.pem      own key, own certificate, the authority's certificate; owner only
================= =======================================================================

Only its owner may read the directory. Relative paths in party.toml begin at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from colonnade import formats
from colonnade.core.config import dump, parse
from colonnade.core.errors import ConfigError, StorageError
from colonnade.fabrics.grpc.identity import Identity
from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.federate.certificates import Now, Role, check_name, now
from colonnade.federate.feature_sources import FeaturesSpec
from colonnade.federate.federation_directory import read_toml, split_address, written_toml
from colonnade.federate.identities import check_identity, load_identity
from colonnade.federate.own_settings import OWN_CHOICES, OwnSettings, refuse_own_width
from colonnade.files import write_atomically
from colonnade.formats import check_format, write_format

__all__ = ["PARTY", "PartySettings", "make_home", "own_identity", "read_party", "write_party"]

PARTY = "party.toml"


@dataclass(frozen=True, kw_only=True)
class PartySettings:
    """Content of party.toml.

    The party dials ``hub`` for everything, and ``serving`` for predictions beside a training, where
    the federation has such an address. ``invitation`` is the hash of the token that the party
    enrolled with. Port 0 in ``health`` takes any free port. ``link`` has the settings of the
    party's end of the link.

    ``account`` is the file with the account of the table, if it is not in this directory: two homes
    of one table, in two federations, name one file. ``person`` is the column that says who somebody
    is to the account, if ids of samples don't.

    ``allow_unprotected`` is a yes to runs in which embeddings leave as they are. With
    ``common_seed`` the first weights and dropout come from the label holder's seed, as in one
    process, and the label holder can rebuild them. ``own`` has what the party decides itself, and
    ``features`` where predictions take its columns from.
    """

    name: str
    label_holder: str
    hub: str
    serving: str | None = None
    data: Path
    id: str
    policy: Path | None = None
    health: str = "127.0.0.1:0"
    invitation: str | None = None
    account: Path | None = None
    person: str | None = None
    allow_unprotected: bool = False
    common_seed: bool = False
    own: OwnSettings = field(default_factory=OwnSettings)
    features: FeaturesSpec = field(default_factory=FeaturesSpec)
    link: LinkSpec = field(default_factory=LinkSpec)

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        check_name(self.label_holder, "label_holder")
        split_address(self.hub, "hub")
        if self.serving is not None:
            split_address(self.serving, "serving")
        host, separator, port = self.health.rpartition(":")
        if not (separator and host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise ConfigError(
                f"health: expected HOST:PORT, such as 127.0.0.1:7480, got '{self.health}'"
            )


def make_home(home: Path) -> None:
    """Make a party's directory, which only its owner may read."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
    except OSError as error:
        raise StorageError(f"{home}: can't be made: {error.strerror}") from error


def write_party(home: Path, settings: PartySettings) -> None:
    """Write party.toml; in a new directory its format too."""
    if not (home / PARTY).exists():
        write_format(home, formats.PARTY)
    plain = dump(settings, choices=OWN_CHOICES)
    usual = dump(LinkSpec())
    plain["link"] = {key: item for key, item in plain["link"].items() if item != usual[key]}
    if plain["own"]["encoder"] is not None:
        del plain["own"]["encoder"]["embedding"]
    # What is off stands in no file.
    plain = {key: item for key, item in plain.items() if item is not False}
    write_atomically(home / PARTY, written_toml(plain).encode(), owner_only=True)


def read_party(home: Path) -> PartySettings:
    """Read party.toml; paths come back absolute."""
    path = home / PARTY
    if not path.is_file():
        raise ConfigError(
            f"{home}: not a party's directory (no {PARTY}); join a federation first: "
            "colonnade party join INVITATION"
        )
    check_format(home, formats.PARTY)
    try:
        values = read_toml(path)
        refuse_own_width(values)
        settings = parse(PartySettings, values, choices=OWN_CHOICES)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    policy = None if settings.policy is None else (home / settings.policy).resolve()
    account = None if settings.account is None else (home / settings.account).resolve()
    data = (home / settings.data).resolve()
    features = settings.features
    if features.file is not None:
        features = replace(features, file=(home / features.file).resolve())
    return replace(settings, data=data, policy=policy, account=account, features=features)


def own_identity(home: Path, *, now: Now = now) -> Identity:
    """The party's identity, checked before anything is dialled."""
    settings = read_party(home)
    identity = replace(load_identity(home), name=settings.name)
    check_identity(identity, Role.PARTY, now(), f"identity of '{settings.name}' in {home}")
    return identity
