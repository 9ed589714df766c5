"""A party lets go of old weights and of alignments that no run names; its ledgers stay."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from colonnade.federate.pruning import prune
from colonnade.federate.run_at_party import NotedUse, last_use
from colonnade.protect.ledger import Ledger, verify_ledger

DAY = 86_400.0
NOW = 1_000 * DAY
OLD, YOUNG = "ab" * 16, "cd" * 16


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for run, age, digest in ((OLD, 200, "1" * 64), (YOUNG, 3, "2" * 64)):
        place = tmp_path / "runs" / run
        ledger = Ledger(place, run=run)
        ledger.append({"event": "left", "verb": "embed"})
        ledger.seal()
        ledger.close()
        (place / "exchange-000000001.safetensors").write_bytes(b"w" * 100)
        (place / "agreed.json").write_text(json.dumps({"alignment": digest}))
        for file in place.iterdir():
            os.utime(file, (NOW - age * DAY,) * 2)
    for digest, age in (("1" * 64, 200), ("2" * 64, 200), ("3" * 64, 200), ("4" * 64, 3)):
        place = tmp_path / "alignments" / digest
        place.mkdir(parents=True)
        (place / "alignment.npz").write_bytes(b"a" * 10)
        os.utime(place / "alignment.npz", (NOW - age * DAY,) * 2)
    return tmp_path


def test_old_weights_go_and_ledgers_stay(home: Path) -> None:
    pruned = prune(home, days=90, now=NOW)
    assert pruned.runs == (OLD,)
    # That of the old run went with it; the young run's and a new one stay.
    assert pruned.alignments == ("1" * 64, "3" * 64)
    assert pruned.num_bytes > 120
    assert sorted(item.name for item in (home / "runs" / OLD).iterdir()) == [
        "ledger.jsonl",
        "ledger.seal.json",
    ]
    assert verify_ledger(home / "runs" / OLD) == (1, None)
    assert (home / "runs" / YOUNG / "exchange-000000001.safetensors").exists()
    assert prune(home, days=90, now=NOW).runs == ()


def test_a_run_that_is_to_be_kept_stays_with_its_alignment(home: Path) -> None:
    pruned = prune(home, days=90, keep=[OLD], now=NOW)
    assert pruned.runs == ()
    assert pruned.alignments == ("3" * 64,)


def test_a_party_without_runs_has_nothing_to_prune(tmp_path: Path) -> None:
    assert prune(tmp_path, days=1, now=NOW).num_bytes == 0


def test_what_is_served_is_in_use_however_old_its_weights_are(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("colonnade.federate.run_at_party.time.monotonic", lambda: clock[0])
    asked_through = home / "alignments" / ("3" * 64) / "alignment.npz"
    use = NotedUse(home / "runs" / OLD, asked_through)
    use.note()
    moment = last_use(home / "runs" / OLD)
    assert moment is not None
    pruned = prune(home, days=90, now=moment + 89 * DAY)
    assert pruned.runs == (YOUNG,)
    assert pruned.alignments == ("2" * 64, "4" * 64)
    # It is noted again after an hour, not with every call.
    for hour, is_noted in ((0.9, False), (1.1, True)):
        os.utime(asked_through, (NOW, NOW))
        clock[0] = hour * 3600
        use.note()
        assert (asked_through.stat().st_mtime != NOW) == is_noted
