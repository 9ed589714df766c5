"""Trackers that people have: TensorBoard, MLflow and Weights & Biases, each behind its own extra.

A tracker gets numbers under plain names, the method's and the parties' names, and nothing else: no
settings with paths, no texts that a party chose. All of them write into the run directory; none of
them dials out unless its own environment variables say so.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from colonnade.core.extras import missing_package

__all__ = ["TRACKERS", "Tracker", "Trackers", "numbers_in", "require_trackers"]


_PACKAGES = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}


class Tracker(Protocol):
    """Somebody who keeps numbers by name and exchange."""

    def write(self, numbers: Mapping[str, float], exchange: int) -> None:
        """Keep some numbers."""

    def close(self) -> None:
        """Nothing more comes."""


class Trackers:
    """All trackers of a run.

    Args:
        names: Which ones, as in ``record.trackers``.
        root: The run's directory; none if the run has none, and then nobody tracks.
        facts: What to say of the run, by name.
    """

    def __init__(self, names: Iterable[str], root: Path | None, facts: Mapping[str, str]) -> None:
        self._all = [] if root is None else [TRACKERS[name](root, facts) for name in names]

    def record(self, line: Mapping[str, Any]) -> None:
        """Hand on the numbers of a line of metrics.jsonl."""
        if self._all and (numbers := numbers_in(line)):
            for tracker in self._all:
                tracker.write(numbers, int(line["exchange"]))

    def close(self) -> None:
        """Nothing more comes."""
        for tracker in self._all:
            tracker.close()


def numbers_in(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of metrics.jsonl, by names with slashes.

    Args:
        line: As ``run.summary`` made it.

    Returns:
        Finite ones only; none of a line of another kind.
    """
    if line.get("kind") == "evaluation":
        found = {f"{line['part']}/{name}": value for name, value in line["metrics"].items()}
    elif line.get("kind") == "exchange":
        found = {"train/loss": line["loss"], "elapsed": line["elapsed"]}
        for kind in ("bytes_up", "bytes_down", "computing"):
            found |= {f"{kind}/{party}": value for party, value in line[kind].items()}
        for party, spent in line.get("privacy", {}).items():
            found |= {f"privacy/{party}/{name}": value for name, value in spent.items()}
        found |= {f"delays/{name}": value for name, value in line.get("delays", {}).items()}
    else:
        return {}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def require_trackers(names: Iterable[str]) -> None:
    """Refuse trackers whose packages are missing, before anything is trained.

    Args:
        names: As in ``record.trackers``.

    Raises:
        ConfigError: A package is not installed.
    """
    for name in names:
        if importlib.util.find_spec(_PACKAGES[name]) is None:
            raise missing_package(f"record.trackers: '{name}'", _PACKAGES[name], name)


class _TensorBoard:
    """Event files in the folder ``tensorboard`` of the run: ``tensorboard --logdir RUN``."""

    def __init__(self, root: Path, facts: Mapping[str, str]) -> None:
        package = importlib.import_module(_PACKAGES["tensorboard"])
        self._writer = package.SummaryWriter(str(root / "tensorboard"), write_to_disk=True)
        for name, value in facts.items():
            self._writer.add_text(name, value)

    def write(self, numbers: Mapping[str, float], exchange: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, exchange)

    def close(self) -> None:
        self._writer.close()


class _MLflow:
    """A run of MLflow: where MLFLOW_TRACKING_URI says, or in the run directory."""

    def __init__(self, root: Path, facts: Mapping[str, str]) -> None:
        package = importlib.import_module(_PACKAGES["mlflow"])
        place = os.environ.get("MLFLOW_TRACKING_URI") or (root / "mlruns").resolve().as_uri()
        self._client = package.MlflowClient(tracking_uri=place)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "colonnade")
        known = self._client.get_experiment_by_name(name)
        number = known.experiment_id if known else self._client.create_experiment(name)
        self._run = self._client.create_run(number, run_name=root.name).info.run_id
        for fact, value in facts.items():
            self._client.set_tag(self._run, fact, value)

    def write(self, numbers: Mapping[str, float], exchange: int) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=exchange)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class _WandB:
    """A run of Weights & Biases: offline in the run directory, unless WANDB_MODE says otherwise."""

    def __init__(self, root: Path, facts: Mapping[str, str]) -> None:
        package = importlib.import_module(_PACKAGES["wandb"])
        self._run = package.init(
            project=os.environ.get("WANDB_PROJECT", "colonnade"),
            name=root.name,
            dir=str(root),
            config=dict(facts),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=package.Settings(
                silent=True,
                console="off",
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )

    def write(self, numbers: Mapping[str, float], exchange: int) -> None:
        self._run.log({**numbers, "exchange": exchange})

    def close(self) -> None:
        self._run.finish()


TRACKERS: Mapping[str, Callable[[Path, Mapping[str, str]], Tracker]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
    "wandb": _WandB,
}
