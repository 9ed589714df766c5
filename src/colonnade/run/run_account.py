"""The account of a party in one process: by person, in the run directory.

A party whose policy has a budget has one. It is charged by training, evaluation and predictions
alike, by every process that opens the run. Between organisations a party has an account of its own
for all runs (``federate.own_account``); this one ends with its run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from colonnade.core.errors import StorageError
from colonnade.core.party import Party
from colonnade.core.protection import PeopleAccount
from colonnade.data.blocks import Block
from colonnade.data.pooling import PooledBlock
from colonnade.protect.budget import Budget
from colonnade.protect.lifetime_account import LifetimeAccount, Rules
from colonnade.protect.people_sums import person_numbers
from colonnade.run.samples import Rows
from colonnade.run.storage import party_directory

__all__ = [
    "RunAccount",
    "account_of",
    "people_of_blocks",
    "people_of_samples",
    "settle_account",
    "write_account",
]

_FILE = "account.sqlite"


class RunAccount(PeopleAccount):
    """One party's account in one run; in memory until it has a place.

    Args:
        party: The party's name.
        budget: What nobody's releases may exceed.
    """

    def __init__(self, party: str, budget: Budget) -> None:
        self._party, self._rules = party, Rules(budget=budget)
        self._account = self._opened(None)

    def _opened(self, path: Path | None) -> LifetimeAccount:
        where = "in memory" if path is None else f"in {path}"
        return LifetimeAccount(path, party=self._party, rules=self._rules, shown=where)

    def settle(self, path: Path) -> None:
        """Go on with the account in a file; nothing has been charged so far."""
        self._account.close()
        self._account = self._opened(path)

    def copy_to(self, path: Path) -> None:
        """Write the account to a file."""
        self._account.copy_to(path)

    def charge(self, name: bytes, people: Tensor, spent: float | None) -> bool:
        return self._account.charge(name, people, spent)

    def take_up(self, name: bytes, people: Tensor, spent: float) -> None:
        self._account.take_up(name, people, spent)

    def seal(self) -> bytes:
        return self._account.seal()

    def confirm(self, seal: bytes) -> None:
        self._account.confirm(seal)


def people_of_blocks(
    names: Collection[str], blocks: Mapping[str, Block | PooledBlock]
) -> dict[str, Tensor]:
    """The person of every row of these parties' blocks, by its id."""
    return {
        name: _people(block.ids)
        for name, block in blocks.items()
        if name in names and isinstance(block, Block)
    }


def people_of_samples(
    names: Collection[str],
    ids: Sequence[str],
    features: Mapping[str, Tensor],
    rows: Mapping[str, Rows],
) -> dict[str, Tensor]:
    """The person of every row of these parties' features that is a sample, by the samples' ids.

    Without ids it is nobody: then nothing of these parties leaves.
    """
    found = {}
    for name in rows.keys() & set(names) if ids else ():
        own = torch.from_numpy(rows[name])
        found[name] = torch.full((len(features[name]),), -1, dtype=torch.int64)
        found[name][own[own >= 0]] = _people(ids)[own >= 0]
    return found


def _people(ids: Iterable[str]) -> Tensor:
    """The same number for an id in every process and run."""
    return person_numbers(ids, b"colonnade: people of a run")


def account_of(party: Party) -> RunAccount | None:
    """A party's account in one process; none without a budget."""
    account = party.door.account
    return account if isinstance(account, RunAccount) else None


def settle_account(party: Party, root: Path, *, is_expected: bool) -> None:
    """Have a party charge its account in a run directory.

    Args:
        party: The party, before anything leaves it.
        root: The run directory.
        is_expected: Whether the account must be there already.

    Raises:
        StorageError: It should be there and is not.
    """
    account = account_of(party)
    if account is None:
        return
    path = party_directory(root, party.name) / _FILE
    if is_expected and not path.exists():
        raise StorageError(
            f"{path}: no such account, and the policy of '{party.name}' has a budget: what left in "
            "training is not known; put the file back, or, if an earlier Colonnade trained the "
            "run, resume it, which counts by the ledger"
        )
    account.settle(path)


def write_account(party: Party, root: Path) -> None:
    """Copy a party's account, if it has one, to a directory of its own.

    Raises:
        StorageError: It can't be written.
    """
    account = account_of(party)
    if account is not None:
        path = party_directory(root, party.name) / _FILE
        try:
            account.copy_to(path)
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"{path}: can't be written: {error}") from error
