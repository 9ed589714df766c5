"""``fit``: train a federation on tables in memory, all parties in this process.

Runs from a file are in ``engine``; the trained federation is a ``Result``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from colonnade.core.config import parse
from colonnade.core.errors import ConfigError, DataError
from colonnade.core.method import Method
from colonnade.data.given_tables import BlockLike, LabelsLike, give
from colonnade.models import Factory
from colonnade.run.engine import Callback, Watcher, train
from colonnade.run.given_code import Factories, Loss, Metric, with_code
from colonnade.run.result import Result
from colonnade.run.sources import Sources, only_columns
from colonnade.run.spec import CHOICES, PartySpec, RunSpec, parse_spec

__all__ = ["fit"]

# Doubts about data are told here: seen on standard error unless a program says otherwise.
_LOGGER = logging.getLogger("colonnade.check")


def fit(
    blocks: Mapping[str, BlockLike],
    labels: LabelsLike,
    *,
    method: str | Mapping[str, Any] | Method = "splitnn",
    label_holder: str = "label_holder",
    id_column: str | Mapping[str, str] | None = None,
    ids: Any = None,
    task: Literal["binary", "multiclass", "regression"] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    refit: bool | None = None,
    seed: int = 0,
    device: str | None = None,
    precision: Literal["full", "mixed"] | None = None,
    encoder: Factories | None = None,
    head: Factories | None = None,
    fusion: Factory | None = None,
    loss: Loss | str | None = None,
    metrics: Mapping[str, Metric] | None = None,
    sample_weight: Any = None,
    warm_start: Result | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    callback: Callback | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Train one model over columns from several owners.

    Args:
        blocks: Each party's columns, by the party's name: a pandas, polars or Arrow table, an
            array, an ``Sql`` query, or the path of a CSV or Parquet file. Rows are matched by id:
            ``id_column``, or the table's index, or ``ids``. An index that only counts rows is no
            id, unless all tables are columns of one.
        labels: A series with ids as index, an array beside ``ids``, or the name of a column of the
            label holder's table.
        method: The method's name, a table of its settings with ``name``, or the method itself.
        label_holder: Who has the labels: one of the parties, or somebody without a block.
        id_column: The column that holds the ids: of every table, or by party.
        ids: One id per row, for arrays whose rows are all in the same order; or "row order", which
            says that all rows are in the same order and have no ids.
        task: The kind of the label; by default chosen from the labels.
        epochs: Passes over the training part.
        batch_size: Samples per exchange.
        refit: Whether to train anew in the end, on all rows but the test part's, for as many epochs
            as the validation part found best. Its quality on that part is the first training's.
        seed: The seed of splits, batches, first weights and noise.
        device: Where networks compute: "cpu" (the default), "cuda", "cuda:1", "mps", or "auto" for
            the first of them that this machine has.
        precision: "mixed" has large operations in bfloat16; "full" is the default.
        encoder: A function that makes a party's encoder, from the number of its prepared columns
            (of images: the shape of one) and the width of the embedding; one for all, or by party.
        head: A function that makes a party's head, from the width of the embedding and the number
            of outputs, for methods with heads; one for all, or by party.
        fusion: A function that makes the label holder's network, from the width of the combined
            embeddings and the number of outputs.
        loss: A loss by its name, or a function of outputs and targets that gives one loss per
            sample. Two classes have one output and targets 0.0 and 1.0; a regression's targets are
            in standard deviations from the mean.
        metrics: Functions of true and predicted labels by name, more is better; ``stop.metric`` may
            name one. A run with functions stays in memory: none of them can be written down.
        sample_weight: What each sample counts in the loss: a series with ids as index, an array
            beside ``ids``, or the name of a column of the label holder's table.
        warm_start: An earlier result of the same method and networks whose weights to begin with;
            its scales and classes stay. ``start.run`` names one on disk.
        settings: Any further settings of a run's TOML file, e.g. ``{"stop": {"patience": 5}}``.
        out: A directory to keep the run in; by default nothing is written.
        callback: A function that gets the event of every exchange: its number, its loss, and the
            validation part's metrics where an evaluation came out. Training ends if it returns
            True.
        watcher: An object that looks on, such as a progress bar.

    Returns:
        The trained federation; it predicts, evaluates and saves itself.

    Raises:
        ConfigError: A setting is wrong or given twice; the message has its path.
        DataError: Blocks or labels can't be used, or no sample is left to train on.
        StorageError: ``out`` holds a run already, can't be written, or is given with functions.

    >>> result = fit({"bank": bank, "telco": telco}, defaulted, label_holder="bank", epochs=30)
    >>> result.predict({"bank": new_bank, "telco": new_telco})
    """
    if warm_start is not None and not isinstance(warm_start, Result):
        raise ConfigError(
            f"warm_start: expected a Result, got {type(warm_start).__name__}; one on disk is named "
            "in settings.start.run"
        )
    if callback is not None and not callable(callback):
        raise ConfigError(f"callback: expected a function, got {type(callback).__name__}")
    id_columns = _id_columns(id_column, ids, blocks)
    spec = with_code(
        _spec(
            {"method": method, "seed": seed, "device": device, "precision": precision},
            task,
            epochs,
            batch_size,
            refit,
            id_columns,
            settings,
        ),
        blocks,
        encoder=encoder,
        head=head,
        fusion=fusion,
        loss=loss,
        metrics=metrics,
    )
    given = give(
        blocks,
        labels,
        label_holder=label_holder,
        ids=ids,
        id_columns=id_columns,
        weights=sample_weight,
        time=spec.data.split.time,
    )
    made = dict(given.blocks)
    for name, party in spec.party.items():
        if party.columns is not None and name in made:
            made[name] = only_columns(made[name], party.columns)
    if given.labels is None:
        raise DataError("labels: missing; give a series, an array or a column's name")
    sources = Sources(blocks=made, labels=given.labels, label_holder=label_holder, kind=task)
    directory = None if out is None else Path(out).expanduser()
    return train(
        spec,
        sources=sources,
        directory=directory,
        watcher=watcher,
        tell=_LOGGER.warning,
        callback=callback,
        earlier=warm_start,
    )


def _id_columns(
    id_column: str | Mapping[str, str] | None, ids: Any, blocks: Mapping[str, BlockLike]
) -> dict[str, str]:
    """The id column of every party that has one."""
    if id_column is None:
        return {}
    if ids is not None:
        raise ConfigError("id_column: ids= gives the ids already; leave one of the two out")
    return dict(id_column) if isinstance(id_column, Mapping) else dict.fromkeys(blocks, id_column)


def _spec(
    top: Mapping[str, Any],
    task: str | None,
    epochs: int | None,
    batch_size: int | None,
    refit: bool | None,
    id_columns: Mapping[str, str],
    settings: Mapping[str, Any] | None,
) -> RunSpec:
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(f"settings: expected a mapping, got {type(settings).__name__}")
    values: dict[str, Any] = dict(settings or {})
    for name, value in top.items():
        if name in values and (value is not None or name in ("method", "seed")):
            raise ConfigError(f"settings.{name}: pass it as {name}=..., so that it is said once")
        if value is not None:
            values[name] = value
    values["method"] = parse(Method, top["method"], choices=CHOICES, path="method")  # type: ignore[type-abstract]
    for section, key, value in (
        ("stop", "epochs", epochs),
        ("stop", "refit", refit),
        ("data", "batch_size", batch_size),
        ("label_holder", "task", task),
    ):
        if value is not None:
            if not isinstance(values.get(section, {}), Mapping):
                raise ConfigError(f"settings.{section}: expected a table, got {values[section]!r}")
            values[section] = {**values.get(section, {}), key: value}
    spec = parse_spec(values)
    _refuse_sources(spec)
    # Kept in the settings, so that predictions read the ids from the same column.
    own = {
        name: replace(spec.party.get(name, PartySpec()), id=column)
        for name, column in id_columns.items()
    }
    return replace(spec, party={**spec.party, **own})


def _refuse_sources(spec: RunSpec) -> None:
    """Refuse settings that name data, because blocks and labels are arguments."""
    named = {
        "data.dataset": spec.data.dataset,
        **{
            f"label_holder.{key}": getattr(spec.label_holder, key)
            for key in ("name", "file", "id", "label", "sample_weight")
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
                f"settings.{path}: fit takes blocks, labels, label_holder, id_column and "
                "sample_weight as arguments; leave it out"
            )
