"""What a run says of missing blocks: quality by observed set, calibration, warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from colonnade.core.federation import Federation, Predicted
from colonnade.data.association import Association
from colonnade.quality.by_set import SetQuality, by_set, by_size, set_sizes
from colonnade.quality.calibration import Calibration, calibration_error, fit_calibration
from colonnade.run.assembly import TrainingData

__all__ = ["Findings", "look_at_missing", "warnings_of"]

# More sets than this would make a summary that nobody reads; the largest are kept.
MOST_SETS = 512


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was found; the calibration is for whoever predicts."""

    presence: Mapping[str, Any] | None = None
    calibration: Calibration | None = None
    calibration_errors: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    # What was doubtful about the data before training.
    doubts: tuple[str, ...] = ()

    @property
    def plain(self) -> dict[str, Any]:
        """For the summary."""
        calibration = None
        if self.calibration is not None:
            fitted = asdict(self.calibration)
            by_size = {
                key: {str(size): value for size, value in fitted[key].items()}
                for key in ("temperatures", "spreads")
            }
            otherwise = self.calibration.otherwise
            errors = dict(self.calibration_errors or {})
            calibration = {**by_size, "otherwise": otherwise, "errors": errors}
        return {
            "presence": self.presence,
            "calibration": calibration,
            "warnings": list(self.warnings),
            "doubts": list(self.doubts),
        }


def warnings_of(associations: Sequence[Association]) -> tuple[str, ...]:
    """What to warn of before training."""
    return tuple(item.warning for item in associations if item.is_strong)


def look_at_missing(federation: Federation, data: TrainingData) -> Findings:
    """Measure by observed set, and calibrate; only where the method can do without blocks."""
    warnings = warnings_of(data.associations)
    presence: dict[str, Any] | None = None
    if data.associations or not all(map(data.roll.is_complete, data.roll.presence)):
        presence = {"associations": [asdict(item) for item in data.associations]}
    if not federation.method.info.tolerates_missing:
        return Findings(presence=presence, warnings=warnings)
    parts = [part for part in ("validation", "test") if part in data.labels]
    # The last part is shown by set, for which every party's own answers are wanted as well.
    shown = parts[-1] if presence is not None and parts else None
    outputs: dict[str, Tensor] = {}
    each: Mapping[str, Predicted] = {}
    for part in parts:
        plan = federation.holder.parts[part].plan
        found = federation.predictions(part, plan, each=part == shown)
        outputs[part] = found.outputs
        if part == shown:
            each = found.each
    tables = {part: torch.from_numpy(data.roll.presence[part]) for part in parts}
    task = federation.holder.task
    calibration = errors = None
    if "validation" in parts:
        part = "validation"
        sizes = set_sizes(tables[part])
        calibration = fit_calibration(task, outputs[part], data.labels[part], sizes)
        if task.kind != "regression":
            errors = {
                part: _errors(federation, calibration, outputs[part], tables[part], data, part)
                for part in parts
            }
    if presence is not None and shown is not None:
        values, table, rows = data.labels[shown], tables[shown], outputs[shown]
        sets = by_set(task, rows, each, values, data.roll.names, table)
        presence |= {
            "part": shown,
            "num_sets": len(sets),
            "by_set": [_plain(item) for item in _largest(sets)],
            "by_size": [_plain(item) for item in by_size(task, rows, each, values, table)],
        }
    return Findings(
        presence=presence, calibration=calibration, calibration_errors=errors, warnings=warnings
    )


def _errors(
    federation: Federation,
    calibration: Calibration,
    outputs: Tensor,
    table: Tensor,
    data: TrainingData,
    part: str,
) -> dict[str, Any]:
    """Expected calibration error before and after, of all samples and by set size."""
    sizes = set_sizes(table)
    calibrated = calibration.sharpened(outputs, sizes)
    task, values = federation.holder.task, data.labels[part]

    def both(chosen: Tensor) -> dict[str, float]:
        own = values[chosen.numpy()]
        return {
            "before": calibration_error(task, outputs[chosen], own),
            "after": calibration_error(task, calibrated[chosen], own),
        }

    return {
        **both(torch.ones(len(outputs), dtype=torch.bool)),
        "by_size": {str(size): both(sizes == size) for size in sorted(set(sizes.tolist()))},
    }


def _largest(sets: list[SetQuality]) -> list[SetQuality]:
    """The sets with most samples, in the order that they came in."""
    if len(sets) <= MOST_SETS:
        return sets
    ranked = sorted(range(len(sets)), key=lambda place: -sets[place].num_samples)
    return [sets[place] for place in sorted(ranked[:MOST_SETS])]


def _plain(item: SetQuality) -> dict[str, Any]:
    return {**asdict(item), "parties": list(item.parties)}
