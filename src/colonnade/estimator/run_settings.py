"""From an estimator's parameters to a run's settings; a setting given twice is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from colonnade.core.config import dump
from colonnade.core.errors import ConfigError, DataError
from colonnade.core.task import TaskKind
from colonnade.data.splits import SplitSpec
from colonnade.run.defaults import BATCH_SIZE, FUSION, OPTIMIZER, STOP
from colonnade.run.spec import CHOICES, RunSpec, parse_spec

__all__ = ["fills_missing", "run_spec"]

# Keys that `settings` must not have, because the parameter sets them.
_SAID_BY_PARAMETERS: Mapping[str, str] = {
    "method": "method",
    "dtype": "dtype",
    "device": "device",
    "precision": "precision",
    "seed": "random_state",
    "data.batch_size": "batch_size",
    "data.split": "validation_fraction",
    "stop.epochs": "epochs",
    "stop.patience": "patience",
    "stop.refit": "refit",
    "defaults.encoder": "hidden and embedding, or as settings.party.NAME.encoder",
    "defaults.optimizer": "optimizer and learning_rate",
    "label_holder.name": "label_holder",
    "label_holder.fusion": "fusion and combine",
    "label_holder.optimizer": "optimizer and learning_rate",
}
# Keys that `settings` must not have, because the table and the target decide them.
_SAID_BY_DATA = (
    "data.dataset",
    "data.num_parties",
    "label_holder.file",
    "label_holder.id",
    "label_holder.label",
    "label_holder.task",
)
_SAID_BY_DATA_PER_PARTY = ("file", "id", "columns")


def run_spec(parameters: Mapping[str, Any], kind: TaskKind, num_samples: int) -> RunSpec:
    """The settings of a run, from an estimator's parameters and its ``settings``."""
    given = {} if parameters["settings"] is None else _plain(parameters["settings"])
    _refuse_said_elsewhere(given)
    of = {name: _plain(value) for name, value in parameters.items() if name != "random_state"}
    optimizer = _merged(
        "optimizer", "name", of["optimizer"], "lr", _learning_rate(of["learning_rate"]), OPTIMIZER
    )
    plain = dump(parse_spec({"method": of["method"]}).defaults.encoder)
    encoder = {**plain, **_said({"hidden": of["hidden"], "embedding": of["embedding"]})}
    stop = _stop(of, given)
    defaults = given.get("defaults", {})
    values = {
        **given,
        "method": of["method"],
        "dtype": of["dtype"],
        "device": of["device"],
        "precision": of["precision"],
        "seed": _seed(parameters["random_state"]),
        "data": {
            **given.get("data", {}),
            "batch_size": BATCH_SIZE if of["batch_size"] is None else of["batch_size"],
            "split": {"validation": _validation_share(of, stop, num_samples), "test": 0.0},
        },
        "stop": stop,
        "defaults": {
            **defaults,
            "prepare": _keeping_constants(defaults.get("prepare", {})),
            "encoder": {"kind": "mlp", **encoder},
            "optimizer": optimizer,
        },
        "label_holder": {
            **given.get("label_holder", {}),
            "task": kind,
            "fusion": _merged("fusion", "kind", of["fusion"], "combine", of["combine"], FUSION),
            "optimizer": optimizer,
        },
        "party": {
            name: {**item, "prepare": _keeping_constants(item["prepare"])}
            if isinstance(item, Mapping) and "prepare" in item
            else item
            for name, item in given.get("party", {}).items()
        },
    }
    return parse_spec(values)


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    """What was given; the rest has its default."""
    return {key: value for key, value in values.items() if value is not None}


def _stop(of: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """When training ends: whoever says how many epochs decides about patience too."""
    own = {**given.get("stop", {}), **_said({"refit": of["refit"]})}
    if of["epochs"] is not None:
        return {**own, "epochs": of["epochs"], "patience": of["patience"]}
    return {**dump(STOP), **own, **_said({"patience": of["patience"]})}


def _learning_rate(rate: Any) -> float | None:
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise ConfigError(f"learning_rate: expected a number above 0, got {rate!r}")
    return float(rate)


def _seed(random_state: Any) -> int:
    """The seed: the whole number itself, or one drawn from a generator."""
    generator = check_random_state(random_state)
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(generator.randint(2**31 - 1))


def _validation_share(of: Mapping[str, Any], stop: Mapping[str, Any], num_samples: int) -> float:
    """The share of samples for validation; zero without patience, which alone needs them."""
    if stop["patience"] is None:
        if stop.get("target") is not None:
            raise ConfigError(
                "settings.stop.target: a quality on the validation part, which there is only with "
                "patience; set patience too"
            )
        return 0.0
    share = of["validation_fraction"]
    is_default = share is None and of["patience"] is None
    share = SplitSpec().validation if share is None else share
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise ConfigError(f"validation_fraction: expected a share between 0 and 1, got {share!r}")
    if round(num_samples * float(share)) < 2:
        if is_default:
            return 0.0  # too few to hold any out
        raise DataError(
            f"validation_fraction: {share} of {num_samples} samples is less than two samples; "
            "raise it, or set epochs and leave patience out"
        )
    return float(share)


def _plain(value: Any) -> Any:
    """A parameter with Python's types in place of numpy's, which a grid search may pass."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _merged(
    parameter: str, tag: str, value: Any, key: str, item: Any, default: Any
) -> dict[str, Any]:
    """A name, or a table with one, together with a key that another parameter sets."""
    if value is None:
        whole: dict[str, Any] = dump(default, choices=CHOICES)
        return {**whole, **_said({key: item})}
    if not isinstance(value, str | Mapping):
        raise ConfigError(f"{parameter}: expected a name or a table with '{tag}', got {value!r}")
    table = {tag: value} if isinstance(value, str) else value
    if key in table:
        own = {"lr": "learning_rate"}.get(key, key)
        raise ConfigError(f"{parameter}.{key}: pass it as {own}=..., so that it is said once")
    return {**table, key: getattr(default, key) if item is None else item}


def _keeping_constants(prepare: Any) -> Any:
    """Settings that keep constant columns, as every scikit-learn estimator does."""
    return {"constant": "keep", **prepare} if isinstance(prepare, Mapping) else prepare


def fills_missing(settings: Any) -> bool:
    """Say whether some party fills missing values, so that NaN is allowed."""
    if not isinstance(settings, Mapping):
        return False
    parties = settings.get("party", {})
    places = [settings.get("defaults"), *(parties.values() if isinstance(parties, Mapping) else ())]
    prepares = [item.get("prepare") for item in places if isinstance(item, Mapping)]
    return any(isinstance(item, Mapping) and item.get("missing") == "mean" for item in prepares)


def _refuse_said_elsewhere(settings: Any) -> None:
    """Refuse ``settings`` that a parameter, the table or the target decides."""
    if not isinstance(settings, Mapping):
        raise ConfigError(f"settings: expected a mapping, as in a run's TOML file, got {settings}")
    for section in ("data", "stop", "defaults", "label_holder", "party"):
        if not isinstance(settings.get(section, {}), Mapping):
            raise ConfigError(f"settings.{section}: expected a table, got {settings[section]!r}")
    for path, parameter in _SAID_BY_PARAMETERS.items():
        if _has(settings, path):
            raise ConfigError(
                f"settings.{path}: pass it as the parameter {parameter}, so that it is said once"
            )
    paths = [path for path in _SAID_BY_DATA if _has(settings, path)]
    for party, own in settings.get("party", {}).items():
        keys = own if isinstance(own, Mapping) else ()
        paths += [f"party.{party}.{key}" for key in _SAID_BY_DATA_PER_PARTY if key in keys]
    if paths:
        raise ConfigError(f"settings.{paths[0]}: an estimator learns from X and y; leave it out")


def _has(settings: Mapping[str, Any], path: str) -> bool:
    section, _, key = path.partition(".")
    return section in settings and (not key or key in settings[section])
