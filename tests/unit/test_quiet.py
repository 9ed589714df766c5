"""A measurement waits for a quiet machine, but not for ever, and says so."""

from colonnade.bench.quiet import Quiet


def quiet_over(looks: list[float]) -> tuple[Quiet, list[float]]:
    left, pauses = list(looks), []
    made = Quiet(
        patience_seconds=2.0,
        look=lambda: left.pop(0) if left else looks[-1],
        pause=pauses.append,
    )
    return made, pauses


def test_a_quiet_machine_is_not_waited_for() -> None:
    quiet, pauses = quiet_over([1.0] * 40 + [1.4])
    quiet.wait()
    assert (pauses, quiet.told()) == ([], {"waits_for_quiet": 0, "measured_without_quiet": 0})


def test_it_waits_until_others_are_done() -> None:
    quiet, pauses = quiet_over([1.0] * 40 + [4.0, 1.6, 1.5])
    quiet.wait()
    assert (pauses, quiet.num_waits, quiet.num_disturbed) == ([0.5, 0.5], 1, 0)


def test_patience_ends_and_that_is_counted() -> None:
    quiet, pauses = quiet_over([1.0] * 40 + [4.0])
    quiet.wait()
    assert (pauses, quiet.num_waits, quiet.num_disturbed) == ([0.5] * 4, 0, 1)


def test_whoever_began_while_it_was_loud_learns_what_quiet_is() -> None:
    quiet, _ = quiet_over([4.0] * 40 + [4.0, 1.0, 4.0, 1.0])
    quiet.wait()
    quiet.wait()
    assert quiet.num_waits == 0
    quiet.wait()
    assert quiet.num_waits == 1
