"""The short way in: blocks and labels from memory, a trained federation out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from colonnade.core.config import parse
from colonnade.core.errors import ConfigError, DataError
from colonnade.core.method import Method
from colonnade.data.blocks import Block, Labels, as_ids, make_block
from colonnade.run.engine import Watcher, train
from colonnade.run.result import Result
from colonnade.run.sources import Sources, only_columns
from colonnade.run.spec import CHOICES, PartySpec, RunSpec, parse_spec

__all__ = ["fit"]

if TYPE_CHECKING:
    # pandas' classes take type parameters in its stubs only.
    BlockLike: TypeAlias = Block | pd.DataFrame | np.ndarray[Any, Any]
    LabelsLike: TypeAlias = Labels | pd.Series[Any] | np.ndarray[Any, Any]


def fit(
    blocks: Mapping[str, BlockLike],
    labels: LabelsLike,
    *,
    method: str | Mapping[str, Any] | Method = "splitnn",
    label_holder: str = "label_holder",
    id_column: str | None = None,
    ids: Any = None,
    task: Literal["binary", "multiclass", "regression"] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Train one model over columns from several owners.

    ``blocks`` maps each party to its table; rows are matched by ``id_column``, or by the table's
    index, or by ``ids`` (one per row, for arrays whose rows are all in the same order). ``labels``
    are a series with ids as index, or an array beside ``ids``. ``label_holder`` names who has the
    labels; if it is one of the parties, its block is at its side. ``settings`` takes everything
    that a run's TOML file takes, e.g. ``{"stop": {"patience": 5}}``. With ``out`` the run is kept
    in that directory.

    >>> result = fit({"bank": bank, "telco": telco}, defaulted, label_holder="bank", epochs=30)
    >>> result.predict({"bank": new_bank, "telco": new_telco})
    """
    spec = _spec(method, task, epochs, batch_size, seed, id_column, list(blocks), settings)
    made = {name: _block(name, item, ids, id_column) for name, item in blocks.items()}
    for name, party in spec.party.items():
        if party.columns is not None and name in made:
            made[name] = only_columns(made[name], party.columns)
    sources = Sources(
        blocks=made, labels=_labels(labels, ids), label_holder=label_holder, kind=task
    )
    return train(
        spec, sources=sources, directory=None if out is None else Path(out), watcher=watcher
    )


def _block(name: str, item: BlockLike, ids: Any, id_column: str | None) -> Block:
    if isinstance(item, Block):
        return item
    if isinstance(item, pd.DataFrame):
        return make_block(name, item, ids=ids, id_column=id_column)
    return make_block(name, item, ids=ids)


def _spec(
    method: str | Mapping[str, Any] | Method,
    task: str | None,
    epochs: int | None,
    batch_size: int | None,
    seed: int,
    id_column: str | None,
    names: list[str],
    settings: Mapping[str, Any] | None,
) -> RunSpec:
    values: dict[str, Any] = dict(settings or {})
    for name in ("method", "seed"):
        if name in values:
            raise ConfigError(f"settings.{name}: pass it as {name}=..., so that it is said once")
    values["seed"] = seed
    values["method"] = parse(Method, method, choices=CHOICES, path="method")  # type: ignore[type-abstract]
    for section, key, value in (
        ("stop", "epochs", epochs),
        ("data", "batch_size", batch_size),
        ("label_holder", "task", task),
    ):
        if value is not None:
            values[section] = {**values.get(section, {}), key: value}
    spec = parse_spec(values)
    _refuse_sources(spec)
    if id_column is None:
        return spec
    # Predictions find the ids where training found them.
    party = {
        name: replace(spec.party.get(name, PartySpec()), id=id_column)
        for name in {*names, *spec.party}
    }
    return replace(spec, party=party)


def _refuse_sources(spec: RunSpec) -> None:
    """Blocks and labels are given as arguments: settings that name others would be ignored."""
    named = {
        "data.dataset": spec.data.dataset,
        **{
            f"label_holder.{key}": getattr(spec.label_holder, key)
            for key in ("name", "file", "id", "label")
        },
        **{
            f"party.{name}.{key}": getattr(party, key)
            for name, party in spec.party.items()
            for key in ("file", "id")
        },
    }
    for path, value in named.items():
        if value is not None:
            raise ConfigError(
                f"settings.{path}: fit takes blocks, labels, label_holder and id_column as "
                "arguments; leave it out"
            )


def _labels(labels: LabelsLike, ids: Any) -> Labels:
    if isinstance(labels, Labels):
        return labels
    if isinstance(labels, pd.Series):
        name = "label" if labels.name is None else str(labels.name)
        keys = labels.index if ids is None else ids
        return Labels(ids=as_ids(keys, "labels"), values=labels.to_numpy(), name=name)
    if ids is None:
        raise DataError("labels: an array has no ids; pass ids=, or a series with ids as index")
    return Labels(ids=as_ids(ids, "labels"), values=np.asarray(labels))
