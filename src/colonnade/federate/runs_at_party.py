"""The runs that a party keeps, by names that people can read.

On the wire a run is a number of hexadecimal digits. At the party it goes by its method and the day
on which it began, ``laser-2026-11-18``; a second one of that day is ``laser-2026-11-18-2``. Names
are made of the party's own files, so that the label holder names nothing here.
"""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, StorageError
from colonnade.federate.party_limits import Runs
from colonnade.federate.run_at_party import last_use, read_agreed

__all__ = ["KeptRun", "find_run", "kept_runs"]

_FEWEST_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class KeptRun:
    """A run in a party's directory.

    Attributes:
        name: Its readable name.
        place: Its directory, named by the digits that go over the wire.
        method: Its method; none if the agreement is gone.
        participants: The parties that took part.
        began: When it began, in seconds since 1970.
        used: When it was last trained or asked; none without weights.
        checkpoints: The tags of its weights, oldest first.
        num_bytes: What it takes on the disk, ledgers included.
    """

    name: str
    place: Path
    method: str | None
    participants: tuple[str, ...]
    began: float
    used: float | None
    checkpoints: tuple[str, ...]
    num_bytes: int


def kept_runs(home: Path) -> list[KeptRun]:
    """Every run that a party has something of, oldest first.

    Raises:
        StorageError: The list of runs is damaged.
    """
    began = Runs(home / "runs.json").began()
    places = [place for place in (home / "runs").glob("*/") if any(place.iterdir())]

    def beginning(place: Path) -> float:
        return began.get(place.name, place.stat().st_mtime)

    seen: Counter[str] = Counter()
    found = []
    for place in sorted(places, key=lambda item: (beginning(item), item.name)):
        method, participants = _agreed(place)
        day = datetime.datetime.fromtimestamp(beginning(place), datetime.UTC).date()
        name = f"{method or 'run'}-{day.isoformat()}"
        seen[name] += 1
        weights = sorted(place.glob("*.safetensors"))
        found.append(
            KeptRun(
                name=name if seen[name] == 1 else f"{name}-{seen[name]}",
                place=place,
                method=method,
                participants=participants,
                began=beginning(place),
                used=last_use(place),
                checkpoints=tuple(file.stem for file in weights),
                num_bytes=sum(file.stat().st_size for file in place.rglob("*") if file.is_file()),
            )
        )
    return found


def find_run(home: Path, wanted: str) -> KeptRun:
    """A run by its readable name, or by its first digits.

    Raises:
        ConfigError: There is none of that name, or several that begin like it.
    """
    runs = kept_runs(home)
    by_name = {run.name: run for run in runs}
    if wanted in by_name:
        return by_name[wanted]
    alike = [run for run in runs if run.place.name.startswith(wanted)]
    if len(wanted) >= _FEWEST_DIGITS and len(alike) == 1:
        return alike[0]
    if len(wanted) >= _FEWEST_DIGITS and alike:
        raise ConfigError(f"run '{wanted}': {len(alike)} runs begin like it; give more digits")
    hint = nearest(wanted, list(by_name)) or "; colonnade party runs HOME lists them"
    raise ConfigError(f"run '{wanted[:80]}': there is no such run in {home}{hint}")


def _agreed(place: Path) -> tuple[str | None, tuple[str, ...]]:
    try:
        agreed = read_agreed(place)
    except StorageError:
        return None, ()
    return agreed.spec.method.info.name, agreed.names
