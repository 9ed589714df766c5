"""How often a label holder asks for a person, and for everybody, counted at the party for good.

People go by the account's own numbers, so the file has no ids. Time goes by whole hours of the
party's wall clock; a clock that was set back gives nothing back.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import ConfigError, StorageError
from colonnade.protect.policy import refusal

__all__ = ["Queries", "QueryCounts"]

_HOUR_SECONDS = 3600
_WAIT_SECONDS = 60.0
# SQLite takes only so many values in one question.
_AT_ONCE = 500
_TABLES = """
CREATE TABLE IF NOT EXISTS asked (
    person INTEGER, hour INTEGER, times INTEGER NOT NULL, PRIMARY KEY (person, hour));
CREATE TABLE IF NOT EXISTS hours (hour INTEGER PRIMARY KEY, times INTEGER NOT NULL);
"""


@dataclass(frozen=True, kw_only=True)
class Queries:
    """How often a label holder may ask for predictions; None where nothing bounds it.

    Attributes:
        max_per_person: Of one person, in ``per_hours`` hours.
        max_in_all: Of all people together, in ``per_hours`` hours.
        per_hours: See both; whole hours of the party's clock.
    """

    max_per_person: int | None = None
    max_in_all: int | None = None
    per_hours: int = 24

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise ConfigError(f"{name}: must be at least 1, got {value}")

    @property
    def bounds_nothing(self) -> bool:
        """Whether nothing need be counted."""
        return self.max_per_person is None and self.max_in_all is None


class QueryCounts:
    """The counts of one home; several sessions and processes may share the file.

    Args:
        path: The file; it is made if it is not there.
        party: Whose counts these are, for messages.
    """

    def __init__(self, path: Path, party: str) -> None:
        self._path, self._party = path, party
        self._lock = threading.Lock()
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._file = sqlite3.connect(
                path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"{path}: queries can't be counted: {error}") from error

    def count(self, rules: Queries, people: Tensor, now: float) -> None:
        """Count one request for these people, or refuse it, which counts nothing.

        Args:
            rules: The policy's.
            people: By the account's numbers; somebody with two rows stands there twice.
            now: Seconds since 1970.

        Raises:
            Refused: It would be too often; the message names the rule.
            StorageError: It can't be counted; nothing may leave then.
        """
        if rules.bounds_nothing or not len(people):
            return
        who, often = np.unique(people.numpy(), return_counts=True)
        with self._changing():
            hour = self._begin(rules, now)
            self._check_all(rules, int(often.sum()))
            self._check_each(rules, who, often)
            self._file.execute(
                "INSERT INTO hours VALUES (?, ?) ON CONFLICT DO UPDATE SET times = times + ?",
                (hour, int(often.sum()), int(often.sum())),
            )
            self._file.executemany(
                "INSERT INTO asked VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET times = times + ?",
                [(int(one), hour, int(n), int(n)) for one, n in zip(who, often, strict=True)],
            )

    def refuses(self, rules: Queries, people: Tensor, now: float) -> Tensor:
        """For each of these, whether a request for them all would be too often; counts nothing."""
        if rules.max_per_person is None:
            return torch.zeros(len(people), dtype=torch.bool)
        who, places, often = np.unique(people.numpy(), return_inverse=True, return_counts=True)
        with self._changing():
            self._begin(rules, now)
            asked = self._asked(who)
        times = np.array([asked.get(int(one), 0) for one in who]) + often
        return torch.from_numpy((times > rules.max_per_person)[places])

    def _begin(self, rules: Queries, now: float) -> int:
        """The hour that it is; what is too long ago is forgotten."""
        (last,) = self._file.execute("SELECT max(hour) FROM hours").fetchone()
        hour = max(int(now // _HOUR_SECONDS), last or 0)
        since = hour - rules.per_hours + 1
        self._file.execute("DELETE FROM asked WHERE hour < ?", (since,))
        self._file.execute("DELETE FROM hours WHERE hour < ?", (since,))
        return hour

    def _check_all(self, rules: Queries, more: int) -> None:
        if rules.max_in_all is None:
            return
        (before,) = self._file.execute("SELECT coalesce(sum(times), 0) FROM hours").fetchone()
        if before + more > rules.max_in_all:
            raise refusal(
                self._party,
                "queries.max_in_all",
                f"{before} samples were asked for in {rules.per_hours} hours, and {more} more are "
                f"asked for; it allows {rules.max_in_all}",
            )

    def _check_each(self, rules: Queries, who: np.ndarray, often: np.ndarray) -> None:
        if rules.max_per_person is None:
            return
        asked = self._asked(who)
        most = max(asked.get(int(one), 0) + int(n) for one, n in zip(who, often, strict=True))
        if most > rules.max_per_person:
            raise refusal(
                self._party,
                "queries.max_per_person",
                f"a person would be asked for {most} times in {rules.per_hours} hours; it allows "
                f"{rules.max_per_person}",
            )

    def _asked(self, who: np.ndarray) -> dict[int, int]:
        """How often these people were asked for."""
        asked: dict[int, int] = {}
        for begin in range(0, len(who), _AT_ONCE):
            some = who[begin : begin + _AT_ONCE].tolist()
            marks = ",".join("?" * len(some))
            found = self._file.execute(
                f"SELECT person, sum(times) FROM asked WHERE person IN ({marks}) GROUP BY person",
                some,
            )
            asked.update(found.fetchall())
        return asked

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            try:
                self._file.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    self._file.execute("COMMIT")
                except BaseException:
                    if self._file.in_transaction:
                        self._file.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StorageError(f"{self._path}: queries can't be counted: {error}") from error
