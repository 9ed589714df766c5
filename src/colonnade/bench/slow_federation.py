"""Digits between three agents and a label holder, for ``bench slow``: real processes, mutual TLS.

One party's link passes a proxy that can hold messages back. Every run is made as
``colonnade federation train`` makes it, with lines, evaluations and checkpoints as they are by
default; and the same run again in one process, on the same alignment, on the simulated clock.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from colonnade.bench.delaying_proxy import DelayingProxy
from colonnade.bench.served_federation import (
    free_address,
    measuring_policy,
    member_of,
    started_process,
)
from colonnade.core.errors import RunError
from colonnade.data.datasets import load_dataset
from colonnade.fabrics.grpc.hub import Hub
from colonnade.federate.federation_directory import FederationDirectory, FederationSettings
from colonnade.federate.identities import save_identity
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.party_home import PartySettings, make_home, write_party
from colonnade.federate.training import train_over
from colonnade.run.engine import train
from colonnade.run.history import recorded_lines
from colonnade.run.spec import parse_spec
from colonnade.run.storage import party_directory, read_json

__all__ = ["PARTIES", "SLOW", "Reached", "SlowFederation"]

HOLDER = "holder"
PARTIES = ("bottom", "middle", "top")
# The party behind the proxy.
SLOW = "middle"
_SALT = "of-a-measurement-and-nothing-else"


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How a run came to its target, or to its end.

    Args:
        seconds: Wall time, or predicted wall time, until its last evaluation.
        exchanges: Exchanges until then.
        directory: The run.
    """

    seconds: float
    exchanges: int
    directory: Path


@dataclass
class SlowFederation:
    """What was started.

    Args:
        place: An empty directory.
    """

    place: Path
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _around: ExitStack = field(default_factory=ExitStack)
    _num_runs: int = 0

    @contextmanager
    def running(self) -> Iterator[SlowFederation]:
        """Make the federation and start its agents; everything ends with the block."""
        with self._around:
            hub_address = free_address()
            self._proxy = self._around.enter_context(
                DelayingProxy(int(hub_address.rpartition(":")[2]))
            )
            self._make(hub_address)
            # Certificates are checked at the usual times; nothing is written to a log.
            hub = open_hub(self.place / "federation", enrols=False)
            self._hub: Hub = self._around.enter_context(hub)
            for name in PARTIES:
                home = str(self.place / name)
                self.agents[name] = started_process(self._around, "colonnade", "party", "run", home)
            yield self

    def train(self, settings: Mapping[str, Any], *, delay: float = 0.0) -> Reached:
        """A run over the network, with the slow party's messages held back for so many seconds.

        Args:
            settings: As in a TOML file, without parties and the label holder.
            delay: The round trip's; half of it each way.

        Raises:
            RunError: If the run ended before its target.
        """
        self._proxy.delay(delay / 2)
        directory = self._next_run()
        spec = parse_spec(self._whole(settings, {name: {} for name in PARTIES}))
        train_over(self._hub, spec, HOLDER, directory, alignments=self.place / "alignments")
        return _reached(directory)

    def simulate(self, settings: Mapping[str, Any], fabric: Mapping[str, Any]) -> Reached:
        """The same run in one process, on a simulated clock with these profiles.

        Args:
            settings: As for ``train``.
            fabric: The table of that name in a run's settings.

        Raises:
            RunError: If the run ended before its target.
        """
        directory = self._next_run()
        whole = self._whole(settings, self._tables()) | {"fabric": dict(fabric)}
        whole["data"] = {**whole.get("data", {}), "alignment": str(self._alignment())}
        result = train(parse_spec(whole), directory=directory)
        found = _reached(directory)
        # The clock also counts what is before the first exchange, as the wall clock does.
        before = result._federation.fabric.elapsed_seconds() - result.summary["elapsed_seconds"]
        return Reached(
            seconds=found.seconds + before, exchanges=found.exchanges, directory=directory
        )

    def accuracy(self, settings: Mapping[str, Any]) -> float:
        """The last accuracy on the validation part of a run in one process, without any network.

        Args:
            settings: As for ``train``.
        """
        result = train(parse_spec(self._whole(settings, self._tables())))
        return float(result.summary["quality"]["validation"]["accuracy"])

    @contextmanager
    def round_robin(self, seconds: float) -> Iterator[None]:
        """While it lasts one party stands still at a time, each for so many seconds."""
        is_over = threading.Event()

        def take_turns() -> None:
            turn = 0
            while not is_over.is_set():
                agent = self.agents[PARTIES[turn % len(PARTIES)]]
                agent.send_signal(signal.SIGSTOP)
                is_over.wait(seconds)
                agent.send_signal(signal.SIGCONT)
                turn += 1

        turns = threading.Thread(target=take_turns, daemon=True)
        turns.start()
        try:
            yield
        finally:
            is_over.set()
            turns.join()

    def _next_run(self) -> Path:
        self._num_runs += 1
        return self.place / f"run-{self._num_runs}"

    def _table(self, name: str) -> Path:
        return self.place / f"{name}.csv"

    def _tables(self) -> dict[str, dict[str, str]]:
        return {name: {"file": str(self._table(name)), "id": "id"} for name in PARTIES}

    def _whole(self, settings: Mapping[str, Any], parties: Mapping[str, Any]) -> dict[str, Any]:
        holder = {
            "name": HOLDER,
            "file": str(self._table(HOLDER)),
            "id": "id",
            "label": "digit",
            "fusion": {"kind": "mlp", "combine": "mean", "hidden": [32]},
            **settings.get("label_holder", {}),
        }
        return {
            "seed": 1,
            "threads": 1,
            "align": {"salt": _SALT},
            **settings,
            "label_holder": holder,
            "party": dict(parties),
        }

    def _alignment(self) -> Path:
        """What everybody keeps of the alignment, in one place."""
        (kept,) = (self.place / "alignments").glob("*/")
        together = self.place / "together"
        if not together.is_dir():
            shutil.copytree(party_directory(kept, HOLDER), party_directory(together, HOLDER))
            for name in PARTIES:
                own = self.place / name / "alignment"
                shutil.copytree(own, party_directory(together, name))
        return together

    def _make(self, hub: str) -> None:
        settings = FederationSettings(name=HOLDER, address=hub, enrolment=free_address())
        made = FederationDirectory.create(self.place / "federation", settings)
        digits = load_dataset("digits")
        labels = pd.DataFrame({"id": digits.labels.ids, "digit": digits.labels.values})
        labels.to_csv(self._table(HOLDER), index=False)
        policy = measuring_policy(self.place)
        for name in PARTIES:
            block = digits.blocks[name]
            table = pd.DataFrame(block.values)
            table.insert(0, "id", block.ids)
            table.to_csv(self._table(name), index=False)
            home = self.place / name
            make_home(home)
            save_identity(home, member_of(made, self.place, name))
            own = PartySettings(
                name=name,
                label_holder=HOLDER,
                hub=f"127.0.0.1:{self._proxy.port}" if name == SLOW else hub,
                data=self._table(name),
                id="id",
                health=free_address(),
                allow_unprotected=True,
                policy=policy,
                # The simulated run has the same first weights.
                common_seed=True,
            )
            write_party(home, own)


def _reached(directory: Path) -> Reached:
    """When the last evaluation, which found the target if there was one, came out."""
    summary = read_json(directory / "summary.json")
    wanted = read_json(directory / "config.json")["stop"]["target"]
    if wanted is not None and summary["stopped_by"] != "target":
        raise RunError(
            f"{summary['method']} did not reach {wanted} in {summary['exchanges']} exchanges: it "
            f"was stopped by '{summary['stopped_by']}'"
        )
    last = [line for line in recorded_lines(directory) if line["kind"] == "evaluation"][-1]
    return Reached(seconds=last["elapsed"], exchanges=summary["exchanges"], directory=directory)
