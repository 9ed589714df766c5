"""A label holder that fills a party's disk: with names of runs, checkpoints, refusals, releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from at_home import RUN, AtHome
from colonnade.core.messages import Batch, Call
from colonnade.core.numerics import NUMERICS
from colonnade.federate import refused_proposals as log
from colonnade.federate.align_session import AlignSession
from colonnade.federate.party_limits import Limits
from colonnade.federate.party_policy import PartyPolicy
from colonnade.federate.refused_proposals import refused_proposals
from colonnade.protect import ledger
from colonnade.protect.ledger import Ledger, read_ledger, verify_ledger

TABLE = np.random.default_rng(2).normal(size=(30, 3))
LONG = "c" * 100_000


def proposal(**more: object) -> str:
    return json.dumps({"names": ["telco"], "numerics": NUMERICS, "stop": {"exchanges": 5}, **more})


def num_files(home: AtHome) -> int:
    return sum(1 for _ in home.home("telco").rglob("*"))


@pytest.mark.attack(
    what="A million names of runs that are refused",
    has="as many proposals as it likes (cheating)",
    before="a directory with a ledger for each, until the disk had no inodes left",
    now="no file for any of them: one log of at most two megabytes",
)
def test_refused_proposals_make_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_MOST_BYTES", 10_000)
    home = AtHome(tmp_path, {"telco": TABLE}, policies={"telco": PartyPolicy(columns=("c0",))})
    before, refused = num_files(home), proposal(party={"telco": {"columns": [LONG]}})
    for number in range(100):
        failure = home.failure("telco", "consider", f"{number:032x}", refused)
        assert failure is not None
        assert "rule 'columns'" in failure.message
    assert not (home.home("telco") / "runs").exists()
    assert num_files(home) <= before + 3
    size = sum(file.stat().st_size for file in home.home("telco").glob("refused*"))
    assert size <= 20_000
    *_, last = refused_proposals(home.home("telco"))
    assert list(last) == ["time", "run", "verb", "reason"]
    assert (last["run"], last["verb"]) == (f"{99:032x}", "consider")


def test_a_run_that_is_refused_late_has_no_directory_either(tmp_path: Path) -> None:
    policy = PartyPolicy(limits=Limits(max_parameters=10))
    home = AtHome(tmp_path, {"telco": TABLE}, policies={"telco": policy})
    failure = home.assemble("telco", {})
    assert failure is not None
    assert "limits.max_parameters" in failure.message
    assert not (home.home("telco") / "runs").exists()


@pytest.mark.attack(
    what="A checkpoint under every name",
    has="the verb 'keep' with ever new tags (cheating)",
    before="a file for each, until the disk was full",
    now="refused above {most} of a run, rule 'limits.max_checkpoints'",
)
def test_checkpoints_are_bounded(tmp_path: Path, measured: Any) -> None:
    home = AtHome(tmp_path, {"telco": TABLE})
    assert home.assemble("telco", {}) is None
    most = Limits().max_checkpoints
    for number in range(most):
        home.ask("telco", "keep", f"tag-{number}")
    failure = home.failure("telco", "keep", "one-more")
    assert failure is not None
    assert (failure.kind, "limits.max_checkpoints" in failure.message) == ("Refused", True)
    home.ask("telco", "keep", "tag-0")
    home.ask("telco", "retain", "tag-0", "tag-1", "tag-2")
    home.ask("telco", "keep", "one-more")
    measured(most=most)


@pytest.mark.attack(
    what="A ledger without end",
    has="calls that are refused, or that cost nothing, as often as it likes (cheating)",
    before="an entry for each, until the disk was full",
    now="ten thousand refusals are written down; a ledger of 'limits.max_ledger_megabytes' lets "
    "nothing more leave",
)
def test_a_ledger_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_MOST_REFUSALS", 5)
    home = AtHome(tmp_path, {"telco": TABLE})
    protect = {"defaults": {"protect": [{"kind": "perturb", "noise": 2.0}]}}
    assert home.assemble("telco", protect) is None
    place = home.home("telco") / "runs" / RUN
    refused = proposal(party={"telco": {"columns": [LONG]}}, dtype="float64")
    for _ in range(10):
        assert home.failure("telco", "consider", RUN, refused) is not None
    entries = list(read_ledger(place))
    assert sum(entry["event"] == "refused" for entry in entries) == 5
    assert (place / "ledger.jsonl").stat().st_size < 20_000
    # What another session opens counts those that are there.
    again = Ledger(place, run=RUN, party="telco", most_bytes=1)
    again.append({"event": "refused", "reason": "once more"})
    assert len(list(read_ledger(place))) == len(entries)
    party = home.party("telco")
    party.door._ledger = again
    failure = home.failure("telco", "embed", Batch("train", 0))
    assert failure is not None
    assert "limits.max_ledger_megabytes" in failure.message
    assert home.failure("telco", "privacy_spent") is not None
    assert verify_ledger(place)[1] is None


def test_alignments_under_other_terms_overwrite_each_other(tmp_path: Path) -> None:
    home = AtHome(tmp_path, {"telco": TABLE})
    training = home.sessions["telco"]
    session = AlignSession(
        home=training._home, settings=training._settings, policy=training._policy
    )
    before = num_files(home)
    for number in range(20):
        terms = json.dumps({"salt": f"{number:032d}"})
        assert session.execute(Call(1, "telco", "agree", (terms,), 0, True)).failure is None
    assert num_files(home) <= before + 1
