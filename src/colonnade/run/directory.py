"""A run directory: settings, metrics as they happen, checkpoints, summary, log.

::

    format.json                       which format the directory has
    config.json                       the resolved settings
    metrics.jsonl                     one line per record, as it happens
    timeline.jsonl                    who did what when; marks of what went wrong
    judgement.json                    mistakes on the held-out part, written at the end
    summary.json                      written at the end
    checkpoint.json                   which checkpoint counts; written last, so always a whole one
    run.log
    account_seals.json                seals of the accounts of parties that have one
    ledger_heads.json                 how long parties' ledgers were after a prediction
    left.json                         who left for good, once somebody did
    label_holder/task.json, TAG.safetensors
    label_holder/ledger.jsonl, ledger.seal.json       what went down to the parties
    label_holder/calibration.json     how sure predictions may be, once the run has ended
    parties/NAME/preparation.json, TAG.safetensors    what stays with that party
    parties/NAME/ledger.jsonl, ledger.seal.json       what left it

Here are metrics, checkpoints, ledgers and the log; settings and fits are in ``blueprint_files``.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from colonnade.core.errors import PartyFailed, StorageError
from colonnade.core.federation import Federation, LoopState
from colonnade.core.parties import Patience
from colonnade.core.party import Party
from colonnade.core.printable import printable
from colonnade.core.snapshot import Snapshot
from colonnade.fabrics.in_process import LocalFabric
from colonnade.files import TEMPORARY, append_wholly, sync
from colonnade.formats import RUN, check_format
from colonnade.protect.ledger import Ledger
from colonnade.run.history import recorded_lines
from colonnade.run.kept_seals import HEADS, SEALS, KeptHeads, KeptSeals
from colonnade.run.ledger_heads import (
    confirm_heads,
    heads_and_seals,
    own_head,
    sealed_ledgers,
)
from colonnade.run.run_account import write_account
from colonnade.run.storage import (
    DirectoryVault,
    finite,
    lock_or_refuse,
    party_directory,
    read_json,
    read_state,
    write_json,
)
from colonnade.run.timeline_file import TIMELINE, TimelineFile

__all__ = [
    "RunDirectory",
    "local_parties",
    "restore_model",
    "write_model",
]

_MODEL = "model"


def restore_model(root: Path, federation: Federation) -> None:
    """Load the weights that a run ended with; or, of one still going, the last whole ones."""
    _fetch_weights(root, federation, read_json(root / "checkpoint.json")["model"])


def write_model(root: Path, federation: Federation) -> None:
    """Write the weights of a federation in this process, each party's to its own files."""
    for name, party in local_parties(federation).items():
        DirectoryVault(party_directory(root, name)).keep(_MODEL, party.state())
        write_account(party, root)
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
    federation.ask_all("fetch", tag)


class OneLine(logging.Formatter):
    """One line per record: a message that quotes another organisation can't forge a second one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record, printable."""
        return printable(super().format(record))


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
        self.seals = KeptSeals(root / SEALS)
        self._ledgers: list[Ledger] = []
        # The newest checkpoint and the one before, each with how long the metrics were at it: two
        # are kept, because a file of the newest may turn out to be bad at somebody.
        self._kept: list[tuple[str, int]] = []
        try:
            (root / "run.log").touch()
            self._metrics = (root / "metrics.jsonl").open("ab", buffering=0)
            self._log_handler = logging.FileHandler(root / "run.log")
        except OSError as error:
            os.close(self._lock)
            raise StorageError(
                f"{error.filename or root}: can't be written: {error.strerror}; make room, or "
                "choose another directory"
            ) from error
        self._log_handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
        self._logger = logging.getLogger("colonnade.run")
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self._log_handler)

    def _refuse_wrong_kind(self, resume: bool) -> None:
        exists = (self.root / "config.json").exists()
        if exists and not resume and self._never_began():
            # It failed before its first exchange: nothing was learned, nothing left a party.
            for name in ("label_holder", "parties"):
                shutil.rmtree(self.root / name, ignore_errors=True)
            for name in ("config.json", "checkpoint.json", "metrics.jsonl", TIMELINE):
                (self.root / name).unlink(missing_ok=True)
            return
        if exists and not resume:
            raise StorageError(
                f"{self.root}: holds a run already; choose another directory, or go on with it by "
                "--resume"
            )
        if resume and not exists:
            raise StorageError(f"{self.root}: nothing to resume here; leave out --resume")
        if resume:
            check_format(self.root, RUN)

    def _never_began(self) -> bool:
        """Whether a run was here that made no exchange and released nothing."""
        if (self.root / "summary.json").exists() or (self.root / "left.json").exists():
            return False
        named = self.root / "checkpoint.json"
        if named.exists() and read_json(named).get("tag") != _tag(0):
            return False
        metrics = self.root / "metrics.jsonl"
        if metrics.exists() and metrics.stat().st_size:
            return False
        # A ledger's first line only says that it was opened.
        ledgers = self.root.rglob("ledger.jsonl")
        return all(len(file.read_bytes().splitlines()) <= 1 for file in ledgers)

    def vault(self, party: str) -> DirectoryVault:
        """A party's own place for checkpoints."""
        return DirectoryVault(party_directory(self.root, party))

    def ledger(self, owner: str | None) -> Ledger:
        """A party's own record of what leaves it, or the label holder's (None)."""
        place = self.root / "label_holder" if owner is None else party_directory(self.root, owner)
        ledger = Ledger(place, run=self.root.name)
        self._ledgers.append(ledger)
        return ledger

    def log(self, message: str) -> None:
        """Write a line to run.log."""
        self._logger.info(message)

    def record(self, line: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl, at once."""
        content = (json.dumps(finite(line)) + "\n").encode()
        append_wholly(self._metrics.fileno(), content, self.root / "metrics.jsonl")

    def timeline(self, keep: int, loop: LoopState) -> TimelineFile | None:
        """timeline.jsonl, for so many intervals; none if none are wanted."""
        return TimelineFile(self.root, keep=keep, after=loop.exchange) if keep else None

    def checkpoint(
        self, federation: Federation, loop: LoopState, patience: Patience | None = None
    ) -> None:
        """Keep everybody's state, and wait until it counts.

        Args:
            federation: Between two exchanges.
            loop: How far it is.
            patience: How long to wait for everybody; the run's own if not given.
        """
        patience = patience or federation.patience
        waits = replace(patience, then="stop")
        keeping = self.keeping(federation, federation.snapshot(), loop, waits, lambda: True)
        federation.fabric.run(keeping)

    async def keeping(
        self,
        federation: Federation,
        snapshot: Snapshot,
        loop: LoopState,
        patience: Patience,
        is_newest: Callable[[], bool],
    ) -> None:
        """Keep everybody's state; it counts from the moment checkpoint.json names it.

        Only then are those before let go of, unless a newer one is under way.
        """
        tag = _tag(loop.exchange)
        kept_at = time.time() if federation.fabric.has_real_time else None
        own_loop = asdict(replace(loop, kept_at=kept_at))
        num_metrics_bytes = os.fstat(self._metrics.fileno()).st_size
        parties = federation.beside(snapshot.cut.aside, patience)
        for verb in (("keep", tag), ("seal",)):
            for name in parties.names:
                parties.start(name, *verb)
        sealed = {}
        for _ in range(2 * len(parties.names)):
            answer = await parties.arrival()
            assert answer is not None  # or its patience would have ended in an error
            if answer.value:
                sealed[answer.party] = answer.value
        federation.holder.refuse_non_finite()
        self._holder.keep(tag, {"federation": snapshot.whole(), "loop": own_loop})
        sync(self._metrics.fileno(), self.root / "metrics.jsonl")
        self._name(tag, tag, num_metrics_bytes, sealed, federation)
        if is_newest():
            best, previous = _tag(loop.best_exchange), self._before(tag) or (tag, 0)
            await parties.ask("retain", tag, previous[0], best)
            self._holder.retain((tag, previous[0], best))

    @property
    def _holder(self) -> DirectoryVault:
        return DirectoryVault(self.root / "label_holder")

    def _name(
        self,
        tag: str,
        model: str,
        num_metrics_bytes: int,
        sealed: Mapping[str, Any],
        federation: Federation,
    ) -> None:
        heads, seals = heads_and_seals(sealed)
        self.seals.keep(seals)
        named = {
            "tag": tag,
            "model": model,
            "metrics_bytes": num_metrics_bytes,
            "ledgers": heads,
            "own_ledger": own_head(federation),
        }
        previous = self._before(tag)
        if previous is not None:
            named |= {"previous": previous[0], "previous_metrics_bytes": previous[1]}
        write_json(self.root / "checkpoint.json", named)
        if tag not in dict(self._kept):
            self._kept = [*self._kept[-1:], (tag, num_metrics_bytes)]

    def _before(self, tag: str) -> tuple[str, int] | None:
        """The checkpoint before this one, and how long the metrics were at it."""
        earlier = [item for item in self._kept if item[0] < tag]
        return earlier[-1] if earlier else None

    def resume(self, federation: Federation, *, keeps_best: bool) -> LoopState:
        """Go back to the last whole checkpoint; what was recorded after it is cut off."""
        if not (self.root / "checkpoint.json").exists():
            os.truncate(self._metrics.fileno(), 0)
            return LoopState()
        named = read_json(self.root / "checkpoint.json")
        self.confirm(federation, named["ledgers"])
        tag, size = named["tag"], named["metrics_bytes"]
        try:
            state = self._restored(federation, tag)
        except (StorageError, PartyFailed) as error:
            if "previous" not in named:
                raise
            self.log(f"{tag} can't be used: {type(error).__name__}: {error}")
            tag, size = named["previous"], named["previous_metrics_bytes"]
            state = self._restored(federation, tag)
            self.log(f"back to {tag}, the newest checkpoint that is good at everybody")
            self._kept = []
            self._name(tag, tag, size, sealed_ledgers(federation), federation)
        self._kept = [(tag, size)]
        os.truncate(self._metrics.fileno(), size)
        loop = LoopState(**state["loop"])
        if loop.kept_at is not None:
            # Nobody knows how much of it was training that is lost, and how much was silence.
            gone = max(0.0, time.time() - loop.kept_at)
            loop.outages, loop.elapsed = loop.outages + gone, loop.elapsed + gone
        if keeps_best and not self._holder.holds(_tag(loop.best_exchange)):
            # It was not asked to keep the best so far: the search for it begins here.
            loop.best_quality, loop.best_exchange, loop.num_without_best = -math.inf, 0, 0
        return loop

    def confirm(self, federation: Federation, heads: Mapping[str, Any]) -> None:
        """Have every party see that its ledger and its account are no older than they were.

        Args:
            federation: Before anything leaves.
            heads: How long each party's ledger was and its last hash, at the checkpoint.

        Raises:
            Refused: A party has put back an old copy.
        """
        heads = KeptHeads(self.root / HEADS).newest(heads)
        confirm_heads(federation, heads, self.seals.read())

    def _restored(self, federation: Federation, tag: str) -> dict[str, Any]:
        """Have everybody go back to a checkpoint; gives the label holder's state."""
        state = self._holder.fetch(tag)
        if "loop" not in state:
            raise StorageError(f"{self.root}: a saved model, not a run; it can't be resumed")
        federation.restore(state["federation"])
        federation.ask_all("fetch", tag)
        return state

    def end_with(self, federation: Federation, exchange: int) -> None:
        """Make an earlier exchange's weights those that the run ends with."""
        tag = _tag(exchange)
        _fetch_weights(self.root, federation, tag)
        named = read_json(self.root / "checkpoint.json")
        self._name(
            named["tag"], tag, named["metrics_bytes"], sealed_ledgers(federation), federation
        )

    def go_back(self, federation: Federation) -> int | None:
        """Go back to the last checkpoint's weights."""
        tag = read_json(self.root / "checkpoint.json")["tag"]
        _fetch_weights(self.root, federation, tag)
        return int(tag.rpartition("-")[2])

    def seal(self, federation: Federation) -> None:
        """Note how long every party's ledger is, now that nothing more will leave."""
        named = read_json(self.root / "checkpoint.json")
        tag, model, size = (named[key] for key in ("tag", "model", "metrics_bytes"))
        self._name(tag, model, size, sealed_ledgers(federation), federation)

    def recorded(self) -> list[dict[str, Any]]:
        """The measurements so far."""
        return recorded_lines(self.root)

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


def _tag(exchange: int) -> str:
    return f"exchange-{exchange:09d}"
