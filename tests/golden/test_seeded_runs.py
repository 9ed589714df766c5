"""Seeded runs of every method end with the numbers that are written down."""

from __future__ import annotations

import json

import pytest

from golden_runs import FILE, cases, outcome

EXPECTED = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_case_is_written_down() -> None:
    assert [name for name, _ in cases()] == list(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_numbers_do_not_move(name: str) -> None:
    """In float64, so that only another computation, and not another machine, can move them."""
    assert outcome(**dict(cases())[name]) == pytest.approx(EXPECTED[name], rel=1e-8, abs=1e-12)
