"""A label holder whose run goes on after the party's time for it is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attack.test_one_account import PERTURB, held_by, policies
from colonnade.core.errors import Refused
from colonnade.federate import party_limits
from colonnade.federate.party_limits import Limits, RunTime
from colonnade.protect.ledger import read_ledger, verify_ledger
from contract.test_organisations_in_one_process import trained
from e2e.organisations import Organisations

HOUR = 3600.0


class Clocks:
    """The wall clock and the steady one as ``party_limits`` sees them."""

    def __init__(self) -> None:
        self.wall = self.steady = 1e9

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(party_limits, "time", clocks)
    return clocks


class Passing:
    """Watches a run; after its fourth exchange two hours have passed."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks

    def began(self, *about: Any) -> None:
        pass

    def exchanged(self, event: Any) -> None:
        if event.exchange == 4:
            self._clocks.steady += 2 * HOUR

    def wants_to_stop(self) -> bool:
        return False


@pytest.mark.attack(
    what="A run that goes on after the party's time for it",
    has="a run that was assembled in time (cheating)",
    before="as long as it liked: the time was looked at when a run was assembled",
    now="refused before the next batch, rule 'limits.max_hours'; the account stands",
)
def test_a_run_ends_when_its_time_is_over(tmp_path: Path, clocks: Clocks) -> None:
    organisations = Organisations(
        tmp_path,
        nursery=None,  # type: ignore[arg-type]
        exchanges=30,
        protect=PERTURB,
        policies=policies("[limits]\nmax_hours = 1"),
    )
    summary = trained(organisations, watcher=Passing(clocks))
    assert summary["stopped_by"] == "refused"
    assert summary["refusal"]["party"] == "telco"
    assert "'telco' refuses by its policy, rule 'limits.max_hours'" in summary["refusal"]["reason"]
    # The run ends with its last checkpoint, and whoever can't be asked is not measured.
    assert summary["exchanges"] == 3
    assert held_by(organisations).num_charges == 4
    name = (organisations.run / "run_name").read_text()
    place = organisations.home("telco") / "runs" / name
    assert verify_ledger(place)[1] is None
    refused = [entry for entry in read_ledger(place) if entry["event"] == "refused"]
    # Calls count the exchanges before their own.
    assert refused[0]["exchange"] == 4


@pytest.mark.parametrize(("wall", "steady"), [(-5 * HOUR, HOUR + 1), (HOUR + 1, 0.0)])
def test_either_clock_ends_it(clocks: Clocks, wall: float, steady: float) -> None:
    """Setting a clock back gains nothing."""
    limit = RunTime(Limits(max_hours=3), "telco", -2 * HOUR)
    clocks.wall += HOUR - 1
    clocks.steady += HOUR - 1
    limit.check()
    clocks.wall, clocks.steady = 1e9 + wall, 1e9 + steady
    with pytest.raises(Refused, match=r"limits\.max_hours"):
        limit.check()
