"""A party's own account of its table: where its file is, and who the people in it are.

Two homes of one table, in two federations, name one file in their settings (``account``): then
their agents charge one account.
"""

from __future__ import annotations

from pathlib import Path

import torch

from colonnade.align.ids import PreparedIds
from colonnade.core.errors import ConfigError, DataError
from colonnade.data.blocks import require_columns
from colonnade.data.table_files import read_table
from colonnade.federate.party_home import PartySettings, read_party
from colonnade.federate.party_policy import PartyPolicy, read_policy
from colonnade.protect.accounting import epsilon_of_mu, largest_mu
from colonnade.protect.budget import shown_budget
from colonnade.protect.ledger import Ledger
from colonnade.protect.lifetime_account import LifetimeAccount, Rules

__all__ = ["account_path", "acknowledge_copies", "open_account", "people_of", "told_account"]

_FILE = "account.sqlite"


def account_path(home: Path, settings: PartySettings) -> Path:
    """Where the account of a party's table is: as its settings say, or in its home."""
    return settings.account or home / _FILE


def open_account(home: Path, settings: PartySettings, policy: PartyPolicy) -> LifetimeAccount:
    """The account of a party's table, under the rules of the party's policy."""
    rules = Rules(budget=policy.budget, releases_per_row=policy.releases_per_row)
    return LifetimeAccount(account_path(home, settings), party=settings.name, rules=rules)


def people_of(
    account: LifetimeAccount, settings: PartySettings, policy: PartyPolicy, ids: PreparedIds
) -> torch.Tensor:
    """The person of every row that an alignment reads, by the account's own numbers (int64).

    People go by the ids as they stand in the table, not by the rules of an alignment, which the
    label holder proposes: under other rules everybody would be somebody else.
    """
    columns = (settings.person,) if settings.person else policy.key or (settings.id,)
    table = read_table(settings.data, text_columns=columns)
    where = f"people of '{settings.name}'"
    require_columns(table, columns, where)
    if len(table) != ids.num_rows:
        raise DataError(f"{where}: the table has changed while it was read; try again")
    rows = table[list(columns)].iloc[ids.rows]
    if rows.isna().to_numpy().any():
        raise ConfigError(f"{where}: rows without one; name a column that says who everybody is")
    if len(columns) == 1:
        return account.people(rows.iloc[:, 0].astype(str))
    return account.people("\x1f".join(map(str, row)) for row in rows.itertuples(index=False))


def told_account(home: Path) -> list[str]:
    """A party's account in words: counts and quantiles over people, never who they are."""
    settings = read_party(home)
    policy = read_policy(settings.policy)
    account = open_account(home, settings, policy)
    held = account.held()
    account.close()
    lines = [
        f"account of '{settings.name}' in {account_path(home, settings)}: over all runs, "
        "predictions and federations that share it",
        f"{held.num_people:,} people in {held.num_charges:,} releases of batches; of "
        f"{held.num_bare:,} people something left without noise",
        "of a person: least, quartiles, most",
    ]
    for name, ranks in held.quantiles.items():
        lines.append(f"  {name:14s}" + "  ".join(f"{rank:.4g}" for rank in ranks))
    most = held.quantiles["mu"][-1]
    budget, delta = policy.budget, 1e-5 if policy.budget is None else policy.budget.delta
    if held.num_bare:
        lines.append("  no ε bounds what left without noise")
    if most:
        lines.append(f"  with noise, at most: ε {epsilon_of_mu(most, delta):.4g} at δ {delta:g}")
    if budget is not None:
        allowed = f"{shown_budget(budget)}, which is μ = {largest_mu(budget):.4g}"
        lines.append(f"policy, rule 'budget': {allowed}")
    if policy.releases_per_row is not None:
        left = policy.releases_per_row - int(held.quantiles["releases"][-1])
        lines.append(
            f"policy, rule 'releases_per_row': {policy.releases_per_row}; whoever has had most has "
            f"{max(0, left)} left"
        )
    if held.is_behind:
        lines.append(
            "BEHIND: the label holder has a seal of releases that are not here; nothing leaves "
            "until the newest copy is put back, or --acknowledge raises every account"
        )
    return lines


def acknowledge_copies(home: Path) -> list[str]:
    """Take note that an old copy of the account or of ledgers was put back; tells what was."""
    settings = read_party(home)
    account = open_account(home, settings, read_policy(settings.policy))
    count = account.acknowledge()
    account.close()
    lines = [f"account: {count} seals of missing releases acknowledged"]
    for place in sorted(home.glob("runs/*/ledger.jsonl")):
        ledger = Ledger(place.parent, run=place.parent.name)
        if ledger.acknowledge():
            lines.append(f"run {place.parent.name}: missing entries acknowledged in its ledger")
        ledger.close()
    return lines
