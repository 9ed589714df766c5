"""Who did what when: exact on the simulated clock, bounded, and without a trace in the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.core.errors import ConfigError, Diverged
from colonnade.core.timeline import Interval, Timeline
from colonnade.fabrics.durations import Constant
from colonnade.fabrics.simulated import Profile
from colonnade.fabrics.sleeps import RandomSleep
from colonnade.run.engine import train as train_run
from colonnade.run.result import Result
from colonnade.run.spec import RecordSpec, parse_spec
from colonnade.run.timeline_file import TimelineFile, timeline_lines
from fault.disks import full_disk
from federations import assert_bitwise_equal, make_federation, train, weights


def trained(place: Path, *, resume: bool = False, exchanges: int = 12, **settings: Any) -> Result:
    """A run in ``place / "run"`` of two tables beside it."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=(120, 4))
    parties = {}
    for number, name in enumerate(("bank", "shop")):
        table = pd.DataFrame(values[:, 2 * number : 2 * number + 2], columns=["a", "b"])
        if name == "bank":
            table["late"] = values[:, 0] + values[:, 2] > 0
        table.to_csv(place / f"{name}.csv", index_label="id")
        parties[name] = {"file": str(place / f"{name}.csv"), "id": "id"}
    spec = parse_spec(
        {
            "stop": {"exchanges": exchanges},
            "data": {"batch_size": 16},
            "label_holder": {"name": "bank", "label": "late"},
            "party": parties,
            **settings,
        }
    )
    return train_run(spec, directory=place / "run", resume=resume)


def spans(lines: list[dict[str, Any]], party: str, state: str) -> list[list[float]]:
    return [span for line in lines for span in line["parties"].get(party, {}).get(state, ())]


def test_a_simulated_exchange_is_noted_to_the_tick() -> None:
    near = Profile(encode=Constant(value=3), step=Constant(value=2), latency=Constant(value=1))
    far = Profile(encode=Constant(value=9), step=Constant(value=2), latency=Constant(value=4))
    federation = make_federation(
        fabric="simulated", profiles={"p0": near, "p1": far}, fuse=Constant(value=5)
    )
    timeline = federation.fabric.timeline = Timeline()
    train(federation, 1)

    found = sorted((item for item in timeline.take() if item.party), key=lambda item: item.begin)
    assert [item for item in found if item.party == "p0"] == [
        Interval("p0", "sending", 0.0, 0.001),
        Interval("p0", "computing", 0.001, 0.004),  # encodes
        Interval("p0", "sending", 0.004, 0.005),
        Interval("p0", "sending", 0.022, 0.023),  # all have answered at 17, fused at 22
        Interval("p0", "computing", 0.023, 0.025),  # descends
    ]
    assert [item.end for item in found if item[:2] == ("p1", "sending")][:2] == [0.004, 0.017]


def test_the_label_holder_waits_for_one_party_after_the_other() -> None:
    slow = Profile(encode=Constant(value=40))
    federation = make_federation(fabric="simulated", profiles={"p1": slow})
    timeline = federation.fabric.timeline = Timeline()
    train(federation, 2)
    waits = [item for item in timeline.take() if item.state == "waiting"]
    # In the second exchange p0 takes a step first, which p1 did long ago.
    assert [item.party_awaited for item in waits] == ["p1", "p0", "p1"]
    assert waits[0] == Interval(None, "waiting", 0.0, 0.04, "p1")
    assert all(item.party is None for item in waits)


def test_a_party_that_sleeps_is_absent() -> None:
    asleep = Profile(encode=Constant(value=1), sleep=RandomSleep(probability=1.0, ticks=70))
    federation = make_federation(fabric="simulated", profiles={"p1": asleep})
    timeline = federation.fabric.timeline = Timeline()
    train(federation, 1)
    absent = [item for item in timeline.take() if item.state == "absent"]
    assert absent == [Interval("p1", "absent", 0.0, 0.07)]


def test_intervals_agree_with_metrics(tmp_path: Path) -> None:
    trained(tmp_path, record={"log_every": 1})
    start, *lines = timeline_lines(tmp_path / "run")
    assert start["kind"] == "start"
    assert start["exchanges"] == 12
    assert start["guess"]["who"] == "the commonest class"
    assert 0.4 < start["guess"]["metrics"]["accuracy"] < 0.7
    metrics = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    last = [line for line in metrics if line["kind"] == "exchange"][-1]
    for party in ("bank", "shop"):
        computed = sum(end - begin for begin, end in spans(lines, party, "computing"))
        assert computed == pytest.approx(last["computing"][party], abs=1e-3)
    for line in lines:
        assert all(end <= last["elapsed"] + 1.0 for *_, end in spans([line], "shop", "computing"))
    assert sorted({line["exchange"] for line in lines}) == list(range(1, 13))


def test_weights_are_identical_with_and_without(tmp_path: Path) -> None:
    ways = tmp_path / "with", tmp_path / "without"
    for way in ways:
        way.mkdir()
    with_timeline = trained(ways[0])
    without = trained(ways[1], record={"timeline": 0})
    assert not (ways[1] / "run" / "timeline.jsonl").exists()
    assert_bitwise_equal(weights(with_timeline._federation), weights(without._federation))


def test_the_file_stays_small_and_keeps_old_and_new(tmp_path: Path) -> None:
    file = TimelineFile(tmp_path, keep=1000, after=0)
    for exchange in range(1, 3001):
        moment = exchange / 100
        noted = [
            Interval("shop", "computing", moment, moment + 0.005),
            Interval(None, "waiting", moment, moment + 0.005, "shop"),
        ]
        file.add(exchange, 0.0, noted)
        if exchange % 7 == 0:
            file.write()
        if exchange == 1000:
            file.mark("absent", exchange=1000, elapsed=10.0, party="shop", text="gone")
    file.write()
    lines = timeline_lines(tmp_path)
    kept = [line["exchange"] for line in lines if line["kind"] == "intervals"]
    assert 500 <= 2 * len(kept) <= 2000
    assert kept == sorted(set(kept))
    assert kept[-20:] == list(range(2981, 3001))
    assert kept[0] < 500  # the beginning is not forgotten
    assert [line["text"] for line in lines if line["kind"] == "mark"] == ["gone"]
    # Each exchange that is there is there wholly.
    assert all(
        len(line["parties"]["shop"]["computing"]) == 1 for line in lines if "parties" in line
    )


def test_a_resumed_run_goes_on_where_its_checkpoint_was(tmp_path: Path) -> None:
    place = tmp_path / "run"
    trained(tmp_path)
    file = place / "timeline.jsonl"
    later = {"kind": "intervals", "exchange": 99, "parties": {}, "label_holder": {}}
    file.write_text(file.read_text() + json.dumps(later) + '\nnot json\n{"kind": "cut of')
    trained(tmp_path, resume=True, exchanges=14)
    lines = timeline_lines(place)
    done = [line["exchange"] for line in lines if line["kind"] == "intervals"]
    assert sorted(set(done)) == list(range(1, 15))
    assert [line["what"] for line in lines if line["kind"] == "mark"] == ["resumed"]


def test_a_run_that_diverges_is_marked_with_who_sent_what(tmp_path: Path) -> None:
    with pytest.raises(Diverged):
        trained(tmp_path, defaults={"optimizer": {"name": "sgd", "lr": 1e30}})
    marks = [line for line in timeline_lines(tmp_path / "run") if line["kind"] == "mark"]
    assert [line["what"] for line in marks] == ["diverged"]
    assert marks[0]["text"]


def test_a_full_disk_costs_the_picture_not_the_run(tmp_path: Path) -> None:
    file = TimelineFile(tmp_path, keep=10, after=0)
    with full_disk(0):
        file.add(1, 0.0, [Interval("shop", "computing", 0.0, 1.0)])
        file.mark("absent", exchange=1, elapsed=1.0)


def test_how_many_is_bounded() -> None:
    with pytest.raises(ConfigError, match="timeline: from 0"):
        RecordSpec(timeline=-1)
