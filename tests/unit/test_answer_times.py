"""What an answer's arrival says of the way and the work, on a clock that the test moves."""

from __future__ import annotations

import pytest

from colonnade.fabrics.grpc.answer_times import AnswerTimes


def spans(times: AnswerTimes, came: float, seconds: float) -> list[tuple[str, float, float]]:
    found = times.answer("shop", came, came, seconds, was_awaited=True)
    return [(state, pytest.approx(begin), pytest.approx(end)) for state, begin, end in found]


def test_the_way_is_divided_before_and_after_the_work() -> None:
    times = AnswerTimes(["shop"])
    times.call("shop", wants_reply=True)
    times.leave(10.0)
    assert spans(times, 17.0, 3.0) == [
        ("sending", 10.0, 12.0),
        ("computing", 12.0, 15.0),
        ("sending", 15.0, 17.0),
    ]


def test_a_party_that_was_done_before_the_question_was_idle_and_not_on_its_way() -> None:
    times = AnswerTimes(["shop"])
    times.call("shop", wants_reply=False)
    times.leave(10.0)
    times.call("shop", wants_reply=True)
    times.leave(40.0)
    assert spans(times, 44.0, 20.0) == [
        ("sending", 10.0, 12.0),
        ("computing", 12.0, 32.0),
        ("sending", 42.0, 44.0),
    ]


def test_a_party_that_was_busy_when_the_question_came_is_not_on_its_way_either() -> None:
    times = AnswerTimes(["shop"])
    times.call("shop", wants_reply=False)
    times.leave(10.0)
    times.call("shop", wants_reply=True)
    times.leave(20.0)
    found = spans(times, 44.0, 32.0)
    assert found == [("sending", 10.0, 11.0), ("computing", 11.0, 43.0), ("sending", 43.0, 44.0)]


def test_answers_to_several_questions_begin_where_the_last_one_ended() -> None:
    times = AnswerTimes(["shop"])
    times.call("shop", wants_reply=True)
    times.call("shop", wants_reply=True)
    times.leave(10.0)
    assert spans(times, 14.0, 2.0)[-1] == ("sending", 13.0, 14.0)
    assert spans(times, 16.0, 2.0) == [
        ("sending", 14.0, 14.0),
        ("computing", 14.0, 16.0),
        ("sending", 16.0, 16.0),
    ]


def test_work_that_was_told_here_counts_here_whoever_hears_of_it_first() -> None:
    times = AnswerTimes(["shop"])
    assert not times.claim("shop", 5.0)
    times.call("shop", wants_reply=False)
    times.leave(10.0)
    assert times.claim("shop", 20.0)
    assert not times.claim("shop", 5.0)
    times.call("shop", wants_reply=True)
    times.leave(40.0)
    assert spans(times, 44.0, 1.0)[1] == ("computing", 12.0, 33.0)


def test_a_party_can_not_have_computed_for_longer_than_since_the_call() -> None:
    times = AnswerTimes(["shop"])
    times.call("shop", wants_reply=True)
    times.leave(10.0)
    assert spans(times, 11.0, 99.0) == [
        ("sending", 10.0, 10.0),
        ("computing", 10.0, 11.0),
        ("sending", 11.0, 11.0),
    ]
