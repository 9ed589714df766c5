"""A checkpoint file that went bad at one participant: it is named, and an older one is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colonnade.core.errors import StorageError
from colonnade.run.engine import train
from colonnade.run.spec import parse_spec
from colonnade.run.storage import read_state
from federations import assert_bitwise_equal

SETTINGS: dict[str, Any] = {
    "data": {"dataset": "wine", "num_parties": 2},
    "stop": {"exchanges": 6},
    "record": {"checkpoint_every": 2, "log_every": 1},
}


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def weights(run: Path) -> dict[str, Any]:
    tag = json.loads((run / "checkpoint.json").read_text())["tag"]
    return {
        f"{path.parent.name} {name}": item
        for path in sorted((run / "parties").glob(f"*/{tag}.safetensors"))
        for name, item in read_state(path)["model"].items()
    }


@pytest.mark.attack(
    what="A bad checkpoint file at one participant",
    has="write access to one file, or a bad disk",
    before="the run could not be resumed",
    now="the file is named, and the newest checkpoint that is good at everybody is used",
)
@pytest.mark.parametrize("harm", [spoil, truncate, Path.unlink])
@pytest.mark.parametrize("whose", ["parties/*", "label_holder"])
def test_the_run_goes_on_from_the_one_before(
    tmp_path: Path, harm: Callable[[Path], None], whose: str
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    spec = parse_spec(SETTINGS)
    train(replace(spec, stop=replace(spec.stop, exchanges=4)), directory=run)
    named = json.loads((run / "checkpoint.json").read_text())
    assert (named["tag"], named["previous"]) == ("exchange-000000004", "exchange-000000002")
    bad = sorted(run.glob(f"{whose}/{named['tag']}.safetensors"))[-1]
    harm(bad)
    result = train(spec, directory=run, resume=True)
    assert result.summary["exchanges"] == 6
    log = (run / "run.log").read_text()
    assert f"{bad.name}" in log.partition("can't be used")[2]
    assert "resumed after exchange 2" in log
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = [line["exchange"] for line in lines if line["kind"] == "exchange"]
    assert told == [1, 2, 3, 4, 5, 6]
    # As if nothing had happened.
    train(spec, directory=whole)
    assert_bitwise_equal(weights(run), weights(whole))


def test_two_bad_ones_are_the_end_and_the_first_is_named(tmp_path: Path) -> None:
    spec = parse_spec(SETTINGS)
    train(replace(spec, stop=replace(spec.stop, exchanges=4)), directory=tmp_path / "run")
    for path in sorted((tmp_path / "run" / "parties").glob("*/exchange-*.safetensors")):
        if path.parent.name == "party_1":
            spoil(path)
    with pytest.raises(StorageError, match=r"exchange-000000002\.safetensors"):
        train(spec, directory=tmp_path / "run", resume=True)
    assert "exchange-000000004 can't be used" in (tmp_path / "run" / "run.log").read_text()


def test_a_disk_that_takes_nothing_at_the_start_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = Path.open

    def full(path: Path, *arguments: Any, **settings: Any) -> Any:
        if path.name == "metrics.jsonl":
            raise OSError(28, "No space left on device", str(path))
        return opening(path, *arguments, **settings)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError, match=r"metrics\.jsonl: can't be written: No space left"):
        train(parse_spec(SETTINGS), directory=tmp_path / "run")
