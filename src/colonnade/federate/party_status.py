"""A party's state in a few facts: its agent, its identity, its policy, its table, its runs."""

from __future__ import annotations

import datetime
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from colonnade.core.errors import ColonnadeError
from colonnade.federate.certificates import load_certificate
from colonnade.federate.identities import load_identity
from colonnade.federate.party_home import read_party
from colonnade.federate.party_policy import read_policy
from colonnade.federate.runs_at_party import kept_runs
from colonnade.files import write_atomically

__all__ = ["PartyStatus", "announced", "party_status"]

# Where an agent that runs tells its health; beside party.toml.
_AGENT = "agent.json"
_PROBE_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class PartyStatus:
    """What ``colonnade party status`` shows.

    Attributes:
        name: The party.
        label_holder: Whose federation it belongs to.
        hub: The address that it dials.
        agent: ``ready``, ``not running``, or why the agent can't be asked.
        identity_expiry: When its certificate expires, ISO 8601; or why it can't be read.
        policy: The policy's file, ``none``, or what is wrong with it.
        data: Its table, or that it is not there.
        num_runs: How many runs it keeps something of.
        num_with_weights: How many of them can predict.
        num_bytes: What its runs take on the disk.
        last_run: The readable name of the newest run.
    """

    name: str
    label_holder: str
    hub: str
    agent: str
    identity_expiry: str
    policy: str
    data: str
    num_runs: int
    num_with_weights: int
    num_bytes: int
    last_run: str | None


def party_status(home: Path) -> PartyStatus:
    """Look at a party's directory, and ask its agent if one runs.

    Raises:
        ConfigError: It is no party's directory.
        StorageError: The list of runs is damaged.
    """
    settings = read_party(home)
    runs = kept_runs(home)
    return PartyStatus(
        name=settings.name,
        label_holder=settings.label_holder,
        hub=settings.hub,
        agent=_agent(home),
        identity_expiry=_expiry(home),
        policy=_policy(settings.policy),
        data=str(settings.data) if settings.data.exists() else f"{settings.data} is not there",
        num_runs=len(runs),
        num_with_weights=sum(bool(run.checkpoints) for run in runs),
        num_bytes=sum(run.num_bytes for run in runs),
        last_run=runs[-1].name if runs else None,
    )


@contextmanager
def announced(home: Path, host: str, port: int) -> Iterator[None]:
    """While it lasts, a file in the home says where the agent tells its health."""
    path = home / _AGENT
    content = json.dumps({"host": host, "port": port})
    write_atomically(path, content.encode(), owner_only=True)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _agent(home: Path) -> str:
    try:
        told = json.loads((home / _AGENT).read_bytes())
        link = http.client.HTTPConnection(
            str(told["host"]), int(told["port"]), timeout=_PROBE_SECONDS
        )
    except FileNotFoundError:
        return "not running"
    except (OSError, ValueError, KeyError, TypeError):
        return f"unknown: {_AGENT} is damaged; start the agent anew"
    try:
        link.request("GET", "/readyz")
        said = json.loads(link.getresponse().read(10_000))
        return "ready" if said["ready"] else f"not ready: {said['because']}"
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        # It was killed, or something else listens there by now.
        return "not running"
    finally:
        link.close()


def _expiry(home: Path) -> str:
    try:
        certificate = load_certificate(load_identity(home).certificate, "own identity")
    except ColonnadeError as error:
        return str(error)
    moment = certificate.not_valid_after_utc
    is_over = moment < datetime.datetime.now(datetime.UTC)
    return f"{moment.isoformat(timespec='seconds')}{' (expired: ask for an invitation)' * is_over}"


def _policy(path: Path | None) -> str:
    try:
        read_policy(path)
    except ColonnadeError as error:
        return f"bad: {error}"
    return "none; the strict one of an agent holds" if path is None else str(path)
