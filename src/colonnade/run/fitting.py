"""From samples to a blueprint: fits what each side fits on the training part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from colonnade.core.config import nearest
from colonnade.core.devices import require_device
from colonnade.core.errors import ConfigError
from colonnade.core.task import Task, TaskKind, infer_kind
from colonnade.data.blocks import Block
from colonnade.data.pooling import PooledBlock
from colonnade.run.assembly import Blueprint
from colonnade.run.defaults import without_validation
from colonnade.run.party_building import fit_preparation
from colonnade.run.samples import Arrangement, Roll, Rows
from colonnade.run.sources import Sources
from colonnade.run.spec import RunSpec

__all__ = ["blueprint_of", "fit_blueprint"]


def fit_blueprint(spec: RunSpec, sources: Sources, arrangement: Arrangement) -> Blueprint:
    """The blueprint of a run whose blocks are all in this process; see ``blueprint_of``."""
    return blueprint_of(
        spec,
        label_holder=sources.label_holder,
        label_name=sources.labels.name,
        values=arrangement.values,
        weights=arrangement.weights,
        kind=sources.kind,
        roll=arrangement.roll,
        num_rows=arrangement.num_rows,
        blocks=arrangement.blocks,
        rows=arrangement.rows,
    )


def blueprint_of(
    spec: RunSpec,
    *,
    label_holder: str,
    label_name: str,
    values: np.ndarray[Any, Any],
    weights: np.ndarray[Any, Any] | None,
    kind: TaskKind | None,
    roll: Roll,
    num_rows: Mapping[str, int],
    blocks: Mapping[str, Block | PooledBlock],
    rows: Mapping[str, Rows],
    elsewhere: tuple[str, ...] = (),
) -> Blueprint:
    """Fit what each side fits on the training part: scales and levels, classes or units.

    Args:
        spec: The settings.
        label_holder: Who has the labels.
        label_name: The label's name.
        values: The label of every sample.
        weights: What every sample counts in the loss, if not all alike.
        kind: The kind of target, where the source of the data knows it.
        roll: The samples of every part.
        num_rows: How many rows every block and the labels had.
        blocks: The blocks that are here.
        rows: The row of every sample in them.
        elsewhere: Parties behind a network.

    Returns:
        The blueprint, from which the federation is built.

    Raises:
        ConfigError, DataError: If the settings or the data do not fit the task.
    """
    require_device(spec.device, spec.precision)
    if "validation" not in roll.samples:
        spec = replace(spec, stop=without_validation(spec.stop))
    for key in ("patience", "target"):
        if getattr(spec.stop, key) is not None and "validation" not in roll.samples:
            raise ConfigError(
                f"stop.{key}: needs a validation part; set data.split.validation above 0"
            )
    kind = spec.label_holder.task or kind or infer_kind(values)
    task = Task.fit(
        kind,
        values[roll.samples["train"]],
        loss=spec.label_holder.loss,
        class_weights=spec.label_holder.class_weights,
        weights=None if weights is None else weights[roll.samples["train"]],
        metrics=spec.label_holder.metrics,
    )
    if spec.stop.metric is not None and spec.stop.metric not in task.metric_names:
        hint = nearest(spec.stop.metric, task.metric_names)
        raise ConfigError(f"stop.metric: '{spec.stop.metric}' is not measured of a {kind}{hint}")
    holder = replace(spec.label_holder, name=label_holder, task=kind)
    return Blueprint(
        spec=replace(spec, label_holder=holder),
        label_holder=label_holder,
        label_name=label_name,
        num_samples=roll.num_samples,
        num_complete=roll.num_complete,
        num_rows=num_rows,
        task=task,
        preparations={
            name: fit_preparation(spec, name, block, rows[name], roll)
            for name, block in blocks.items()
        },
        elsewhere=elsewhere,
    )
