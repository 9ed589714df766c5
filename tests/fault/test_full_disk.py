"""A disk that is full at any file of a checkpoint: named, nothing lost, and the same bits later."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from colonnade.core.errors import PartyFailed, StorageError
from colonnade.run import directory as run_directory
from colonnade.run import storage
from colonnade.run.engine import train
from colonnade.run.result import Result
from colonnade.run.spec import RunSpec, parse_spec
from colonnade.run.storage import read_json
from fault.disks import full_disk
from federations import assert_bitwise_equal, weights
from messages import says

NUM_EXCHANGES = 9
TAG = "exchange-000000006"


def spec() -> RunSpec:
    return parse_spec(
        {
            "data": {"dataset": "wine", "batch_size": 32},
            "stop": {"exchanges": NUM_EXCHANGES},
            "record": {"checkpoint_every": 3, "log_every": 1},
            "seed": 4,
        }
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return weights(train(spec(), directory=tmp_path_factory.mktemp("runs") / "run")._federation)


class FullAt:
    """The disk is full for one file, once; everything else is written as ever."""

    def __init__(self, is_meant: Callable[[Path], bool]) -> None:
        self.num_failed = 0
        self._is_meant = is_meant

    def around(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, at: int) -> None:
        real = getattr(module, name)

        def written(*arguments: Any, **settings: Any) -> Any:
            if self.num_failed or not self._is_meant(arguments[at]):
                return real(*arguments, **settings)
            self.num_failed += 1
            with full_disk(8):
                return real(*arguments, **settings)

        monkeypatch.setattr(module, name, written)


def is_named(path: Path) -> bool:
    """checkpoint.json when it is about to name the checkpoint of exchange 6."""
    return path.name == "checkpoint.json" and TAG in "".join(
        item.name for item in (path.parent / "label_holder").iterdir()
    )


def is_late_line(path: Path) -> bool:
    return path.read_text().count('"exchange"') >= 5


def is_at(*parts: str) -> Callable[[Path], bool]:
    return lambda path: path.parts[-len(parts) :] == parts


# Which file, and through what it is written: a function and the place of the path among its
# arguments.
FILE = f"{TAG}.safetensors"
WHOLE = (storage, "write_atomically", 0)
LINES = (run_directory, "append_wholly", 2)
CASES: Mapping[str, tuple[Callable[[Path], bool], tuple[Any, str, int]]] = {
    "a party's": (is_at("parties", "winery", FILE), WHOLE),
    "the label holder's": (is_at("label_holder", FILE), WHOLE),
    "checkpoint.json": (is_named, WHOLE),
    "metrics.jsonl": (is_late_line, LINES),
}


@pytest.mark.parametrize("case", CASES)
def test_the_checkpoint_before_stays_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, undisturbed: dict[str, Any], case: str
) -> None:
    is_meant, how = CASES[case]
    fault = FullAt(is_meant)
    with monkeypatch.context() as patched:
        fault.around(patched, *how)
        with pytest.raises(
            (StorageError, PartyFailed), match=says(os.strerror(errno.EFBIG), "make room")
        ):
            train(spec(), directory=tmp_path / "run")
    assert fault.num_failed == 1
    assert read_json(tmp_path / "run" / "checkpoint.json")["tag"] == "exchange-000000003"
    assert weights(Result.load(tmp_path / "run")._federation).keys() == undisturbed.keys()
    resumed = train(spec(), directory=tmp_path / "run", resume=True)
    assert_bitwise_equal(weights(resumed._federation), undisturbed)
