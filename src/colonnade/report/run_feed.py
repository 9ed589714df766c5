"""What is new in a run directory since the last look, for whoever watches the run.

Only facts that a page shows leave here: of the settings the names of method, parties and fabric, no
paths. A run that has not begun yet, a line that is half written and one that is damaged are passed
over until there is more.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from colonnade.core.errors import ColonnadeError
from colonnade.quality.result_card import CARD
from colonnade.report.charts import party_colours
from colonnade.run.history import FIRST
from colonnade.run.timeline_file import TIMELINE

__all__ = ["News", "RunFeed"]

# An event's name and its content, as JSON's types.
News = tuple[str, Any]

# So many lines of a kind reach a page that opens late; the newest is always among them.
_MOST_LINES = 1500
_LARGEST_FILE = 64_000_000
_SUMMARY = (
    *("stopped_by", "exchanges", "quality", "quality_name", "headline", "refusal", "fault"),
    *("elapsed_seconds", "times", "seconds_computing", "seconds_waiting", "attendance"),
    *("bytes_up", "bytes_down", "warnings", "best_exchange"),
)


class RunFeed:
    """Looks into a run directory again and again.

    Args:
        root: The run's directory; it may not be there yet.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._metrics = _Tail("metrics.jsonl")
        self._timeline = _Tail(TIMELINE)
        self._said: dict[str, Any] = {}

    def news(self) -> Iterator[News]:
        """Look again.

        Yields:
            ``run`` (what is trained, by whom), ``metrics`` and ``timeline`` (new lines, and whether
            they replace all before), ``card`` and ``end`` (how it ended); each only if it changed.
        """
        config = _read(self._root / "config.json")
        about = config or _read(self._root / FIRST / "config.json")
        if about is not None:
            yield from self._changed("run", _about(self._root, about))
        # Of two trainings, the first one until the second has begun.
        place = self._root
        if config is None and (place / FIRST / "config.json").exists():
            place = place / FIRST
        for name, tail in (("metrics", self._metrics), ("timeline", self._timeline)):
            is_new, lines = tail.look(place)
            if lines or is_new:
                yield name, {"reset": is_new, "lines": _thinned(lines)}
        yield from self._changed("card", _read(self._root / CARD))
        summary = _read(self._root / "summary.json")
        if summary is not None:
            yield from self._changed("end", {key: summary.get(key) for key in _SUMMARY})

    def _changed(self, name: str, content: Any) -> Iterator[News]:
        if content is not None and self._said.get(name) != content:
            self._said[name] = content
            yield name, content


class _Tail:
    """The lines of a file that were added since the last look; all of them if it was replaced."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._offset = 0
        self._inode = 0

    def look(self, root: Path) -> tuple[bool, list[dict[str, Any]]]:
        path = root / self._name
        try:
            with path.open("rb") as file:
                status = path.stat()
                is_new = status.st_size < self._offset or status.st_ino != self._inode
                if is_new:
                    self._offset, self._inode = 0, status.st_ino
                file.seek(self._offset)
                content = file.read(_LARGEST_FILE).rpartition(b"\n")
        except OSError:
            return False, []
        self._offset += len(content[0]) + len(content[1])
        found = []
        for line in content[0].splitlines():
            with contextlib.suppress(ValueError):
                read = json.loads(line)
                if isinstance(read, dict):
                    found.append(read)
        return is_new, found


def _thinned(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds: dict[Any, int] = {}
    for line in lines:
        kinds[line.get("kind")] = kinds.get(line.get("kind"), 0) + 1
    steps = {kind: -(-count // _MOST_LINES) for kind, count in kinds.items() if kind != "intervals"}
    found = []
    for line in lines:
        kind = line.get("kind")
        kinds[kind] -= 1
        # Counted from the end, so that the newest stays.
        if kinds[kind] % steps.get(kind, 1) == 0:
            found.append(line)
    return found


def _about(root: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    parties = config.get("party") or {}
    names = sorted(parties) if isinstance(parties, Mapping) else []
    return {
        "name": root.resolve().name,
        "method": _name_in(config, "method"),
        "fabric": _name_in(config, "fabric"),
        "label_holder": _name_in(config, "label_holder"),
        "parties": names,
        "colours": list(party_colours(tuple("12345678")).values()),
    }


def _name_in(config: Mapping[str, Any], key: str) -> str | None:
    table = config.get(key)
    found = table.get("name") if isinstance(table, Mapping) else None
    return found if isinstance(found, str) else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, ColonnadeError):
        return None
    return found if isinstance(found, dict) else None
