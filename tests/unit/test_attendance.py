"""Who answers, who is late and who is away: what a checkpoint brings back of it."""

from __future__ import annotations

import json

from colonnade.core.attendance import Attendance
from colonnade.fabrics.in_process import InProcess


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
