"""A run directory: settings, metrics as they happen, checkpoints, summary, log.

::

    config.json                       the resolved settings
    metrics.jsonl                     one line per record, as it happens
    summary.json                      written at the end
    checkpoint.json                   which checkpoint counts; written last, so always a whole one
    run.log
    left.json                         who left for good, once somebody did
    label_holder/task.json, TAG.safetensors
    label_holder/calibration.json     how sure predictions may be, once the run has ended
    parties/NAME/preparation.json, TAG.safetensors    what stays with that party
    parties/NAME/ledger.jsonl, ledger.seal.json       what left it
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
from typing import Any

from colonnade.core.calibration import Calibration
from colonnade.core.config import dump, parse
from colonnade.core.errors import ConfigError, DataError, StorageError
from colonnade.core.federation import Federation, LoopState
from colonnade.core.party import Party
from colonnade.core.task import Task
from colonnade.data.prepare import Preparation
from colonnade.fabrics.local import LocalFabric
from colonnade.files import TEMPORARY, append_wholly, sync
from colonnade.protect.ledger import Ledger
from colonnade.run.assembly import Blueprint
from colonnade.run.spec import parse_spec, plain_spec
from colonnade.run.storage import (
    DirectoryVault,
    finite,
    party_directory,
    read_json,
    read_state,
    write_json,
)

__all__ = [
    "LEFT",
    "RunDirectory",
    "ledger_heads",
    "local_parties",
    "lock_or_refuse",
    "read_blueprint",
    "read_calibration",
    "read_left",
    "refuse_other_run",
    "restore_model",
    "write_blueprint",
    "write_calibration",
    "write_model",
]

_MODEL = "model"
LEFT = "left.json"


def write_blueprint(root: Path, blueprint: Blueprint) -> None:
    """Write everything but data and weights that is needed to build the federation again."""
    for file, plain in _plain_blueprint(root, blueprint).items():
        write_json(file, plain)


def _plain_blueprint(root: Path, blueprint: Blueprint) -> dict[Path, Any]:
    task = {
        **asdict(blueprint.task),
        "label": blueprint.label_name,
        "holder": blueprint.label_holder,
        "num_samples": dict(blueprint.num_samples),
        "num_complete": dict(blueprint.num_complete),
        "num_rows": dict(blueprint.num_rows),
        "elsewhere": list(blueprint.elsewhere),
    }
    return {
        **({root / LEFT: {"left": list(blueprint.left)}} if blueprint.left else {}),
        root / "config.json": plain_spec(blueprint.spec),
        root / "label_holder" / "task.json": task,
        **{
            party_directory(root, name) / "preparation.json": {"party": name, **dump(preparation)}
            for name, preparation in blueprint.preparations.items()
        },
    }


def read_blueprint(root: Path) -> Blueprint:
    """Read what ``write_blueprint`` wrote."""
    if not root.is_dir():
        raise StorageError(f"{root}: no such directory; give a run directory")
    spec = parse_spec(read_json(root / "config.json"))
    left = read_left(root)
    file = root / "label_holder" / "task.json"
    preparations = {}
    try:
        task = read_json(file)
        label, holder = task.pop("label"), task.pop("holder")
        num_samples, num_rows = task.pop("num_samples"), task.pop("num_rows")
        num_complete, elsewhere = task.pop("num_complete"), task.pop("elsewhere", [])
        fitted = Task(**{**task, **{key: tuple(task[key]) for key in ("classes", "class_weights")}})
        for file in sorted((root / "parties").glob("*/preparation.json")):
            plain = read_json(file)
            name = plain.pop("party")
            if name not in left:
                preparations[name] = parse(Preparation, plain)
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise StorageError(f"{file}: damaged: {type(error).__name__}: {error}") from error
    return Blueprint(
        spec=spec,
        label_holder=holder,
        label_name=label,
        num_samples=num_samples,
        num_complete=num_complete,
        num_rows=num_rows,
        task=fitted,
        preparations=preparations,
        left=left,
        elsewhere=tuple(elsewhere),
    )


def read_left(root: Path) -> tuple[str, ...]:
    """Who left a run's federation for good."""
    if not (root / LEFT).exists():
        return ()
    names = read_json(root / LEFT).get("left")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise StorageError(f"{root / LEFT}: damaged: expected a list of names under 'left'")
    return tuple(names)


def write_calibration(root: Path, calibration: Calibration | None) -> None:
    """Write how sure predictions may be; nothing if that is not known."""
    if calibration is not None:
        write_json(root / "label_holder" / "calibration.json", asdict(calibration))


def read_calibration(root: Path) -> Calibration | None:
    """Read what ``write_calibration`` wrote, if anything."""
    file = root / "label_holder" / "calibration.json"
    if not file.exists():
        return None
    plain = read_json(file)
    try:
        by_size = {
            key: {int(size): float(value) for size, value in plain[key].items()}
            for key in ("temperatures", "spreads")
        }
        return Calibration(**by_size, otherwise=float(plain["otherwise"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"{file}: damaged: {type(error).__name__}: {error}") from error


def refuse_other_run(root: Path, blueprint: Blueprint) -> None:
    """A resumed run may be given more time; settings and data must be those it began with."""
    left = read_left(root)
    if left:
        raise ConfigError(
            f"{root}: {', '.join(left)} left this federation, so it can't train on; start another "
            "run from it with --from"
        )
    has_begun = (root / "checkpoint.json").exists()
    for file, current in _plain_blueprint(root, blueprint).items():
        if not has_begun and not file.exists():
            continue  # killed while these were written
        before = read_json(file)
        now = json.loads(json.dumps(current))
        if file.name == "config.json":
            for free in ("stop", "record"):
                before.pop(free, None)
                now.pop(free, None)
        changed = _first_difference(before, now)
        if not changed:
            continue
        if file.name == "config.json":
            raise ConfigError(
                f"{changed}: differs from the run in {root}; resume with the same settings (stop "
                "and record may change), or start another run"
            )
        raise DataError(
            f"{file.relative_to(root)}, {changed}: the data are not those that the run in {root} "
            "began with; resume with the same data, or start another run"
        )


def _first_difference(left: Any, right: Any, path: str = "") -> str:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted({*left, *right}):
            inner = f"{path}.{key}" if path else str(key)
            found = _first_difference(left.get(key), right.get(key), inner)
            if found:
                return found
        return ""
    return "" if left == right else path


def restore_model(root: Path, federation: Federation) -> None:
    """Load the weights that a run ended with; or, of one still going, the last whole ones."""
    _fetch_weights(root, federation, read_json(root / "checkpoint.json")["model"])


def write_model(root: Path, federation: Federation) -> None:
    """Write the weights of a federation in this process, each party's to its own files."""
    for name, party in local_parties(federation).items():
        DirectoryVault(party_directory(root, name)).keep(_MODEL, party.state())
    holder = DirectoryVault(root / "label_holder")
    holder.keep(_MODEL, {"federation": {"holder": federation.holder.state()}})
    named = {"tag": _MODEL, "model": _MODEL, "metrics_bytes": 0, "ledgers": {}}
    write_json(root / "checkpoint.json", named)


def local_parties(federation: Federation) -> Mapping[str, Party]:
    """The parties themselves; only of a federation that is in this process."""
    if not isinstance(federation.fabric, LocalFabric):
        raise StorageError("the parties are elsewhere; each saves its own model")
    parties = federation.fabric.parties
    return {name: party for name, party in parties.items() if isinstance(party, Party)}


def _fetch_weights(root: Path, federation: Federation, tag: str) -> None:
    state = read_state(root / "label_holder" / f"{tag}.safetensors")
    federation.holder.restore(state["federation"]["holder"])
    federation.fabric.run(federation.fabric.fetch(tag))


def lock_or_refuse(root: Path) -> int:
    """Hold a run directory for this process; gives the handle to close."""
    # The system lets go of the lock when the process ends, however it ends.
    handle = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StorageError(
            f"{root}: in use by another process; wait for it, or choose another directory"
        ) from error
    return handle


class RunDirectory:
    """One run's directory, held open by one process at a time."""

    is_lasting = True

    def __init__(self, root: Path, *, resume: bool) -> None:
        self.root = root
        if resume and not root.exists():
            raise StorageError(f"{root}: nothing to resume here; leave out --resume")
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock = lock_or_refuse(root)
        except OSError as error:
            raise StorageError(f"{root}: can't be a run directory: {error.strerror}") from error
        try:
            self._refuse_wrong_kind(resume)
        except StorageError:
            os.close(self._lock)
            raise
        for left_over in root.rglob(f".*{TEMPORARY}"):
            left_over.unlink(missing_ok=True)
        self._ledgers: list[Ledger] = []
        self._metrics = (root / "metrics.jsonl").open("ab", buffering=0)
        self._log_handler = logging.FileHandler(root / "run.log")
        self._log_handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._logger = logging.getLogger("colonnade.run")
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self._log_handler)

    def _refuse_wrong_kind(self, resume: bool) -> None:
        exists = (self.root / "config.json").exists()
        if exists and not resume:
            raise StorageError(
                f"{self.root}: holds a run already; choose another directory, or go on with it by "
                "--resume"
            )
        if resume and not exists:
            raise StorageError(f"{self.root}: nothing to resume here; leave out --resume")

    def vault(self, party: str) -> DirectoryVault:
        """A party's own place for checkpoints."""
        return DirectoryVault(party_directory(self.root, party))

    def ledger(self, party: str) -> Ledger:
        """A party's own record of what leaves it."""
        ledger = Ledger(party_directory(self.root, party), run=self.root.name)
        self._ledgers.append(ledger)
        return ledger

    def log(self, message: str) -> None:
        """Write a line to run.log."""
        self._logger.info(message)

    def record(self, line: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl, at once."""
        content = (json.dumps(finite(line)) + "\n").encode()
        append_wholly(self._metrics.fileno(), content, self.root / "metrics.jsonl")

    def checkpoint(self, federation: Federation, loop: LoopState) -> None:
        """Keep everybody's state; it counts from the moment checkpoint.json names it.

        Only then is the one before let go of.
        """
        tag, best = _tag(loop.exchange), _tag(loop.best_exchange)
        federation.fabric.run(federation.fabric.keep(tag))
        federation.holder.refuse_non_finite()
        self._holder.keep(tag, {"federation": federation.state(), "loop": asdict(loop)})
        sync(self._metrics.fileno(), self.root / "metrics.jsonl")
        size = os.fstat(self._metrics.fileno()).st_size
        self._name(tag, tag, size, ledger_heads(federation))
        federation.fabric.run(federation.fabric.retain(tag, best))
        self._holder.retain((tag, best))

    @property
    def _holder(self) -> DirectoryVault:
        return DirectoryVault(self.root / "label_holder")

    def _name(self, tag: str, model: str, num_metrics_bytes: int, ledgers: Any) -> None:
        named = {
            "tag": tag,
            "model": model,
            "metrics_bytes": num_metrics_bytes,
            "ledgers": ledgers,
        }
        write_json(self.root / "checkpoint.json", named)

    def resume(self, federation: Federation, *, keeps_best: bool) -> LoopState:
        """Go back to the last whole checkpoint; what was recorded after it is cut off."""
        if not (self.root / "checkpoint.json").exists():
            os.truncate(self._metrics.fileno(), 0)
            return LoopState()
        named = read_json(self.root / "checkpoint.json")
        os.truncate(self._metrics.fileno(), named["metrics_bytes"])
        state = self._holder.fetch(named["tag"])
        if "loop" not in state:
            raise StorageError(f"{self.root}: a saved model, not a run; it can't be resumed")
        federation.restore(state["federation"])
        federation.fabric.run(federation.fabric.fetch(named["tag"]))
        loop = LoopState(**state["loop"])
        if keeps_best and not self._holder.holds(_tag(loop.best_exchange)):
            # It was not asked to keep the best so far: the search for it begins here.
            loop.best_quality, loop.best_exchange, loop.num_without_best = -math.inf, 0, 0
        return loop

    def end_with(self, federation: Federation, exchange: int) -> None:
        """Make an earlier exchange's weights those that the run ends with."""
        tag = _tag(exchange)
        _fetch_weights(self.root, federation, tag)
        named = read_json(self.root / "checkpoint.json")
        self._name(named["tag"], tag, named["metrics_bytes"], ledger_heads(federation))

    def go_back(self, federation: Federation) -> int | None:
        """Go back to the last checkpoint's weights."""
        tag = read_json(self.root / "checkpoint.json")["tag"]
        _fetch_weights(self.root, federation, tag)
        return int(tag.rpartition("-")[2])

    def seal(self, federation: Federation) -> None:
        """Note how long every party's ledger is, now that nothing more will leave."""
        named = read_json(self.root / "checkpoint.json")
        write_json(self.root / "checkpoint.json", {**named, "ledgers": ledger_heads(federation)})

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        write_json(self.root / "summary.json", finite(summary))

    def close(self) -> None:
        """Let go of files and lock."""
        for ledger in self._ledgers:
            ledger.close()
        self._metrics.close()
        self._logger.removeHandler(self._log_handler)
        self._log_handler.close()
        os.close(self._lock)


def ledger_heads(federation: Federation) -> dict[str, Any]:
    """How many entries each party's ledger has, and the last one's hash; sealed at the party."""
    sealed = federation.fabric.run(federation.aside().ask("seal"))
    return {
        name: {"entries": int(item["entries"]), "head": bytes(item["head"].numpy()).hex()}
        for name, item in sealed.items()
        if item
    }


def _tag(exchange: int) -> str:
    return f"exchange-{exchange:09d}"
