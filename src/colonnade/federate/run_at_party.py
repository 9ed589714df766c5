"""A run in a party's own directory: everything but weights that rebuilds its half of the method.

HOME/runs/RUN holds, besides the party's checkpoints and its ledger:

=============  ==============================================================================
file           content
=============  ==============================================================================
agreed.json    the settings as agreed, everybody's names, the width of the outputs, the
               digest of the alignment, and the preparation as the party fitted it
data.json      a hash over prepared features and samples, so that other data are noticed
=============  ==============================================================================

A prediction is made months later with the settings and the preparation that training used, whatever
the table looks like by then.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.core.config import dump, parse
from colonnade.core.errors import ConfigError, DataError, ProtocolError, Refused, StorageError
from colonnade.core.party import Party
from colonnade.data.prepare import Preparation
from colonnade.federate.refused_proposals import note_refused_proposal
from colonnade.files import write_atomically
from colonnade.protect.ledger import Ledger
from colonnade.protect.policy import refusal
from colonnade.run.spec import RunSpec, parse_spec, plain_spec
from colonnade.run.storage import DirectoryVault, read_json

__all__ = [
    "AgreedRun",
    "BoundedVault",
    "NotedUse",
    "alignments_in_use",
    "earlier_run",
    "last_use",
    "load_weights",
    "note_at",
    "note_refusal",
    "noting_refusals",
    "read_agreed",
    "refuse_other_data",
    "run_directory",
    "weights_of",
    "write_agreed",
]

_RUN = re.compile(r"[0-9a-f]{16,64}")
_TAG = re.compile(r"[A-Za-z0-9_-]{1,64}")
_AGREED = "agreed.json"
_NOTING_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class AgreedRun:
    """What a party and the label holder agreed on for a run, and how the party prepares its rows.

    ``names`` are all parties that take part, in party order; ``alignment`` is a digest.
    """

    spec: RunSpec
    names: tuple[str, ...]
    num_outputs: int
    alignment: str
    preparation: Preparation


@contextmanager
def noting_refusals(place: Path, verb: str, *, home: Path | None = None) -> Iterator[None]:
    """Write a refusal down as it goes by.

    Args:
        place: The run, whose ledger it goes to.
        verb: What was asked.
        home: The party's directory where the run may be no more than proposed: then the refusal
            goes to the log of refused proposals, and no directory is made for the run.
    """
    try:
        yield
    except Refused as error:
        if home is None or place.is_dir():
            note_refusal(place, verb, error)
        else:
            note_refused_proposal(home, run=place.name, verb=verb, reason=str(error))
        raise


def note_refusal(place: Path, verb: str, error: Refused) -> None:
    """Write down in a run's ledger that something was refused."""
    note_at(place, {"event": "refused", "verb": verb, "reason": str(error)})


class BoundedVault(DirectoryVault):
    """A run's checkpoints at a party, of which the label holder has only so many made.

    Args:
        directory: The run's directory.
        party: The party's name.
        most: How many there may be at a time.
    """

    def __init__(self, directory: Path, *, party: str, most: int) -> None:
        super().__init__(directory)
        self._party, self._most = party, most

    def keep(self, tag: str, state: Mapping[str, Any]) -> None:
        """Write a state; refuse one too many."""
        if not self.holds(tag) and len(list(self.directory.glob("*.safetensors"))) >= self._most:
            what = f"the run has {self._most} checkpoints here; have some removed first"
            raise refusal(self._party, "limits.max_checkpoints", what)
        super().keep(tag, state)


class NotedUse:
    """Notes that a run, and the alignment it is asked through, are used: pruning spares them.

    The time of a file says so, at most once an hour.

    Args:
        place: The run's directory at the party.
        alignment: The alignment's file, if it need not be the run's own.
    """

    def __init__(self, place: Path, alignment: Path | None = None) -> None:
        self._files = (place / _AGREED, *(() if alignment is None else (alignment,)))
        self._noted: float | None = None

    def note(self) -> None:
        """They are used now."""
        now = time.monotonic()
        if self._noted is not None and now - self._noted < _NOTING_SECONDS:
            return
        self._noted = now
        for file in self._files:
            # What can't be written can't be pruned either.
            with suppress(OSError):
                os.utime(file)


def last_use(place: Path) -> float | None:
    """When a run was last trained or asked, in seconds since 1970; none without its weights."""
    return max((file.stat().st_mtime for file in weights_of(place)), default=None)


def note_at(place: Path, entry: Mapping[str, Any]) -> None:
    """Write one entry into a run's ledger, on the disk when this returns."""
    ledger = Ledger(place, run=place.name)
    ledger.append(entry)
    ledger.seal()
    ledger.close()


def run_directory(home: Path, run: str) -> Path:
    """Where a party keeps a run; a name that is none is a ProtocolError."""
    if not _RUN.fullmatch(run):
        raise ProtocolError("run: 16 to 64 hexadecimal digits name a run")
    return home / "runs" / run


def write_agreed(place: Path, agreed: AgreedRun) -> None:
    """Keep the agreement in the run's directory; only the party may read it."""
    plain = {
        "settings": plain_spec(agreed.spec),
        "names": list(agreed.names),
        "num_outputs": agreed.num_outputs,
        "alignment": agreed.alignment,
        "preparation": dump(agreed.preparation),
    }
    write_atomically(place / _AGREED, json.dumps(plain, indent=2).encode(), owner_only=True)


def read_agreed(place: Path) -> AgreedRun:
    """Read what ``write_agreed`` wrote; StorageError if it is missing or damaged."""
    path = place / _AGREED
    if not path.exists():
        raise StorageError(
            f"run '{place.name}': no agreement is kept here; the party had no part in this run, or "
            "an earlier Colonnade trained it: resume the run once, which keeps the agreement"
        )
    plain = read_json(path)
    try:
        return AgreedRun(
            spec=parse_spec(plain["settings"]),
            names=tuple(map(str, plain["names"])),
            num_outputs=int(plain["num_outputs"]),
            alignment=str(plain["alignment"]),
            preparation=parse(Preparation, plain["preparation"]),
        )
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise StorageError(f"{path}: damaged: {type(error).__name__}: {error}") from error


def earlier_run(home: Path, said: Any) -> tuple[Path, str] | None:
    """The directory of the run that another starts from, and the checkpoint; None if it is none."""
    if said is None:
        return None
    if not isinstance(said, dict) or said.keys() != {"run", "tag"}:
        raise ProtocolError("parent: a run's name and a checkpoint's tag")
    place = run_directory(home, str(said["run"]))
    if not _TAG.fullmatch(str(said["tag"])):
        raise ProtocolError("parent: a checkpoint's tag has letters, digits, '-' and '_'")
    return place, str(said["tag"])


def load_weights(party: Party, place: Path, tag: str) -> None:
    """Begin with the weights that a run of this party had; its optimizer begins anew."""
    state = DirectoryVault(place).fetch(tag)
    with suppress(OSError):
        os.utime(place / _AGREED)
    try:
        party.model.load_state_dict(state["model"])
    except RuntimeError as error:
        raise DataError(
            f"party '{party.name}': the weights of the earlier run don't fit its network here; use "
            "the same encoder, head and columns, or start from fresh weights"
        ) from error


def weights_of(place: Path) -> list[Path]:
    """The files of a run without which it can neither go on nor predict; not its ledger."""
    kept = [place / name for name in (_AGREED, "data.json")]
    return [*sorted(place.glob("*.safetensors")), *(file for file in kept if file.exists())]


def alignments_in_use(home: Path) -> frozenset[str]:
    """The digests of alignments that a run of this party names."""
    return frozenset(
        str(read_json(file).get("alignment")) for file in (home / "runs").glob(f"*/{_AGREED}")
    )


def refuse_other_data(place: Path, digest: str, preparation: Preparation, party: str) -> None:
    """Raise DataError if a run that has checkpoints here began with other features or samples.

    Its weights and its preparation would no longer fit, and nobody would notice. A column whose
    values all moved by the same amount gives the same features under another preparation.
    """
    known = place / "data.json"
    if known.exists() and any(place.glob("*.safetensors")):
        is_same = read_json(known).get("digest") == digest
        if is_same and (place / _AGREED).exists():
            is_same = read_agreed(place).preparation == preparation
        if not is_same:
            raise DataError(
                f"party '{party}': its table, how it is prepared, or the samples are not "
                "those that this run began with; put the table back, or start another run"
            )
        return
    write_atomically(known, json.dumps({"digest": digest}).encode(), owner_only=True)
