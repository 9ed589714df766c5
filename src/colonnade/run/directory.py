"""A run directory: settings, metrics as they happen, checkpoints, summary, log.

::

    config.json                       the resolved settings
    metrics.jsonl                     one line per record, as it happens
    summary.json                      written at the end
    checkpoint.json                   which checkpoint counts; written last, so always a whole one
    run.log
    label_holder/task.json, TAG.safetensors
    parties/NAME/preparation.json, TAG.safetensors    what stays with that party
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from colonnade.core.config import dump, parse
from colonnade.core.errors import StorageError
from colonnade.core.federation import Federation, LoopState
from colonnade.core.party import Party
from colonnade.core.task import Task
from colonnade.data.prepare import Preparation, PrepareSpec
from colonnade.fabrics.local import LocalFabric
from colonnade.run.assembly import Blueprint
from colonnade.run.spec import parse_spec, plain_spec
from colonnade.run.storage import (
    DirectoryVault,
    read_json,
    read_state,
    write_json,
)

__all__ = [
    "RunDirectory",
    "local_parties",
    "party_directory",
    "read_blueprint",
    "restore_model",
    "write_blueprint",
    "write_model",
]

_MODEL = "model"


def party_directory(root: Path, name: str) -> Path:
    """Where a party's own files are; its name can't lead out of the run directory."""
    return root / "parties" / quote(name, safe=" ").replace(".", "%2E")


def write_blueprint(root: Path, blueprint: Blueprint) -> None:
    """Write everything but data and weights that is needed to build the federation again."""
    write_json(root / "config.json", plain_spec(blueprint.spec))
    task = {
        **asdict(blueprint.task),
        "label": blueprint.label_name,
        "holder": blueprint.label_holder,
    }
    write_json(root / "label_holder" / "task.json", task)
    for name, preparation in blueprint.preparations.items():
        plain = {"party": name, **dump(preparation)}
        write_json(party_directory(root, name) / "preparation.json", plain)


def read_blueprint(root: Path) -> Blueprint:
    """Read what ``write_blueprint`` wrote."""
    if not root.is_dir():
        raise StorageError(f"{root}: no such directory; give a run directory")
    spec = parse_spec(read_json(root / "config.json"))
    task = read_json(root / "label_holder" / "task.json")
    label, holder = task.pop("label"), task.pop("holder")
    preparations = {}
    for file in sorted((root / "parties").glob("*/preparation.json")):
        plain = read_json(file)
        name = plain.pop("party")
        plain["spec"] = parse(PrepareSpec, plain["spec"])
        preparations[name] = parse(Preparation, plain)
    return Blueprint(
        spec=spec,
        label_holder=holder,
        label_name=label,
        task=Task(**{**task, "classes": tuple(task["classes"])}),
        preparations=preparations,
    )


def restore_model(root: Path, federation: Federation) -> None:
    """Load the weights that a run ended with; or, of one still going, the last whole ones."""
    _fetch_weights(root, federation, read_json(root / "checkpoint.json")["model"])


def write_model(root: Path, federation: Federation) -> None:
    """Write the weights of a federation in this process, each party's to its own files."""
    for name, party in local_parties(federation).items():
        vault = DirectoryVault(party_directory(root, name))
        vault.keep(_MODEL, party.state(), best=_MODEL)
    holder = DirectoryVault(root / "label_holder")
    holder.keep(_MODEL, {"federation": {"holder": federation.holder.state()}}, best=_MODEL)
    named = {"tag": _MODEL, "model": _MODEL, "metrics_bytes": 0}
    write_json(root / "checkpoint.json", named)


def local_parties(federation: Federation) -> Mapping[str, Party]:
    """The parties themselves; only of a federation that is in this process."""
    if not isinstance(federation.fabric, LocalFabric):
        raise StorageError("the parties are elsewhere; each saves its own model")
    return federation.fabric.parties


def _fetch_weights(root: Path, federation: Federation, tag: str) -> None:
    state = read_state(root / "label_holder" / f"{tag}.safetensors")
    federation.holder.restore(state["federation"]["holder"])
    federation.fabric.run(federation.fabric.fetch(tag))


class RunDirectory:
    """One run's directory, held open by one process at a time."""

    is_lasting = True

    def __init__(self, root: Path, *, resume: bool) -> None:
        self.root = root
        exists = (root / "config.json").exists()
        if exists and not resume:
            raise StorageError(
                f"{root}: holds a run already; choose another directory, or go on with it by "
                "--resume"
            )
        if resume and not exists:
            raise StorageError(f"{root}: nothing to resume here; leave out --resume")
        root.mkdir(parents=True, exist_ok=True)
        self._lock = self._lock_or_refuse()
        self._metrics: IO[bytes] | None = None
        self._log_handler = logging.FileHandler(root / "run.log")
        self._log_handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._logger = logging.getLogger("colonnade.run")
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self._log_handler)

    def _lock_or_refuse(self) -> int:
        # The system lets go of the lock when the process ends, however it ends.
        handle = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise StorageError(
                f"{self.root}: in use by another process; wait for it, or choose another directory"
            ) from error
        return handle

    def vault(self, party: str) -> DirectoryVault:
        """A party's own place for checkpoints."""
        return DirectoryVault(party_directory(self.root, party))

    def log(self, message: str) -> None:
        """Write a line to run.log."""
        self._logger.info(message)

    def record(self, line: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl, at once."""
        if self._metrics is None:
            self._metrics = (self.root / "metrics.jsonl").open("ab")
            self._metrics.seek(0, os.SEEK_END)
        self._metrics.write((json.dumps(_finite(line)) + "\n").encode())
        self._metrics.flush()

    def checkpoint(self, federation: Federation, loop: LoopState) -> None:
        """Keep everybody's state; it counts from the moment checkpoint.json names it."""
        tag, best = _tag(loop.exchange), _tag(loop.best_exchange)
        federation.fabric.run(federation.fabric.keep(tag, best))
        vault = DirectoryVault(self.root / "label_holder")
        vault.keep(tag, {"federation": federation.state(), "loop": asdict(loop)}, best=best)
        size = 0
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())
            size = self._metrics.tell()
        self._name(tag, tag, size)

    def _name(self, tag: str, model: str, num_metrics_bytes: int) -> None:
        named = {"tag": tag, "model": model, "metrics_bytes": num_metrics_bytes}
        write_json(self.root / "checkpoint.json", named)

    def resume(self, federation: Federation) -> LoopState:
        """Go back to the last whole checkpoint; what was recorded after it is cut off."""
        metrics = self.root / "metrics.jsonl"
        if not (self.root / "checkpoint.json").exists():
            metrics.unlink(missing_ok=True)
            return LoopState()
        named = read_json(self.root / "checkpoint.json")
        if metrics.exists():
            os.truncate(metrics, named["metrics_bytes"])
        state = read_state(self.root / "label_holder" / f"{named['tag']}.safetensors")
        if "loop" not in state:
            raise StorageError(f"{self.root}: a saved model, not a run; it can't be resumed")
        federation.restore(state["federation"])
        federation.fabric.run(federation.fabric.fetch(named["tag"]))
        return LoopState(**state["loop"])

    def end_with(self, federation: Federation, exchange: int) -> None:
        """Make an earlier exchange's weights those that the run ends with."""
        tag = _tag(exchange)
        _fetch_weights(self.root, federation, tag)
        named = read_json(self.root / "checkpoint.json")
        self._name(named["tag"], tag, named["metrics_bytes"])

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        write_json(self.root / "summary.json", _finite(summary))

    def close(self) -> None:
        """Let go of files and lock."""
        if self._metrics is not None:
            self._metrics.close()
        self._logger.removeHandler(self._log_handler)
        self._log_handler.close()
        os.close(self._lock)


def _tag(exchange: int) -> str:
    return f"exchange-{exchange:09d}"


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
