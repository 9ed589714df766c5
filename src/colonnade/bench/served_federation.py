"""A federation of real processes on this machine, trained and served, for ``bench serve``.

A label holder, four agents and the service are processes of their own, joined by mutual TLS.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd

from colonnade.bench.relay import Relay
from colonnade.core.errors import RunError
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.certificates import key_pem, new_key, signing_request
from colonnade.federate.federation_directory import FederationDirectory, FederationSettings
from colonnade.federate.identities import save_identity
from colonnade.federate.invitations import enrol, invite
from colonnade.federate.party_home import PartySettings, make_home, write_party

__all__ = ["FIRST_ID", "HOLDER", "NUM_ROWS", "PARTIES", "ServedFederation", "serving_process"]

HOLDER = "holder"
PARTIES = tuple(f"party_{number}" for number in range(4))
NUM_ROWS, FIRST_ID = 1000, 100_000
_NUM_COLUMNS = 16
_CONFIG = """
seed = 1
threads = 1
method = {{ name = "laser", heads = "label_holder" }}

[label_holder]
name = "holder"
label = "label"
fusion = {{ kind = "mlp", combine = "mean" }}

[align]
salt = "of-a-measurement-and-nothing-else"

[record]
log_every = 1

[stop]
{stop}

[party.holder]
file = "holder.csv"
id = "id"

"""


def serving_process(around: ExitStack, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process that says ``serving at ADDRESS``; it ends with the stack. Its port."""
    process = started_process(around, *arguments, out=subprocess.PIPE)
    assert process.stdout is not None
    around.callback(process.stdout.close)
    for line in process.stdout:
        if line.startswith(b"serving at"):
            return process, int(line.decode().rpartition(":")[2])
    raise RunError(f"{' '.join(arguments[:3])} did not start")


def started_process(
    around: ExitStack, *arguments: str, out: int | IO[bytes] = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a module as a process, with what it says to ``out``; it ends with the stack."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=out,
        stderr=subprocess.DEVNULL if out == subprocess.PIPE else out,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    around.callback(process.wait)
    around.callback(process.terminate)
    return process


@dataclass
class ServedFederation:
    """What was started: the service's port, and every party's process.

    Args:
        place: An empty directory.
        is_cut: Whether parties are asked through relays whose connections can be cut.
    """

    place: Path
    is_cut: bool = False
    port: int = 0
    relays: dict[str, Relay] = field(default_factory=dict)
    service: subprocess.Popen[bytes] = field(init=False)
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _around: ExitStack = field(default_factory=ExitStack)

    @contextmanager
    def running(self) -> Iterator[ServedFederation]:
        """Make, train and serve it; everything ends with the block."""
        with self._around:
            self._make()
            for name in PARTIES:
                self.start(name)
            run, config = self.place / "run", self.place / "config.toml"
            with tempfile.TemporaryFile() as log:
                command = self._command("train", str(config), "--out", str(run))
                if started_process(self._around, *command, out=log).wait() != 0:
                    log.seek(0)
                    said = log.read().decode()[-500:]
                    raise RunError(f"the federation could not be trained: {said}")
            ids = str(self.place / f"{HOLDER}.csv")
            serving = self._command("serve", str(run), "--ids", ids, "--id=id", "--port=0")
            self.service, self.port = serving_process(self._around, *serving)
            yield self

    def train_beside(self, around: ExitStack, run: str) -> Path:
        """Train another run while this one is served; the training ends with the stack.

        Returns:
            The other run's directory, of this name.
        """
        place = self.place / run
        command = self._command("train", str(self.place / "endless.toml"), "--out", str(place))
        started_process(around, *command)
        return place

    def start(self, name: str) -> None:
        """Start a party's agent."""
        home = str(self.place / name)
        self.agents[name] = started_process(self._around, "colonnade", "party", "run", home)

    def _serving_of(self, name: str, address: str) -> str:
        if not self.is_cut:
            return address
        relay = self.relays[name] = Relay(int(address.rpartition(":")[2]))
        self._around.callback(relay.close)
        return f"127.0.0.1:{relay.port}"

    def _command(self, verb: str, *arguments: str) -> tuple[str, ...]:
        return ("colonnade", "federation", verb, str(self.place / "federation"), *arguments)

    def _make(self) -> None:
        hub, enrolment, serving = (free_address() for _ in range(3))
        settings = FederationSettings(
            name=HOLDER, address=hub, enrolment=enrolment, serving=serving
        )
        made = FederationDirectory.create(self.place / "federation", settings)
        numbers = np.random.default_rng(0)
        ids = np.arange(FIRST_ID, FIRST_ID + NUM_ROWS)
        for name in (HOLDER, *PARTIES):
            columns = {f"c{k:02d}": numbers.normal(size=NUM_ROWS) for k in range(_NUM_COLUMNS)}
            table = pd.DataFrame({"id": ids, **columns})
            if name == HOLDER:
                table["label"] = numbers.integers(0, 2, NUM_ROWS)
            table.to_csv(self.place / f"{name}.csv", index=False)
        tables = "".join(f"[party.{name}]\n" for name in PARTIES)
        for file, stop in (("config", "epochs = 1"), ("endless", "exchanges = 1000000")):
            text = _CONFIG.format(stop=stop) + tables
            (self.place / f"{file}.toml").write_text(text)
        policy = measuring_policy(self.place)
        for name in PARTIES:
            home = self.place / name
            make_home(home)
            save_identity(home, member_of(made, self.place, name))
            own = PartySettings(
                name=name,
                label_holder=HOLDER,
                hub=hub,
                serving=self._serving_of(name, serving),
                policy=policy,
                data=self.place / f"{name}.csv",
                id="id",
                health=free_address(),
                allow_unprotected=True,
            )
            write_party(home, own)


def measuring_policy(place: Path) -> Path:
    """A policy for measuring, which asks for the same few rows more often than people's may be."""
    policy = place / "policy.toml"
    policy.write_text("releases_per_row = 1000000000\n")
    return policy


def member_of(federation: FederationDirectory, place: Path, name: str) -> Identity:
    invitation = invite(federation, name, place / f"{name}.invitation")
    key = new_key()
    certificate = enrol(federation, invitation.token, signing_request(key, name))
    return Identity(
        name=name,
        authority=federation.authority_certificate,
        certificate=certificate,
        key=key_pem(key),
    )


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
