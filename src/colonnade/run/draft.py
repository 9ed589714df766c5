"""A draft of a run's TOML file, from nothing but the parties' tables.

The id column is one whose values are unique in every table and found in the others; the label is
named, or guessed and said so. Columns that can't be used are left out with the reason beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError
from colonnade.core.task import infer_kind
from colonnade.data.blocks import make_block
from colonnade.data.column_check import column_views
from colonnade.data.leaks import is_recoded
from colonnade.data.prepare import PrepareSpec
from colonnade.data.table_files import read_noted_table
from colonnade.run.defaults import STOP

__all__ = ["Draft", "draft"]

_LABELS = ("label", "target", "y", "class", "outcome", "churn", "churned", "default", "defaulted")
# Prepared in the kindest way: what is missing is filled, what is constant goes.
_KIND = PrepareSpec(missing="mean", constant="drop")


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A file's text, and who holds the label."""

    text: str
    label_holder: str
    label: str
    ids: Mapping[str, str]


def draft(
    files: Sequence[Path],
    *,
    label: str | None = None,
    id_column: str | None = None,
    base: Path | None = None,
) -> Draft:
    """Write settings that train, from tables.

    Args:
        files: One table per party; the label is in one of them.
        label: Its column; guessed if not given.
        id_column: The id column of every table; found if not given.
        base: The directory that the file will be in; paths in it are relative to it.

    Returns:
        The text of a TOML file, with what was found in comments.

    Raises:
        ConfigError: No id column is found, or no table has the label.
        DataError: A table can't be read.
    """
    names = _party_names(files)
    tables, notes = {}, {}
    for name, file in zip(names, files, strict=True):
        tables[name], notes[name] = read_noted_table(file)
    ids = _given_ids(tables, id_column) if id_column else _found_ids(tables)
    holder, column, guessed = _label(tables, ids, label)
    own = _texts(tables[holder][ids[holder]])
    known = [set(_texts(tables[name][ids[name]])) for name in names]
    is_complete = all(set(own) <= other for other in known)
    truth = tables[holder].set_axis(own)[column].dropna()
    kind = infer_kind(truth.to_numpy())
    lines = [
        "# A run of Colonnade: look it over, then",
        "#   colonnade check THIS_FILE",
        "#   colonnade train THIS_FILE",
        'method = "splitnn"        # colonnade methods lists the others',
        "seed = 0",
        "",
        "[data]",
        f"# {len(set(own).intersection(*known))} of {len(own)} labelled samples are in every file.",
    ]
    if not is_complete:
        lines.append('incomplete = "drop"      # leave out samples that some party does not have')
    lines += [
        "",
        "[label_holder]",
        f"name = {_quoted(holder)}",
        f"label = {_quoted(column)}{'    # guessed: correct it if it is not' if guessed else ''}",
        f'task = "{kind}"    # from the {truth.nunique()} values of the label',
    ]
    for name, file in zip(names, files, strict=True):
        table = tables[name].drop(columns=[column] if name == holder else [])
        place = file if base is None else _relative(file, base)
        lines += ["", f"[party.{_key(name)}]", f"file = {_quoted(str(place))}"]
        lines += [f"# {note}" for note in notes[name]]
        lines.append(f"id = {_quoted(ids[name])}")
        lines += _columns(name, table, ids[name], truth)
    lines += ["", "[stop]", f"patience = {STOP.patience}    # evaluations without a new best"]
    return Draft(text="\n".join(lines) + "\n", label_holder=holder, label=column, ids=ids)


def _columns(name: str, table: pd.DataFrame, id_column: str, truth: pd.Series[Any]) -> list[str]:
    """The columns that can be used, and why others are not; how gaps are filled."""
    block = make_block(name, table, id_column=id_column)
    views, errors = column_views(block, _KIND)
    rows = pd.Index(block.ids).get_indexer(pd.Index(truth.index))
    labels = truth.to_numpy()[rows >= 0]
    values = block.values
    assert isinstance(values, pd.DataFrame)
    recoded = [
        view.name
        for view in views
        if len(labels) and is_recoded(values[view.name].iloc[rows[rows >= 0]], labels)
    ]
    used = [view for view in views if view.name not in recoded]
    lines = [f"# left out: {error}" for error in errors]
    lines += [f"# left out: column '{item}' is the label in another coding" for item in recoded]
    lines += [f"#   {view}" for view in used]
    if errors or recoded:
        lines.append(f"columns = [{', '.join(_quoted(view.name) for view in used)}]")
    prepare = []
    if any(view.num_missing for view in used):
        prepare.append('missing = "mean"')
    if len(views) + len(errors) < len(block.columns):
        prepare.append('constant = "drop"')
    if prepare:
        lines.append(f"prepare = {{ {', '.join(prepare)} }}")
    return lines


def _party_names(files: Sequence[Path]) -> list[str]:
    if not files:
        raise ConfigError("files: name one table per party")
    names: list[str] = []
    for file in files:
        stem = file.name.split(".")[0] or "party"
        name, number = stem, 2
        while name.casefold() in {item.casefold() for item in names}:
            name, number = f"{stem}_{number}", number + 1
        names.append(name)
    return names


def _given_ids(tables: Mapping[str, pd.DataFrame], column: str) -> dict[str, str]:
    for name, table in tables.items():
        if column not in table.columns:
            hint = nearest(column, [str(item) for item in table.columns])
            raise ConfigError(f"--id: the table of '{name}' has no column '{column}'{hint}")
    return dict.fromkeys(tables, column)


def _found_ids(tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """In every table a column of unique values that the first table's has too."""
    candidates = {
        name: {str(column): set(_texts(table[column])) for column in _unique(table)}
        for name, table in tables.items()
    }
    first, *others = tables
    best: tuple[tuple[int, int], dict[str, str]] | None = None
    for column, values in candidates[first].items():
        found, shared, same = {first: column}, 0, 0
        for other in others:
            ranked = [
                (len(values & theirs), name == column, name)
                for name, theirs in candidates[other].items()
            ]
            count, is_same, name = max(ranked, default=(0, False, ""))
            if not count:
                break
            found[other] = name
            shared, same = shared + count, same + is_same
        if len(found) == len(tables) and (best is None or (shared, same) > best[0]):
            best = (shared, same), found
    if best is None:
        raise ConfigError(
            "--id: no column of unique values is shared by all tables; name the column that holds "
            "the sample ids, and check that ids are written the same way everywhere"
        )
    return best[1]


def _unique(table: pd.DataFrame) -> list[str]:
    """Columns that may be ids: unique, without gaps, no fractions."""
    found = []
    for column in table.columns:
        values = table[column]
        if values.isna().any() or not values.is_unique or values.dtype.kind not in "iuOfTU":
            continue
        if values.dtype.kind == "f" and not np.all(np.mod(values, 1) == 0):
            continue
        found.append(column)
    return found


def _texts(column: pd.Series[Any]) -> list[str]:
    if column.dtype.kind == "f":
        column = column.astype("int64")
    return [str(item) for item in column]


def _label(
    tables: Mapping[str, pd.DataFrame], ids: Mapping[str, str], label: str | None
) -> tuple[str, str, bool]:
    """Who has the label, its column, and whether that is a guess."""
    if label is not None:
        for name, table in tables.items():
            if label in table.columns:
                return name, label, False
        names = [str(item) for table in tables.values() for item in table.columns]
        raise ConfigError(f"--label: no table has a column '{label}'{nearest(label, names)}")
    for name, table in tables.items():
        for column in table.columns:
            if str(column).casefold() in _LABELS and column != ids[name]:
                return name, str(column), True
    first = next(iter(tables))
    rest = [item for item in tables[first].columns if item != ids[first]]
    for column in reversed(rest):
        if 2 <= tables[first][column].nunique() <= 20:
            return first, str(column), True
    raise ConfigError("--label: none of the columns looks like a label; name it")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(name: str) -> str:
    plain = name.replace("-", "").replace("_", "")
    return name if plain.isascii() and plain.isalnum() else _quoted(name)


def _relative(file: Path, base: Path) -> Path:
    try:
        return file.resolve().relative_to(base.resolve())
    except ValueError:
        return file.resolve()
