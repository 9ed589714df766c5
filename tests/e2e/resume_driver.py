"""A process that trains and kills itself at a chosen moment: at an exchange or around a write.

Run as a script it imports everything once and then forks a child for every job that comes as a
line of JSON, so that a hundred killed runs cost a hundred forks and not a hundred imports. It never
computes anything itself: a fork of a process that has used autograd is not safe.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import torch
from torch import nn

from colonnade.core.errors import ColonnadeError
from colonnade.core.federation import Event, Federation
from colonnade.data.blocks import Labels, make_block
from colonnade.run.directory import RunDirectory
from colonnade.run.engine import train
from colonnade.run.result import Result
from colonnade.run.sources import Sources
from colonnade.run.spec import parse_spec
from colonnade.run.summary import revision

NUM_SAMPLES = 40

# Dropout at every participant, and two kinds of optimizer with a memory.
SETTINGS: Mapping[str, Any] = {
    "data": {"batch_size": 8},
    "defaults": {
        "encoder": {"kind": "mlp", "hidden": [6], "embedding": 4, "dropout": 0.3},
        "optimizer": {"name": "adam", "lr": 0.02},
    },
    "party": {"telco": {"optimizer": {"name": "sgd", "lr": 0.03, "options": {"momentum": 0.9}}}},
    "label_holder": {
        "fusion": {"kind": "mlp", "hidden": [5], "dropout": 0.2},
        "optimizer": {"name": "sgd", "lr": 0.03, "options": {"momentum": 0.9}},
    },
    "stop": {"exchanges": 8, "evaluate_every": 2},
    "record": {"log_every": 1, "checkpoint_every": 3},
}
SIMULATED: Mapping[str, Any] = {
    "name": "simulated",
    "default": {
        "encode": {"kind": "uniform", "low": 1, "high": 9},
        "step": 2,
        "latency": {"kind": "exponential", "mean": 5},
        "bandwidth": 64,
    },
    "party": {"telco": {"latency": {"kind": "trace", "values": [3, 40, 7]}}},
    "fuse": {"kind": "uniform", "low": 0, "high": 3},
}


def make_sources(*, without: str | None = None, num_samples: int = NUM_SAMPLES) -> Sources:
    """A bank with labels and a telco; optionally without one of the telco's columns."""
    draw = np.random.default_rng(5)
    ids = [f"c{number:03d}" for number in range(NUM_SAMPLES)]
    bank = pd.DataFrame(draw.normal(size=(NUM_SAMPLES, 2)), index=ids, columns=["age", "income"])
    telco = pd.DataFrame(draw.normal(size=(NUM_SAMPLES, 2)), index=ids, columns=["calls", "bill"])
    values = (bank["age"] + telco["calls"] + draw.normal(size=NUM_SAMPLES)).to_numpy()
    telco["plan"] = draw.choice(["basic", "gold", "family"], NUM_SAMPLES)
    if without is not None:
        telco = telco.drop(columns=[without])
    return Sources(
        blocks={
            "bank": make_block("bank", bank[:num_samples]),
            "telco": make_block("telco", telco[:num_samples]),
        },
        labels=Labels(ids=np.array(ids, dtype=object), values=values, name="risk"),
        label_holder="bank",
    )


def run(
    directory: Path,
    settings: Mapping[str, Any],
    *,
    resume: bool = False,
    watcher: Any = None,
    sources: Sources | None = None,
) -> Result:
    """Train in a directory."""
    spec = parse_spec(settings)
    return train(
        spec,
        sources=sources or make_sources(),
        directory=directory,
        resume=resume,
        watcher=watcher,
    )


class Moments:
    """Counts the moments at which a process may die; dies at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.kill_at = kill_at
        self.names: list[str] = []

    def pass_by(self, name: str) -> None:
        if self._is_last(name):
            die()

    def _is_last(self, name: str) -> bool:
        self.names.append(name)
        return len(self.names) - 1 == self.kill_at

    def install(self) -> None:
        """Put a moment before every fsync and unlink, after every rename, within every line."""
        replace, unlink = Path.replace, Path.unlink
        record = RunDirectory.record

        def counted_fsync(handle: int) -> None:
            # Not done after all: what a killed process wrote is safe with the kernel.
            name = Path(f"/proc/self/fd/{handle}").readlink().name.lstrip(".")
            self.pass_by(f"before {'.'.join(name.split('.')[:2])} is written out")

        def counted_replace(path: Path, target: Path) -> Path:
            moved = replace(path, target)
            self.pass_by(f"after {Path(target).parent.name}/{Path(target).name} is in place")
            return moved

        def counted_unlink(path: Path, missing_ok: bool = False) -> None:
            self.pass_by(f"before {path.parent.name}/{path.name} is dropped")
            unlink(path, missing_ok=missing_ok)

        def counted_record(directory: RunDirectory, line: Mapping[str, Any]) -> None:
            if self._is_last("within a line of metrics.jsonl"):
                with (directory.root / "metrics.jsonl").open("ab") as file:
                    file.write(json.dumps(line).encode()[:20])
                die()
            record(directory, line)

        os.fsync = counted_fsync
        Path.replace = counted_replace  # type: ignore[method-assign, assignment]
        Path.unlink = counted_unlink  # type: ignore[method-assign]
        RunDirectory.record = counted_record  # type: ignore[method-assign]

    # A Watcher

    def began(self, federation: Federation, done: int, total: int) -> None:
        self.pass_by("before the first exchange")

    def exchanged(self, event: Event) -> None:
        self.pass_by(f"after exchange {event.exchange}")

    def wants_to_stop(self) -> bool:
        return False


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a dead process goes on")


def in_child(job: Mapping[str, Any]) -> list[str]:
    torch.set_num_threads(1)
    moments = Moments(job["kill_at"])
    moments.install()
    run(Path(job["directory"]), job["settings"], resume=job["resume"], watcher=moments)
    return moments.names


def forked(work: Callable[[Mapping[str, Any]], list[str]], job: Mapping[str, Any]) -> Any:
    """Do a job in a forked child; its moments, or how it ended."""
    with tempfile.TemporaryFile("w+") as answer:
        child = os.fork()
        if child == 0:
            try:
                json.dump({"moments": work(job)}, answer)
            except ColonnadeError as error:
                json.dump({"error": type(error).__name__, "message": str(error)}, answer)
            except BaseException:
                json.dump({"error": "crash", "message": traceback.format_exc()}, answer)
            answer.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return {"signal": os.WTERMSIG(status)}
        answer.seek(0)
        return json.load(answer)


class Driver:
    """The test's end of the process."""

    def __init__(self) -> None:
        single = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **single},
        )

    def train(
        self, directory: Path, settings: Mapping[str, Any], kill_at: int | None = None
    ) -> Any:
        """Train, or go on where a run is already; what became of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {
            "directory": str(directory),
            "settings": settings,
            # Killed before the first file, there is nothing to go on with.
            "resume": (directory / "config.json").exists(),
            "kill_at": kill_at,
        }
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


def modules_in_use(job: Mapping[str, Any]) -> list[str]:
    """Train; what is imported by then."""
    in_child(job)
    return list(sys.modules)


def import_all_that_a_run_imports() -> None:
    """Much is imported only when first used: a child finds out what, and is not asked again."""
    with tempfile.TemporaryDirectory() as directory:
        for name, settings in (("a", SETTINGS), ("b", {**SETTINGS, "fabric": SIMULATED})):
            job = {"directory": f"{directory}/{name}", "settings": settings}
            found = forked(modules_in_use, {**job, "resume": False, "kill_at": None})
            for module in found["moments"]:
                with contextlib.suppress(Exception):
                    importlib.import_module(module)


def main() -> None:
    import_all_that_a_run_imports()
    # What torch and the run layer find out only when first used.
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    revision()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(forked(in_child, json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
