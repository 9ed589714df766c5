"""A last training on all rows: anew, validation rows included, for as long as was best before.

The first training holds the validation part out and finds the length. Its quality on that part is
what the summary reports, because the second has learned from those rows. Of a run in a directory
the first is in ``first``, a whole run of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from colonnade.core.errors import ConfigError
from colonnade.core.federation import Stop
from colonnade.core.optimizers import OptimizerSpec
from colonnade.fabrics import InProcessSpec
from colonnade.quality.calibration import Calibration
from colonnade.run.assembly import Blueprint, TrainingData
from colonnade.run.blueprint_files import read_calibration, write_calibration
from colonnade.run.comparing import card_maker, epochs_of
from colonnade.run.defaults import LEAST
from colonnade.run.directory import RunDirectory
from colonnade.run.history import FIRST
from colonnade.run.result import Result
from colonnade.run.spec import RunSpec
from colonnade.run.storage import finite, read_json, write_json

__all__ = ["Trained", "refits", "refuse_refit", "train_twice"]

# With "auto", larger tables are not trained on twice: there validation rows are few of many.
_MOST_SAMPLES = 20_000


class Trained(NamedTuple):
    """A training that has ended, with the samples that it had."""

    result: Result
    blueprint: Blueprint
    data: TrainingData


def refuse_refit(spec: RunSpec, why: str) -> None:
    """Raise ConfigError if the settings ask for a second training where there can't be one."""
    if spec.stop.refit is True:
        raise ConfigError(f"stop.refit: {why}; leave it out")


def refits(spec: RunSpec, num_samples: int, begun: Path | None, *, starts_anew: bool) -> bool:
    """Whether to train a second time, on all rows.

    Args:
        spec: The settings.
        num_samples: How many samples have labels.
        begun: The directory of a run that goes on; it stays as it began.
        starts_anew: Whether first weights are drawn, not taken from an earlier run.

    Returns:
        What the settings say; with "auto", whether it is quick and costs no privacy.

    Raises:
        ConfigError: If it is asked for and can't be.
    """
    if spec.stop.refit is False or (begun is not None and not (begun / FIRST).exists()):
        return False
    parties = spec.party.values()
    guarded = any(item.protect or item.policy for item in parties) or spec.defaults.protect
    if guarded or spec.label_holder.protect:
        refuse_refit(spec, "every party's protected samples would be released by two trainings")
        return False
    if not starts_anew:
        refuse_refit(spec, "an earlier run's weights have learned from other rows already")
        return False
    if not round(num_samples * spec.data.split.validation):
        refuse_refit(spec, "there is no validation part; set data.split.validation above 0")
        return False
    is_quick = num_samples <= _MOST_SAMPLES and isinstance(spec.fabric, InProcessSpec)
    is_free = spec.stop.seconds is None
    return spec.stop.refit is True or (is_quick and is_free)


def train_twice(
    spec: RunSpec,
    train_once: Callable[[RunSpec, Path | None, bool, bool], Trained],
    directory: Path | None,
    *,
    resume: bool,
) -> Result:
    """Train with the validation part held out, then anew on all rows for as many epochs.

    Args:
        spec: The settings.
        train_once: Trains by settings, in a directory or in memory, resumed or not; the last
            argument says whether it is the first of the two.
        directory: Where the second one goes; the first goes below it.
        resume: Whether to go on with what is there.

    Returns:
        The second training's result; the first one's if that was interrupted.
    """
    first: Trained | None = None
    found: Mapping[str, Any]
    if directory is not None and resume and _is_done(directory / FIRST):
        found = read_json(directory / FIRST / "summary.json")
    else:
        if directory is not None and not resume:
            RunDirectory(directory, resume=False).close()  # before any training: is it free?
        below = None if directory is None else directory / FIRST
        first = train_once(replace(spec, stop=replace(spec.stop, refit=False)), below, resume, True)
        found = first.result.summary
        if found["stopped_by"] in ("interrupted", "refused"):
            return first.result
    goes_on = directory is not None and (directory / "config.json").exists()
    second = train_once(_second(spec, found), directory, resume and goes_on, False)
    summary = second.result.summary
    if summary["stopped_by"] == "interrupted":
        # What is half trained is of no use, unless a resume goes on with it.
        return second.result if first is None or directory is not None else first.result
    told = _told(summary, found)
    calibration = first.result.calibration if first is not None else None
    if directory is not None:
        calibration = read_calibration(directory / FIRST)
        write_calibration(directory, calibration)
        write_json(directory / "summary.json", finite(told))
    lines = second.result._lines  # in a directory the first one's are among them
    if first is not None and directory is None:
        lines = [*first.result._lines, *lines]
    return _joined(second, first, told, calibration, lines)


def _is_done(root: Path) -> bool:
    file = root / "summary.json"
    return file.exists() and read_json(file)["stopped_by"] not in ("interrupted", "refused")


def _second(spec: RunSpec, found: Mapping[str, Any]) -> RunSpec:
    """The settings of the second training: no validation part, and the length that was best."""
    per_epoch = round(found["exchanges"] / found["epochs"])
    best = found["best_exchange"] or found["exchanges"]
    # A schedule falls as it fell in the first training, which could have been longer.
    rows = found["num_samples"]
    more = 1 + rows.get("validation", 0) / rows["train"]
    length = round(more * spec.stop.num_exchanges(per_epoch))

    def over(optimizer: OptimizerSpec | None) -> OptimizerSpec | None:
        return None if optimizer is None else optimizer.over(length)

    # The loss of classes is best before their ranks are: it counts how sure a network has become.
    has_least = spec.stop.least_exchanges is not None and found["task"] != "regression"
    least = min(spec.stop.least_exchanges or 0, LEAST) if has_least else None
    split = replace(spec.data.split, validation=0.0)
    holder, defaults = spec.label_holder, spec.defaults
    return replace(
        spec,
        data=replace(spec.data, split=split),
        stop=Stop(epochs=epochs_of(best, per_epoch), least_exchanges=least),
        defaults=replace(defaults, optimizer=defaults.optimizer.over(length)),
        label_holder=replace(holder, optimizer=holder.optimizer.over(length)),
        party={
            name: replace(item, optimizer=over(item.optimizer)) for name, item in spec.party.items()
        },
    )


def _told(summary: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The second training's summary, with what only the first could measure."""
    kept = ("stopped_by", "exchanges", "best_exchange", "num_samples", "seconds", "quality")
    told = {**summary, "refit": {key: found[key] for key in kept}}
    told["quality"] = {**found["quality"], **summary["quality"]}
    told |= {key: found[key] for key in ("calibration", "doubts")}
    if "test" not in summary["quality"]:
        told |= {key: found[key] for key in ("headline", "presence")}
    return told


def _joined(
    second: Trained,
    first: Trained | None,
    summary: Mapping[str, Any],
    calibration: Calibration | None,
    lines: Sequence[Mapping[str, Any]],
) -> Result:
    """The second training's model, with the history of the first and a card for both."""
    result = second.result
    card = result._card
    if first is not None:
        card = first.result._card
        if "test" in second.data.labels:
            search = (first.blueprint, first.data)
            card = card_maker(
                second.blueprint, second.data, result._federation, summary["quality"], search
            )
    return Result(
        blueprint=second.blueprint,
        federation=result._federation,
        summary=summary,
        calibration=calibration,
        card=card,
        lines=lines,
    )
