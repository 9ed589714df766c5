"""The pattern that tests hold messages to: every fact, in any order, never as part of another."""

from __future__ import annotations

import re

import pytest

from messages import says

MESSAGE = "no answer from 'slow' to 'embed' at exchange 3 within 50 ticks\nraise patience.timeout"


@pytest.mark.parametrize(
    "facts", [("'slow'", "'embed'", 3, 50), (50, "'embed'"), ("patience.timeout",), ("exchange 3",)]
)
def test_facts_are_found_in_any_order_and_line(facts: tuple[object, ...]) -> None:
    assert re.search(says(*facts), MESSAGE)


@pytest.mark.parametrize("facts", [("'fast'",), ("'slow'", 4), (5,), (0,), ("slo",), ("timeou",)])
def test_a_missing_fact_or_a_part_of_one_is_not_found(facts: tuple[object, ...]) -> None:
    assert not re.search(says(*facts), MESSAGE)


@pytest.mark.parametrize("text", ["got 0.3", "got 3.5", "got -3", "got 31", "p3"])
def test_a_number_stands_for_itself_alone(text: str) -> None:
    assert not re.search(says(3), text)
    assert re.search(says(3), f"{text}, at most 3.")
