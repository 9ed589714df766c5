"""What a party can let go of after months: weights of old runs, and alignments that none names.

Ledgers and accounts stay: they are what the party can show, and what it has spent.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from colonnade.core.errors import StorageError
from colonnade.federate.run_at_party import alignments_in_use, last_use, weights_of

__all__ = ["Pruned", "prune"]

_DAY_SECONDS = 86_400


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What was let go of: names of runs and digests of alignments, and how many bytes."""

    runs: tuple[str, ...]
    alignments: tuple[str, ...]
    num_bytes: int


def prune(
    home: Path, *, days: float, keep: Collection[str] = (), now: float | None = None
) -> Pruned:
    """Delete the weights of runs that nobody used for so many days, and alignments without a run.

    Args:
        home: The party's directory. Its agent may run: a session notes every hour that it uses a
            run and an alignment.
        days: How long a run must have been left alone: neither trained nor asked.
        keep: Runs that stay whatever their age.
        now: The time, in seconds since 1970; the machine's if not given.

    Returns:
        What was deleted. A run without its weights can neither go on nor predict; its ledger stays.

    Raises:
        StorageError: If something can't be deleted.
    """
    moment = time.time() if now is None else now
    latest = moment - days * _DAY_SECONDS
    num_bytes, runs, alignments = 0, [], []
    try:
        for place in sorted((home / "runs").glob("*/")):
            used = last_use(place)
            if used is None or place.name in keep or used > latest:
                continue
            files = weights_of(place)
            num_bytes += sum(file.stat().st_size for file in files)
            for file in files:
                file.unlink()
            runs.append(place.name)
        named = alignments_in_use(home)
        for place in sorted((home / "alignments").glob("*/")):
            if place.name in named or max(map(_used, place.iterdir()), default=0.0) > latest:
                continue
            num_bytes += sum(file.stat().st_size for file in place.iterdir())
            shutil.rmtree(place)
            alignments.append(place.name)
    except OSError as error:
        raise StorageError(
            f"{home}: can't be pruned: {error.strerror}: {error.filename}"
        ) from error
    return Pruned(runs=tuple(runs), alignments=tuple(alignments), num_bytes=num_bytes)


def _used(file: Path) -> float:
    return file.stat().st_mtime
