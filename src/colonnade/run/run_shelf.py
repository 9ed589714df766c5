"""The runs in a directory: what each reached and where it comes from, tags, and deletion.

Tags are in ``tags.json`` beside the runs: a name per tag, and the run that had it before.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, StorageError
from colonnade.files import locked
from colonnade.run.storage import RunInUse, lock_or_refuse, read_json, write_json

__all__ = ["PROMOTED", "RunEntry", "RunShelf", "check_room"]

# The tag that ``promote`` gives.
PROMOTED = "production"

_TAGS = "tags.json"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """One run: its name, what its summary says (empty while it goes), and its tags."""

    name: str
    place: Path
    summary: Mapping[str, Any]
    tags: tuple[str, ...]

    @property
    def quality(self) -> tuple[str, float] | None:
        """The part and its quality, of the test part if there is one."""
        measured = self.summary.get("quality") or {}
        for part in ("test", "validation"):
            value = (measured.get(part) or {}).get(self.summary.get("quality_name"))
            if value is not None:
                return part, float(value)
        return None

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        keys = ("method", "parties", "quality", "exchanges", "stopped_by", "lineage", "revision")
        said = {key: self.summary.get(key) for key in keys}
        return {"run": self.name, "tags": list(self.tags), **said}


class RunShelf:
    """A directory with runs in it.

    Args:
        root: The directory.

    Raises:
        ConfigError: If there is no such directory.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise ConfigError(f"{root}: no such directory; name the one that holds the runs")
        self.root = root

    def entries(self) -> list[RunEntry]:
        """All runs, by name."""
        return [
            self._entry(item)
            for item in sorted(self.root.iterdir())
            if (item / "config.json").is_file()
        ]

    def entry(self, name: str) -> RunEntry:
        """One run by its name or by a tag; a ConfigError names the nearest if there is none."""
        tagged = self.tags().get(name)
        place = self.root / (tagged or name)
        if Path(name).name != name or not (place / "config.json").is_file():
            names = [*self.tags(), *(item.name for item in self.entries())]
            raise ConfigError(f"{self.root}: no run or tag '{name}'{nearest(name, names)}")
        return self._entry(place)

    def tags(self) -> dict[str, str]:
        """The run of every tag."""
        return {tag: item["run"] for tag, item in self._read().items()}

    def tag(self, name: str, tag: str) -> str | None:
        """Give a run a tag; the run that had it before, if any."""
        if not _TAG.fullmatch(tag):
            raise ConfigError(f"tag '{tag}': letters, digits, '.', '-' and '_', at most 64")
        if (self.root / tag / "config.json").is_file():
            raise ConfigError(f"tag '{tag}': a run has this name; choose another")
        entry = self.entry(name)
        if not entry.summary:
            raise ConfigError(f"{entry.place}: it has not ended yet; resume it first")
        with self._locked():
            known = self._read()
            before = known.get(tag, {}).get("run")
            known[tag] = {"run": entry.name, "before": before}
            write_json(self.root / _TAGS, known)
        return before

    def untag(self, tag: str) -> None:
        """Take a tag away."""
        with self._locked():
            known = self._read()
            if tag not in known:
                raise ConfigError(f"{self.root}: no tag '{tag}'{nearest(tag, list(known))}")
            del known[tag]
            write_json(self.root / _TAGS, known)

    def delete(self, name: str) -> Path:
        """Delete a run's directory; one that has a tag, is trained or served, is refused."""
        entry = self.entry(name)
        if entry.tags:
            raise ConfigError(
                f"{entry.place}: tagged {', '.join(entry.tags)}; take the tag away first "
                f"(colonnade runs untag {self.root} {entry.tags[0]})"
            )
        children = [
            item.name
            for item in self.entries()
            if ((item.summary.get("lineage") or {}).get("parent") or {}).get("run") == entry.name
        ]
        if children:
            raise ConfigError(
                f"{entry.place}: {', '.join(children)} started from it and could not be explained "
                "without it; delete those first"
            )
        with ExitStack() as held:
            for lock in (lock_or_refuse, RunInUse.refuse):
                held.callback(os.close, lock(entry.place))
            try:
                shutil.rmtree(entry.place)
            except OSError as error:
                raise StorageError(f"{entry.place}: can't be deleted: {error.strerror}") from error
        return entry.place

    def compare(self, first: str, second: str) -> dict[str, tuple[Any, Any]]:
        """Where two runs differ: settings by their path, quality, lineage."""
        places = [self.entry(name) for name in (first, second)]
        settings = [_flat(read_json(item.place / "config.json")) for item in places]
        said = [
            _flat({key: item.summary.get(key) for key in ("quality", "exchanges", "lineage")})
            for item in places
        ]
        found = {}
        for left, right in (settings, said):
            for key in sorted({*left, *right}):
                if left.get(key) != right.get(key):
                    found[key] = (left.get(key), right.get(key))
        return found

    def _entry(self, place: Path) -> RunEntry:
        summary = place / "summary.json"
        tags = tuple(sorted(tag for tag, run in self.tags().items() if run == place.name))
        said = read_json(summary) if summary.exists() else {}
        return RunEntry(name=place.name, place=place, summary=said, tags=tags)

    def _read(self) -> dict[str, dict[str, Any]]:
        path = self.root / _TAGS
        if not path.exists():
            return {}
        known = read_json(path)
        if not isinstance(known, dict) or not all(
            isinstance(item, dict) and isinstance(item.get("run"), str) for item in known.values()
        ):
            raise StorageError(f"{path}: damaged: expected a run per tag; put it back or delete it")
        return known

    def _locked(self) -> Any:
        return locked(self.root / f".{_TAGS}.lock")


def check_room(root: Path, most_megabytes: int | None) -> None:
    """Refuse one more run where those that are there take too much.

    Args:
        root: The directory that holds the runs; it need not be there yet.
        most_megabytes: What their checkpoints may take; without bound if None.

    Raises:
        ConfigError: They take more.
    """
    if most_megabytes is None:
        return
    num_bytes = 0
    for settings in root.glob("*/config.json"):
        for file in settings.parent.rglob("*.safetensors"):
            # A run under way lets go of its older ones meanwhile.
            with suppress(FileNotFoundError):
                num_bytes += file.stat().st_size
    if num_bytes > most_megabytes * 1_000_000:
        raise ConfigError(
            f"max_kept_megabytes: the checkpoints of the runs in {root} take "
            f"{num_bytes / 1e6:.1f} MB, {most_megabytes} are allowed before one more begins; "
            f"delete a run (colonnade runs delete {root} RUN), or raise it in federation.toml"
        )


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Plain values by their path."""
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, item in value.items():
            found |= _flat(item, f"{path}.{key}" if path else str(key))
        return found
    return {path: json.loads(json.dumps(value))}
