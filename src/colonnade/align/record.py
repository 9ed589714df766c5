"""The label holder's record of an alignment: the type, and its file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.align.archives import read_archive, write_archive
from colonnade.align.group import Bytes, Numbers

__all__ = ["HolderRecord", "load_record", "save_record"]


@dataclass(kw_only=True)
class HolderRecord:
    """The state that a later alignment needs to extend this one.

    Per participant, over all rounds: a tag of every fully blinded id in the order in which the
    lists came back, its sample number (-1 for none), and the end of each round.
    """

    run: str
    round: int
    names: tuple[str, ...]
    label_holder: str
    num_samples: int
    tags: dict[str, Bytes]
    numbers: dict[str, Numbers]
    ends: dict[str, list[int]]


def save_record(record: HolderRecord, path: Path) -> None:
    """Write the label holder's record."""
    kept = ("run", "round", "names", "label_holder", "num_samples", "ends")
    meta = {key: getattr(record, key) for key in kept}
    names = list(enumerate(record.names))
    arrays: dict[str, Any] = {f"tags {place}": record.tags[name] for place, name in names}
    arrays |= {f"numbers {place}": record.numbers[name] for place, name in names}
    write_archive(path, meta, arrays)


def load_record(path: Path) -> HolderRecord:
    """Read the label holder's record."""
    meta, arrays = read_archive(path, "record")
    names = meta["names"] = tuple(meta["names"])
    tags = {name: arrays[f"tags {place}"] for place, name in enumerate(names)}
    numbers = {name: arrays[f"numbers {place}"] for place, name in enumerate(names)}
    return HolderRecord(**meta, tags=tags, numbers=numbers)
