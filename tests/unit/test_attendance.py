"""Who answers, who is late and who is away: what a run says of it, and a checkpoint brings back."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.core.attendance import Attendance
from colonnade.core.parties import Parties, Patience
from colonnade.fabrics.in_process import InProcess
from colonnade.federate.alignment import preparing
from colonnade.report import write_report
from colonnade.run.attending import Attending, tardiness_of, warnings_of_tardiness
from colonnade.run.fit import fit
from colonnade.run.result import Result
from federations import make_federation

IDS = [f"u{number}" for number in range(60)]
DRAW = np.random.default_rng(9)
BLOCKS = {
    name: pd.DataFrame(DRAW.normal(size=(60, 2)), index=IDS) for name in ("bank", "shop", "telco")
}


def test_a_restored_roll_call_knows_who_was_late_and_who_is_away() -> None:
    before = Attendance(("bank", "shop", "telco"))
    for _ in range(20):
        before.heard("shop", took=50)
    before.gave_up(["telco"], 10, 17)
    after = Attendance(("bank", "shop", "telco"))
    after.restore(json.loads(json.dumps(before.state())))
    assert after.state() == before.state()
    assert (after.away, after.starving) == (("telco",), ("shop",))
    assert (after.late["shop"], after.left_out["telco"], after.held_up["telco"]) == (20, 1, 7)
    # The shop took longer than 40 ticks and starves, so nobody waits for it; within 60 it may come.
    assert after.worth_waiting_for(["bank", "shop"], 40) == {"bank"}
    assert after.worth_waiting_for(["bank", "shop"], 60) == {"bank", "shop"}
    assert after.is_disturbed


def test_a_checkpoint_of_an_older_version_says_nothing_of_it() -> None:
    attendance = Attendance(("bank",))
    attendance.restore({})
    assert (attendance.away, attendance.starving, attendance.is_disturbed) == ((), (), False)


class _Hears(InProcess):
    """Something came from the telco at tick 0, and from nobody else."""

    def heard_since(self, party: str, tick: int) -> bool:
        return party == "telco" and tick < 0


def test_the_first_sign_of_a_party_ends_an_absence_of_before() -> None:
    fabric, names = _Hears({}), ("shop", "telco")
    before, after = Attendance(names), Attendance(names)
    before.gave_up(names, 10, 17)
    assert before.here(names, fabric) == ()
    # Ticks of another process mean nothing: any sign in this one is new.
    after.restore(before.state())
    assert after.here(names, fabric) == ("telco",)
    assert (after.away, after.left_out) == (("shop",), {"shop": 3, "telco": 2})


@pytest.mark.parametrize("then", ["stop", "continue"])
def test_only_the_beginning_and_the_end_have_more_time_than_the_timeout(then: Any) -> None:
    """As the table in docs/network.md says."""
    short, long = (Patience(timeout=ticks, then=then) for ticks in (100, 700_000))
    assert preparing(short) == Patience(timeout=600_000, then="stop")
    assert short.at_the_end() == Patience(timeout=10_000, then="continue")
    for patience in (long, Patience(then=then)):
        assert preparing(patience) == replace(patience, then="stop")
        assert patience.at_the_end() == replace(patience, then="continue")


class TestNews:
    """What is said while a run goes on, with a clock that the test turns."""

    @pytest.fixture
    def ticks(self) -> list[int]:
        return [0]

    @pytest.fixture
    def parties(self) -> Parties:
        return make_federation(2, fabric="simulated").parties

    @pytest.fixture
    def attending(
        self, parties: Parties, ticks: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> Attending:
        federation = make_federation(2, fabric="simulated")
        federation.parties = parties
        monkeypatch.setattr(federation.fabric, "now", lambda: ticks[0])
        return Attending(federation)

    def changes(self, attending: Attending) -> list[tuple[str, str]]:
        return [(party, change) for party, change, _ in attending.news()]

    def test_a_slow_party_is_warned_of_once_and_not_in_every_exchange(
        self, attending: Attending, parties: Parties, ticks: list[int]
    ) -> None:
        said: Counter[str] = Counter()
        for _ in range(50):
            parties.attendance.gave_up(["p1"], ticks[0], ticks[0])
            said.update(change for _, change in self.changes(attending))
            ticks[0] += 200
            parties.attendance.heard("p1", took=200)
            said.update(change for _, change in self.changes(attending))
        assert said == {"absent": 1, "back": 1, "starving": 1}

    def test_whoever_was_away_before_is_told_of_when_it_lasts(
        self, attending: Attending, parties: Parties, ticks: list[int]
    ) -> None:
        parties.attendance.gave_up(["p1"], 0, 0)
        assert self.changes(attending) == [("p1", "absent")]
        parties.attendance.heard("p1")
        assert self.changes(attending) == [("p1", "back")]
        parties.attendance.gave_up(["p1"], 0, 0)
        assert self.changes(attending) == []
        ticks[0] += 1999
        assert self.changes(attending) == []
        ticks[0] += 1
        assert self.changes(attending) == [("p1", "absent")]
        assert self.changes(attending) == []
        parties.attendance.heard("p1")
        assert self.changes(attending) == [("p1", "back")]

    def test_who_was_often_left_out_is_warned_of_at_the_end(self) -> None:
        federation = make_federation(2, fabric="simulated")
        assert tardiness_of(federation) == {}
        found = federation.parties.attendance
        for _ in range(10):
            found.gave_up(["p1"], 0, 0)
        found.heard("p1", took=70)
        assert tardiness_of(federation) == {"late": {"p1": 1}, "left_out": {"p1": 10}}
        assert warnings_of_tardiness(federation, 100) == ()
        (warning,) = warnings_of_tardiness(federation, 99)
        assert "'p1' was left out of 10 questions in 99 exchanges; 1 of" in warning


# A run in which one party's round trip is longer than the patience


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tardy") / "run"


@pytest.fixture(scope="module")
def result(place: Path) -> Result:
    def constant(ticks: int) -> dict[str, Any]:
        return {"kind": "constant", "value": ticks}

    quick = {"encode": constant(1), "step": constant(2), "latency": constant(2)}
    settings = {
        "defaults": {"encoder": {"kind": "mlp", "hidden": [4], "embedding": 3}},
        "label_holder": {"fusion": {"kind": "mlp", "combine": "mean", "hidden": [4]}},
        "fabric": {
            "name": "simulated",
            "default": quick,
            "party": {"telco": {**quick, "latency": constant(50)}},
        },
        "patience": {"timeout": 40, "then": "continue"},
    }
    labels = (BLOCKS["bank"][0] > 0).rename("left")
    return fit(
        BLOCKS,
        labels,
        method={"name": "flex", "timeout": 20},
        label_holder="bank",
        epochs=10,
        batch_size=16,
        settings=settings,
        out=place,
    )


def test_findings_count_it_and_a_warning_says_what_to_do(result: Result) -> None:
    findings = result.summary["findings"]
    assert findings["starving"] == ["telco"]
    assert set(findings["late"]) == set(findings["left_out"]) == {"telco"}
    assert findings["left_out"]["telco"] == result.summary["exchanges"]
    assert findings["num_left_out"] == 0
    (warning,) = result.summary["warnings"]
    assert "'telco' answers, but always too late to take part; raise patience.timeout" in warning
    # 50 ticks each way, and an encoding
    assert "its last answer took 101 ticks" in warning


def test_log_lines_and_report_say_so(result: Result, place: Path) -> None:
    log = (place / "run.log").read_text()
    assert log.count("'telco' answers, but always too late") == 1
    assert log.count("'telco' does not answer") == 1
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "exchange"][-1]
    assert last["starving"] == ["telco"]
    assert last["left_out"]["telco"] == last["exchange"]
    page = write_report(place).read_text("utf-8")
    assert "<strong>Warning:</strong> &#x27;telco&#x27; answers, but always too late" in page
