"""A blueprint in files: settings, task and preparations of a run directory, and who left it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from colonnade.core.config import dump, parse
from colonnade.core.errors import ConfigError, DataError, StorageError
from colonnade.core.task import Task
from colonnade.data.pooling import PooledPreparation
from colonnade.data.prepare import Preparation
from colonnade.formats import RUN, check_format, write_format
from colonnade.quality.calibration import Calibration
from colonnade.quality.result_card import CARD, ResultCard
from colonnade.run.assembly import Blueprint
from colonnade.run.spec import RunSpec, as_begun, plain_spec, stored_spec
from colonnade.run.storage import finite, party_directory, read_json, write_json

__all__ = [
    "LEFT",
    "read_blueprint",
    "read_calibration",
    "read_card",
    "read_left",
    "refuse_other_run",
    "resumed_spec",
    "write_blueprint",
    "write_calibration",
    "write_card",
]

LEFT = "left.json"


def write_blueprint(root: Path, blueprint: Blueprint) -> None:
    """Write everything but data and weights that is needed to build the federation again."""
    write_format(root, RUN)
    for file, plain in _plain_blueprint(root, blueprint).items():
        write_json(file, plain)


def _plain_blueprint(root: Path, blueprint: Blueprint) -> dict[Path, Any]:
    known = asdict(blueprint.task)
    # Without the code of a caller's own, with which the settings are refused.
    for key in ("own_loss", "own_metrics"):
        known.pop(key)
    if not known["weighted"]:
        known.pop("weighted")
    task = {
        **known,
        "label": blueprint.label_name,
        "holder": blueprint.label_holder,
        "num_samples": dict(blueprint.num_samples),
        "num_complete": dict(blueprint.num_complete),
        "num_rows": dict(blueprint.num_rows),
        "elsewhere": list(blueprint.elsewhere),
    }
    fitted = blueprint.preparations if blueprint.pooled is None else blueprint.pooled.parts
    return {
        **({root / LEFT: {"left": list(blueprint.left)}} if blueprint.left else {}),
        root / "config.json": plain_spec(blueprint.spec),
        root / "label_holder" / "task.json": task,
        **{
            party_directory(root, name) / "preparation.json": {"party": name, **dump(preparation)}
            for name, preparation in fitted.items()
        },
    }


def read_blueprint(root: Path) -> Blueprint:
    """Read what ``write_blueprint`` wrote."""
    if not root.is_dir():
        raise StorageError(f"{root}: no such directory; give a run directory")
    settings = read_json(root / "config.json")
    check_format(root, RUN)
    spec = stored_spec(settings)
    left = read_left(root)
    file = root / "label_holder" / "task.json"
    preparations: dict[str, Preparation] = {}
    try:
        task = read_json(file)
        label, holder = task.pop("label"), task.pop("holder")
        num_samples, num_rows = task.pop("num_samples"), task.pop("num_rows")
        num_complete, elsewhere = task.pop("num_complete"), task.pop("elsewhere", [])
        fitted = Task(**{**task, **{key: tuple(task[key]) for key in ("classes", "class_weights")}})
        for file in sorted((root / "parties").glob("*/preparation.json")):
            plain = read_json(file)
            name = plain.pop("party")
            if name not in left:
                preparations[name] = parse(Preparation, plain)
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise StorageError(f"{file}: damaged: {type(error).__name__}: {error}") from error
    return Blueprint(
        spec=spec,
        label_holder=holder,
        label_name=label,
        num_samples=num_samples,
        num_complete=num_complete,
        num_rows=num_rows,
        task=fitted,
        preparations={holder: PooledPreparation(parts=preparations)}
        if spec.method.needs.pooled
        else preparations,
        left=left,
        elsewhere=tuple(name for name in elsewhere if name not in left),
    )


def read_left(root: Path) -> tuple[str, ...]:
    """Who left a run's federation for good."""
    if not (root / LEFT).exists():
        return ()
    names = read_json(root / LEFT).get("left")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise StorageError(f"{root / LEFT}: damaged: expected a list of names under 'left'")
    return tuple(names)


def write_calibration(root: Path, calibration: Calibration | None) -> None:
    """Write how sure predictions may be; nothing if that is not known."""
    if calibration is not None:
        write_json(root / "label_holder" / "calibration.json", asdict(calibration))


def read_calibration(root: Path) -> Calibration | None:
    """Read what ``write_calibration`` wrote, if anything."""
    file = root / "label_holder" / "calibration.json"
    if not file.exists():
        return None
    plain = read_json(file)
    try:
        by_size = {
            key: {int(size): float(value) for size, value in plain[key].items()}
            for key in ("temperatures", "spreads")
        }
        return Calibration(**by_size, otherwise=float(plain["otherwise"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"{file}: damaged: {type(error).__name__}: {error}") from error


def write_card(root: Path, card: ResultCard) -> None:
    """Write the result card."""
    write_json(root / CARD, finite(card.plain()))


def read_card(root: Path) -> ResultCard | None:
    """Read the result card; none if there is none."""
    file = root / CARD
    if not file.exists():
        return None
    try:
        return ResultCard.of(read_json(file))
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{file}: damaged: {type(error).__name__}: {error}") from error


def resumed_spec(root: Path, spec: RunSpec) -> RunSpec:
    """The settings with which a run goes on: defaults are those of the time when it began."""
    file = root / "config.json"
    if not file.exists():
        return spec
    check_format(root, RUN)
    return as_begun(spec, stored_spec(read_json(file)))


def refuse_other_run(root: Path, blueprint: Blueprint) -> None:
    """A resumed run may be given more time; settings and data must be those it began with."""
    left = read_left(root)
    if left:
        raise ConfigError(
            f"{root}: {', '.join(left)} left this federation, so it can't train on; start another "
            "run from it with --from"
        )
    has_begun = (root / "checkpoint.json").exists()
    for file, current in _plain_blueprint(root, blueprint).items():
        if not has_begun and not file.exists():
            continue  # killed while these were written
        before = read_json(file)
        now = json.loads(json.dumps(current))
        if file.name == "config.json":
            # As it is read today: a key that is new since then is as it was before.
            before = plain_spec(stored_spec(before))
            for free in ("stop", "record", "device"):
                before.pop(free, None)
                now.pop(free, None)
        elif file.name == "preparation.json":
            party = before.pop("party", None)
            before = {"party": party, **dump(parse(Preparation, before))}
            if not before["ranges"]:
                # An earlier version kept none; they follow from the same rows.
                before.pop("ranges")
                now.pop("ranges", None)
        changed = _first_difference(before, now)
        if not changed:
            continue
        if file.name == "config.json":
            raise ConfigError(
                f"{changed}: differs from the run in {root}; resume with the same settings "
                "(stop, record and device may change), or start another run"
            )
        raise DataError(
            f"{file.relative_to(root)}, {changed}: the data are not those that the run in {root} "
            "began with; resume with the same data, or start another run"
        )


def _first_difference(left: Any, right: Any, path: str = "") -> str:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted({*left, *right}):
            inner = f"{path}.{key}" if path else str(key)
            found = _first_difference(left.get(key), right.get(key), inner)
            if found:
                return found
        return ""
    return "" if left == right else path
