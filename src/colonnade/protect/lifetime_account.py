"""One account per table and for good: what every person's releases amount to, in one file.

By person, under a hash that only the party can make: how often something of the person left, the
sum of μ² of those releases that had noise, and how many had none. It is charged before a value
leaves, over all runs, methods, evaluations and predictions. Several processes may share one file
(SQLite): then two federations share one account. Nothing here ever becomes less. A release that
was charged under its name is not charged again: equal values with equal noise tell nothing new.

A charge is with the operating system before its value leaves, and on the disk for certain from the
next ``seal`` on. Each charge has a number and a hash over all before. The seal hands both out, so
that somebody else can say later whether this file is an old copy (``confirm``). The seal is
encrypted: whoever keeps it learns nothing of what left for others.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import BudgetSpent, Refused, StorageError
from colonnade.core.protection import PeopleAccount
from colonnade.protect.account_file import make_private, opened, told_errors, unusable
from colonnade.protect.accounting import largest_mu
from colonnade.protect.budget import Budget, shown_budget
from colonnade.protect.extra import needed
from colonnade.protect.people_sums import COLUMNS, Held, PeopleSums, person_numbers
from colonnade.protect.rounded_gaussian import Array

__all__ = ["LifetimeAccount", "Rules"]

_WAS_CHARGED = """
SELECT EXISTS (SELECT 1 FROM charges WHERE name = ?), EXISTS (SELECT 1 FROM missing)
"""
# Charges are folded into people when they hold so many more rows than there are people.
_FOLD_FACTOR, _FOLD_ROWS = 4, 100_000
_SEAL_BYTES = 512
# Floating-point sums of μ² may be a little above a budget that they just meet.
_ROUNDING = 1.0 + 1e-9
# A charge's number and hash, and the totals up to it.
_Charge = tuple[int, bytes, int, float, int]
_NO_CHARGE: _Charge = (0, bytes(32), 0, 0.0, 0)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What one person's account may amount to; None where nothing bounds it."""

    budget: Budget | None = None
    releases_per_row: int | None = None


class LifetimeAccount(PeopleAccount):
    """The account of a table, open for charging; safe from threads and processes.

    Args:
        path: Its file; None for one in memory.
        party: Whose it is.
        rules: What a person's account may amount to.
        shown: Where it can be seen, for a refusal.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        party: str,
        rules: Rules | None = None,
        shown: str = "shown by 'colonnade party budget'",
    ) -> None:
        self._path, self._party, self._shown = path or Path(":memory:"), party, shown
        self._rules = rules or Rules()
        budget = self._rules.budget
        self._most_spent = math.inf if budget is None else largest_mu(budget) ** 2 * _ROUNDING
        self._lock = threading.Lock()
        self._sums = PeopleSums()
        # The last charge that is in the sums, and how many rows came since the last folding.
        self._seen, self._num_unfolded = -1, 0
        # The newest charge of all processes, as a change under way knows it.
        self._newest = _NO_CHARGE
        try:
            if path is not None:
                make_private(path)
            self._file = opened(self._path)
            (self._secret,) = self._file.execute("SELECT secret FROM basis").fetchone()
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"{path}: can't be opened as an account: {error}") from error

    # Who is who

    def people(self, ids: Iterable[str]) -> Tensor:
        """A number for every id, which only this account can make (int64)."""
        return person_numbers(
            ids, hmac.digest(self._secret, b"colonnade account: people", "sha256")
        )

    # What leaves

    def charge(self, name: bytes, people: Tensor, spent: float | None) -> bool:
        """Charge one release to everybody in it, or raise; False if it was charged before.

        A person who stands in it several times is charged as often.
        """
        return self._charge(name, people, spent, refuses=True)

    def refuses(self, people: Tensor, price: float) -> Tensor:
        """For each of these, whether one release of them all would be refused because of them.

        ``price`` is the μ² that it would cost each.
        """
        keys = people.numpy().astype("<i8")
        with self._changing():
            places, often = self._sums.counted(keys)
            more = often[:, None] * np.array([1.0, price, 0.0])
            spent = places[self._is_too_much(self._sums.table[places] + more)]
            return torch.as_tensor(np.isin(self._sums.places_of(keys), spent))

    def take_up(self, name: bytes, people: Tensor, spent: float) -> None:
        """Charge a release that has left already, unless it was charged; never refuses."""
        self._charge(name, people, spent, refuses=False)

    def _charge(self, name: bytes, people: Tensor, spent: float | None, *, refuses: bool) -> bool:
        if self._was_charged(name):
            return False
        keys = people.numpy().astype("<i8")
        with self._changing() as file:
            if refuses:
                self._refuse_if_behind()
            if file.execute("SELECT 1 FROM charges WHERE name = ?", (name,)).fetchone():
                return False
            places, often = self._sums.counted(keys)
            more = often[:, None] * np.array([1.0, spent or 0.0, float(spent is None)])
            if refuses:
                self._refuse_too_much(self._sums.table[places] + more)
            self._note(name, keys.tobytes(), spent, more.max(axis=0, initial=0.0))
            self._sums.table[places] += more
            self._seen += 1
            self._num_unfolded += len(keys)
        return True

    def _was_charged(self, name: bytes) -> bool:
        """Whether a release was charged by anybody, and no charges are missing.

        No charge is ever taken back: to see one, nobody need wait for others who change something.
        """
        try:
            with self._lock:
                is_known, is_behind = self._file.execute(_WAS_CHARGED, (name,)).fetchone()
        except sqlite3.Error as error:
            raise unusable(self._path, error) from error
        return bool(is_known and not is_behind)

    def _note(self, name: bytes, content: bytes, cost: float | None, most: Array) -> None:
        """Append a charge, with what all charges can have given to one person at most.

        The newest one was read when this change began, and nobody else changes anything meanwhile.
        """
        number, head, *totals = self._newest
        told = hashlib.sha256(head + name + content + repr(cost).encode()).digest()
        releases, spent, bare = (float(one) + two for one, two in zip(most, totals, strict=True))
        self._file.execute(
            "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (number + 1, name, told, content, cost, int(releases), spent, int(bare)),
        )

    def _is_too_much(self, wanted: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        rules = self._rules
        most = math.inf if rules.releases_per_row is None else rules.releases_per_row
        is_bare = (wanted[:, 2] > 0) & (rules.budget is not None)
        return (wanted[:, 0] > most) | (wanted[:, 1] > self._most_spent) | is_bare

    def _refuse_too_much(self, wanted: Array) -> None:
        releases, spent, bare = wanted.max(axis=0, initial=0.0).tolist()
        rules = self._rules
        if rules.releases_per_row is not None and releases > rules.releases_per_row:
            self._refuse(
                "releases_per_row",
                f"something of a person in this batch would leave for time {releases:.0f}, over "
                f"all runs; it allows {rules.releases_per_row}",
            )
        if rules.budget is None:
            return
        if bare:
            self._refuse(
                "budget",
                "something of a person in this batch left without noise before, which no budget "
                "bounds",
            )
        if spent > self._most_spent:
            self._refuse(
                "budget",
                f"{releases:.0f} releases of a person in this batch would amount to "
                f"μ = {math.sqrt(spent):.3g}; the budget ({shown_budget(rules.budget)}) allows "
                f"{math.sqrt(self._most_spent):.3g}",
            )

    def _refuse(self, rule: str, what: str) -> None:
        raise BudgetSpent(
            f"party '{self._party}' refuses by its policy, rule '{rule}': {what}; its account is "
            f"{self._shown}",
            party=self._party,
        )

    # Copies

    def seal(self) -> bytes:
        """Have every charge on the disk; what tells this account from an older copy of itself."""
        with self._changing():
            self._fold(_FOLD_FACTOR * max(_FOLD_ROWS, len(self._sums.table)))
            number, head, *totals = self._last()
            content = {"number": number, "head": head.hex()}
            for place, column in enumerate(COLUMNS):
                content[f"total_{column}"] = totals[place]
                content[f"most_{column}"] = self._sums.most[place]
        with self._lock, told_errors(self._path):
            # The write-ahead log is synced before it is copied back.
            self._file.execute("PRAGMA wal_checkpoint(FULL)")
        nonce = secrets.token_bytes(12)
        # Of one length: not even how many digits a count has can be told.
        plain = json.dumps(content).ljust(_SEAL_BYTES).encode()
        sealed: bytes = self._cipher.encrypt(nonce, plain, b"")
        return nonce + sealed

    def _fold(self, most: int = 0) -> None:
        """Write the sums, so that charges need not be read again; if more rows came than that."""
        if self._num_unfolded <= most:
            return
        self._file.execute("DELETE FROM people")
        rows = zip(self._sums.places, *self._sums.table.T.tolist(), strict=True)
        self._file.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", rows)
        self._file.execute("UPDATE charges SET people = NULL WHERE number <= ?", (self._seen,))
        self._file.execute("UPDATE basis SET folded = ?", (self._seen,))
        self._num_unfolded = 0

    def _catch_up(self) -> None:
        """Take up what other processes have charged since."""
        self._newest = self._last()
        last = self._newest[0]
        if last == self._seen:
            return
        folded, *least = self._file.execute(
            "SELECT folded, releases, spent, bare FROM basis"
        ).fetchone()
        if self._seen < folded or self._seen < 0:
            people = self._file.execute("SELECT key, releases, spent, bare FROM people").fetchall()
            self._sums = PeopleSums(people, least)
            self._seen, self._num_unfolded = folded, 0
        newer = "SELECT people, cost FROM charges WHERE number > ? AND people IS NOT NULL"
        for content, cost in self._file.execute(newer, (self._seen,)):
            keys = np.frombuffer(content, dtype="<i8")
            places = self._sums.places_of(keys)
            np.add.at(self._sums.table, places, (1.0, cost or 0.0, float(cost is None)))
            self._num_unfolded += len(keys)
        self._seen = last

    def confirm(self, seal: bytes) -> None:
        """Raise Refused if a seal tells of charges that this account does not know."""
        content = self._opened(seal)
        head = bytes.fromhex(content["head"])
        with self._changing() as file:
            known = file.execute("SELECT 1 FROM charges WHERE head = ?", (head,)).fetchone()
            if content["number"] > 0 and not known:
                file.execute("INSERT OR REPLACE INTO missing VALUES (?, ?)", (head, seal))
        with self._lock:
            self._refuse_if_behind()

    def acknowledge(self) -> int:
        """Take it that charges are missing; raise everybody to what they can have had at most.

        Gives the number of seals that told of charges which are not here.
        """
        with self._changing() as file:
            seals = [seal for (seal,) in file.execute("SELECT seal FROM missing").fetchall()]
            for seal in seals:
                self._make_up_for(self._opened(seal))
            file.execute("DELETE FROM missing")
        return len(seals)

    def _make_up_for(self, content: dict[str, Any]) -> None:
        """Nobody had more than the most that anybody had, nor more than all that is missing."""
        number, head, *totals = self._last()
        most = np.array([content[f"most_{column}"] for column in COLUMNS], dtype=np.float64)
        total = np.array([content[f"total_{column}"] for column in COLUMNS], dtype=np.float64)
        lost = np.maximum(0.0, total - totals)
        sums = self._sums
        sums.table[:] = np.maximum(sums.table, np.minimum(most, sums.table + lost))
        sums.least = np.maximum(sums.least, np.minimum(most, sums.least + lost))
        self._file.execute("UPDATE basis SET releases = ?, spent = ?, bare = ?", tuple(sums.least))
        told, known = max(number, content["number"]), bytes.fromhex(content["head"])
        releases, spent, bare = np.maximum(total, totals).tolist()
        for step, end in ((1, known), (2, hashlib.sha256(head + known).digest())):
            self._file.execute(
                "INSERT INTO charges VALUES (?, NULL, ?, NULL, NULL, ?, ?, ?)",
                (told + step, end, int(releases), spent, int(bare)),
            )
        self._seen = told + 2
        self._num_unfolded += 1
        self._fold()

    def held(self) -> Held:
        """The account in figures."""
        with self._changing() as file:
            table = self._sums.table.copy()
            behind = file.execute("SELECT 1 FROM missing").fetchone() is not None
            named = "SELECT count(*) FROM charges WHERE name IS NOT NULL"
            (charges,) = file.execute(named).fetchone()
        return Held.of(table, num_charges=charges, is_behind=behind)

    def copy_to(self, path: Path) -> None:
        """Write a whole copy to another file."""
        make_private(path)
        with self._lock, closing(sqlite3.connect(path)) as file:
            self._file.backup(file)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __del__(self) -> None:
        # A session that ended, however it ended, keeps no file open.
        if hasattr(self, "_file"):
            self._file.close()

    def _refuse_if_behind(self) -> None:
        if self._file.execute("SELECT 1 FROM missing").fetchone():
            raise Refused(
                f"party '{self._party}' refuses, rule 'account': its account is older than what "
                "the label holder has a seal of: an earlier copy was put back, and releases are "
                "missing in it; put the newest copy back, or take note of it at the party by "
                "'colonnade party budget HOME --acknowledge', which raises every account to what "
                "it can have been at most",
                party=self._party,
            )

    def _opened(self, seal: bytes) -> dict[str, Any]:
        invalid = needed("cryptography.exceptions", "accounts").InvalidTag
        try:
            plain = self._cipher.decrypt(seal[:12], seal[12:], b"")
        except (invalid, ValueError) as error:
            raise Refused(
                f"party '{self._party}' refuses, rule 'account': the label holder's seal is not of "
                "this account; if the file of the account was lost, put a copy back, however old",
                party=self._party,
            ) from error
        content: dict[str, Any] = json.loads(plain)
        return content

    @property
    def _cipher(self) -> Any:
        aead = needed("cryptography.hazmat.primitives.ciphers.aead", "accounts")
        return aead.AESGCM(hmac.digest(self._secret, b"colonnade account: seal", "sha256"))

    def _last(self) -> _Charge:
        """The last charge's number and hash, and the totals up to it."""
        found: _Charge | None = self._file.execute(
            "SELECT number, head, releases, spent, bare FROM charges ORDER BY number DESC LIMIT 1"
        ).fetchone()
        return found or _NO_CHARGE

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """One change at a time, of all processes; wholly or, after an error, not at all."""
        with self._lock, told_errors(self._path):
            self._file.execute("BEGIN IMMEDIATE")
            try:
                self._catch_up()
                yield self._file
                self._file.execute("COMMIT")
            except BaseException:
                # What is in memory may be ahead of the file: it is read again.
                self._seen = -1
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")
                raise
