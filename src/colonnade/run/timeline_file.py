"""timeline.jsonl of a run directory: who did what when, and marks of what went wrong.

Its size is bounded however long a run lasts: the newest exchanges are all there, of earlier ones
every second, fourth, eighth, ..., each of them whole. Marks are always kept, the newest ones if
there are very many.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from colonnade.core.errors import StorageError
from colonnade.core.printable import printable
from colonnade.core.timeline import Interval
from colonnade.files import write_atomically

__all__ = ["TIMELINE", "TimelineFile", "timeline_lines"]

TIMELINE = "timeline.jsonl"
# Between two writes, in real seconds: whoever looks on sees it soon, and a run is not slowed.
_WRITE_EVERY = 0.25
_MOST_MARKS = 500
_LONGEST_TEXT = 300
# Digits behind the point: 10 microseconds.
_DIGITS = 5


class TimelineFile:
    """Writes what a run's participants did.

    Args:
        root: The run's directory.
        keep: How many intervals to keep.
        after: How many exchanges are done: intervals of later ones, from before a resume, go.
    """

    def __init__(self, root: Path, *, keep: int, after: int) -> None:
        self._path = root / TIMELINE
        self._keep = keep
        self._written_at = -_WRITE_EVERY
        # What one write may add: where exchanges take no time at all, a part of them will do.
        self._batch = max(2, keep // 20)
        self._marks: list[dict[str, Any]] = []
        self._noted: list[_Noted] = []
        self._num_noted = 0
        old = timeline_lines(root)
        kept = [line for line in old if line["kind"] != "intervals" or line["exchange"] <= after]
        self._has_start = any(line["kind"] == "start" for line in kept)
        self._num_kept = sum(map(_size, kept))
        # Also if a line was cut off in its middle.
        if self._path.exists() and self._path.read_bytes() != _encoded(kept):
            self._rewrite(kept)

    def add(
        self,
        exchange: int,
        offset: float,
        intervals: Sequence[Interval],
        updates: int | None = None,
    ) -> None:
        """Add what was noted during an exchange; it is written now or a moment later.

        Args:
            exchange: How many exchanges are done.
            offset: What to add to the fabric's seconds to have those of the run.
            intervals: As the fabric noted them.
            updates: How many updates the label holder made meanwhile, where it measures them.
        """
        if not intervals:
            return
        self._noted.append(_Noted(exchange, offset, intervals, updates))
        self._num_noted += len(intervals)
        if self._num_noted > 4 * self._batch:
            self._noted = _thinned(self._noted, self._batch)
            self._num_noted = sum(item.size for item in self._noted)
        if time.monotonic() - self._written_at >= _WRITE_EVERY:
            self.write()

    def start(self, facts: Mapping[str, Any]) -> None:
        """Write the first line, unless it is there: how long the run will be, what to compare with.

        Args:
            facts: JSON's types.
        """
        if not self._has_start:
            self._has_start = True
            self._marks.append({"kind": "start", "exchange": 0, **facts})
            self.write()

    def mark(
        self, what: str, *, exchange: int, elapsed: float, party: str | None = None, text: str = ""
    ) -> None:
        """Add a mark and write it at once: somebody was away, came back, failed or refused."""
        content = printable(text)[:_LONGEST_TEXT]
        line = {"kind": "mark", "what": what, "exchange": exchange}
        self._marks.append(line | {"elapsed": elapsed, "party": party, "text": content})
        self.write()

    def write(self) -> None:
        """Write what is not on disk yet. A full disk costs the picture, never the run."""
        self._written_at = time.monotonic()
        noted = self._noted
        if self._num_noted > self._batch:
            noted = _thinned(noted, self._batch)
        new = [*(item.line() for item in noted), *self._marks]
        self._noted, self._num_noted, self._marks = [], 0, []
        if not new:
            return
        self._num_kept += sum(item.size for item in noted)
        with contextlib.suppress(StorageError, OSError):
            if self._num_kept > 2 * self._keep:
                self._rewrite(_bounded([*timeline_lines(self._path.parent), *new], self._keep))
            else:
                with self._path.open("ab") as file:
                    file.write(_encoded(new))

    def _rewrite(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._num_kept = sum(map(_size, lines))
        write_atomically(self._path, _encoded(lines))


def timeline_lines(root: Path) -> list[dict[str, Any]]:
    """The whole lines of a run directory's timeline; a line that can't be read is passed over.

    Args:
        root: The run's directory.

    Returns:
        None of a run that has no timeline.
    """
    try:
        content = (root / TIMELINE).read_bytes()
    except OSError:
        return []
    found = []
    for line in content.rpartition(b"\n")[0].splitlines():
        with contextlib.suppress(ValueError):
            read = json.loads(line)
            if isinstance(read, dict) and isinstance(read.get("exchange"), int) and "kind" in read:
                found.append(read)
    return found


class _Noted(NamedTuple):
    """What happened during an exchange."""

    exchange: int
    offset: float
    intervals: Sequence[Interval]
    updates: int | None

    @property
    def size(self) -> int:
        return len(self.intervals)

    def line(self) -> dict[str, Any]:
        parties: dict[str, dict[str, list[list[Any]]]] = {}
        own: dict[str, list[list[Any]]] = {}
        for item in self.intervals:
            lane = own if item.party is None else parties.setdefault(item.party, {})
            span: list[Any] = [
                round(item.begin + self.offset, _DIGITS),
                round(item.end + self.offset, _DIGITS),
            ]
            if item.party_awaited is not None:
                span.append(item.party_awaited)
            lane.setdefault(item.state, []).append(span)
        return {
            "kind": "intervals",
            "exchange": self.exchange,
            "parties": {name: parties[name] for name in sorted(parties)},
            "label_holder": own,
            **({} if self.updates is None else {"updates": self.updates}),
        }


class _Read(NamedTuple):
    """A line of the file."""

    exchange: int
    size: int
    line: Mapping[str, Any]


T = TypeVar("T", bound=_Noted | _Read)


def _size(line: Mapping[str, Any]) -> int:
    if line["kind"] != "intervals":
        return 0
    lanes = [*line["parties"].values(), line["label_holder"]]
    return sum(len(spans) for lane in lanes for spans in lane.values())


def _thinned(items: Sequence[T], keep: int) -> list[T]:
    """So many of them that at most ``keep`` intervals are left, half of them the newest."""
    place, size = len(items), 0
    while place > 0 and size + items[place - 1].size <= keep // 2:
        place -= 1
        size += items[place].size
    old, stride = list(items[:place]), 1
    while sum(item.size for item in old) > keep // 2:
        stride *= 2
        old = [item for item in old if item.exchange % stride == 0]
    return [*old, *items[place:]]


def _bounded(lines: Sequence[Mapping[str, Any]], keep: int) -> list[Mapping[str, Any]]:
    """The lines with so many intervals, and the newest marks, in the order of exchanges."""
    spans = [_Read(line["exchange"], _size(line), line) for line in lines if _size(line)]
    marks = [line for line in lines if line["kind"] == "mark"]
    starts = [line for line in lines if line["kind"] == "start"]
    kept = [*starts, *(item.line for item in _thinned(spans, keep)), *marks[-_MOST_MARKS:]]
    return sorted(kept, key=lambda line: line["exchange"])


def _encoded(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
