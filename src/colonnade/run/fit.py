"""The short way in: blocks and labels from memory, a trained federation out."""

from __future__ import annotations

from collections.abc import Mapping
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
from colonnade.run.sources import Sources
from colonnade.run.spec import CHOICES, RunSpec, parse_spec

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
    spec = _spec(method, task, epochs, batch_size, seed, settings)
    sources = Sources(
        blocks={
            name: item
            if isinstance(item, Block)
            else make_block(
                name,
                item,
                ids=None if isinstance(item, pd.DataFrame) and ids is None else ids,
                id_column=id_column if isinstance(item, pd.DataFrame) else None,
            )
            for name, item in blocks.items()
        },
        labels=_labels(labels, ids),
        label_holder=label_holder,
        kind=task,
    )
    return train(
        spec, sources=sources, directory=None if out is None else Path(out), watcher=watcher
    )


def _spec(
    method: str | Mapping[str, Any] | Method,
    task: str | None,
    epochs: int | None,
    batch_size: int | None,
    seed: int,
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
    return parse_spec(values)


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
