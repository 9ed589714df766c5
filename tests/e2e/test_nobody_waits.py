"""Real processes, one of which stands still: nothing in a run waits for it.

Lines, evaluations and checkpoints are on, as they are by default, and more often. How fast the
others go meanwhile is measured by ``make faults``.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from fault.absences import (
    CASES,
    ENDLESS,
    SECONDS,
    check_whole_run,
    end,
    eventually,
    num_done,
    stand_still,
    started,
    wait_until_back,
)

AWAY = 40


@pytest.mark.parametrize("name", CASES)
def test_the_others_go_on_and_it_takes_part_again(make: Any, name: str) -> None:
    case = CASES[name]
    organisations = make(
        method=case.method, patience=case.patience, combine=case.combine, exchanges=ENDLESS
    )
    hub, telco = started(organisations)
    eventually(organisations, lambda: num_done(organisations) >= 20)
    _, ended = stand_still(organisations, telco, AWAY)
    wait_until_back(organisations, ended)
    log = (organisations.run / "run.log").read_text()
    last = end(organisations, hub, telco)
    summary = check_whole_run(organisations, last)
    times = summary["times"]
    assert sum(times.values()) == pytest.approx(summary["elapsed_seconds"])
    assert times["outages"] > 0
    assert summary["seconds"] == summary["elapsed_seconds"]
    if case.patience:
        # It was waited for once, not in every exchange.
        assert summary["attendance"]["left_out"]["telco"] >= AWAY / 2
        assert summary["attendance"]["late"]["telco"] <= 3
        assert "'telco' does not answer; the run goes on without it" in log
        assert "'telco' is back" in log


def test_every_upload_counts_once_whoever_is_killed(make: Any) -> None:
    """Hub and party are killed while checkpoints are under way beside training."""
    organisations = make(method="async", exchanges=100)
    hub, telco = started(organisations)
    eventually(organisations, lambda: num_done(organisations) >= 20)
    hub.signal(signal.SIGKILL)
    assert hub.wait(SECONDS) == -signal.SIGKILL
    hub = organisations.start_hub()
    eventually(organisations, lambda: num_done(organisations) >= 40)
    telco.signal(signal.SIGKILL)
    assert telco.wait(SECONDS) == -signal.SIGKILL
    organisations.start_party("telco")
    assert hub.wait(SECONDS) == 0, organisations.logs()
    summary = check_whole_run(organisations, 100)
    # Neither restart begins the count of seconds anew.
    assert summary["seconds"] == pytest.approx(sum(summary["times"].values()))
    assert summary["times"]["outages"] > 0
    # One upload, one answer, one local step: none is lost and none is counted twice.
    assert sum(summary["local_steps"].values()) == 100
