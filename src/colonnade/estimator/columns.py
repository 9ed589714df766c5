"""Assignment of a table's columns to parties, and the blocks of the parties."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError
from colonnade.data.blocks import Block
from colonnade.data.given_tables import row_ids

__all__ = ["Columns", "assign_columns", "blocks_by_party", "label_name"]

Columns: TypeAlias = Sequence[str | int]


def assign_columns(
    parties: Mapping[str, Columns] | None,
    names: list[str],
    *,
    named: bool,
    numbers: Sequence[Any] | None = None,
) -> dict[str, list[str]]:
    """The names of each party's columns; every column belongs to exactly one party.

    ``numbers`` are the columns' own names where X names them by numbers: 10 is then the column
    that is called 10, and not the eleventh.
    """
    if parties is None:
        first = math.ceil(len(names) / 2)
        halves = {"party_1": names[:first], "party_2": names[first:]}
        return {party: half for party, half in halves.items() if half}
    if not isinstance(parties, Mapping) or not parties:
        raise ConfigError(
            f"parties: expected a mapping of each party to its columns, got {parties!r}"
        )
    known = set(names)
    if numbers is not None:
        parties = {name: _by_number(items, numbers, name) for name, items in parties.items()}
    assigned = {
        party: [_name_of(item, names, known if named else None, party) for item in columns]
        for party, columns in _column_lists(parties)
    }
    owners: dict[str, list[str]] = {name: [] for name in names}
    for party, columns in assigned.items():
        for name in columns:
            owners[name].append(party)
    shared = {name: who for name, who in owners.items() if len(who) > 1}
    if shared:
        listed = ", ".join(f"'{name}' ({' and '.join(who)})" for name, who in shared.items())
        raise ConfigError(f"parties: a column belongs to one party, once; given twice: {listed}")
    nobodys = [name for name, who in owners.items() if not who]
    if nobodys:
        raise ConfigError(
            f"parties: no party has the columns {nobodys}; give them to one, or drop them from X"
        )
    return assigned


def _by_number(items: Any, numbers: Sequence[Any], party: str) -> Any:
    """The positions of columns that are named by numbers."""
    if isinstance(items, str) or not isinstance(items, Sequence | np.ndarray | pd.Index):
        return items  # refused later, with everything else that is no list
    places = {item: place for place, item in enumerate(numbers)}
    absent = [item for item in items if item not in places]
    if absent:
        raise ConfigError(
            f"parties.{party}: X has no column {absent[0]!r}; its columns are called "
            f"{list(numbers)[:8]}"
        )
    return [places[item] for item in items]


def _column_lists(parties: Mapping[str, Columns]) -> Iterator[tuple[str, list[Any]]]:
    for party, columns in parties.items():
        if not isinstance(party, str) or not party:
            raise ConfigError(f"parties: a party's name is a text that is not empty, got {party!r}")
        if isinstance(columns, str) or not isinstance(columns, Sequence | np.ndarray | pd.Index):
            raise ConfigError(f"parties.{party}: expected a list of columns, got {columns!r}")
        if not len(columns):
            raise ConfigError(
                f"parties.{party}: has no columns; give it at least one, or leave it out"
            )
        yield party, list(columns)


def _name_of(item: Any, names: list[str], known: set[str] | None, party: str) -> str:
    """The name of a column that is given by name, if X has names, or by position."""
    path = f"parties.{party}"
    if isinstance(item, int | np.integer) and not isinstance(item, bool):
        if not 0 <= item < len(names):
            raise ConfigError(
                f"{path}: there is no column at position {item}; X has {len(names)} columns, "
                "counted from 0"
            )
        return names[int(item)]
    if not isinstance(item, str):
        raise ConfigError(f"{path}: a column is a name or a position, got {item!r}")
    if known is None:
        raise ConfigError(f"{path}: X has no column names, so none is '{item}'; give its position")
    if item not in known:
        raise ConfigError(f"{path}: X has no column '{item}'{nearest(item, names)}")
    return item


def blocks_by_party(table: pd.DataFrame, parties: Mapping[str, list[str]]) -> dict[str, Block]:
    """Every party's columns of a table whose rows are in one order."""
    ids = row_ids(len(table))
    return {
        party: Block(owner=party, ids=ids, values=table[columns])
        for party, columns in parties.items()
    }


def label_name(names: list[str]) -> str:
    """A name for the target that no column has."""
    name = "label"
    while name in names:
        name += "_"
    return name
