"""Counts of queries: durable, shared, and no younger than the clock says."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from colonnade.core.errors import ConfigError, Refused, StorageError
from colonnade.federate.query_counts import Queries, QueryCounts

HOUR = 3600.0


def people(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def counts(place: Path) -> QueryCounts:
    return QueryCounts(place / "queries.sqlite", "telco")


def test_a_person_counts_in_a_window_of_hours(tmp_path: Path) -> None:
    rules = Queries(max_per_person=2, per_hours=3)
    kept = counts(tmp_path)
    kept.count(rules, people(1, 2), 10 * HOUR)
    kept.count(rules, people(1), 11 * HOUR)
    with pytest.raises(Refused, match=r"rule 'queries.max_per_person'.*3 times in 3 hours"):
        kept.count(rules, people(2, 1), 12 * HOUR)
    # Refused, nobody was counted; a restart changes nothing.
    again = counts(tmp_path)
    again.count(rules, people(2), 12 * HOUR)
    with pytest.raises(Refused, match="max_per_person"):
        again.count(rules, people(2), 12 * HOUR)
    again.count(rules, people(1), 13 * HOUR)


def test_hours_are_of_sixty_minutes_for_years(tmp_path: Path) -> None:
    # An hour that is a second too long is half an hour off after 1,800 of them.
    rules, kept = Queries(max_per_person=1, per_hours=1), counts(tmp_path)
    kept.count(rules, people(1), 500_000 * HOUR - 1)
    kept.count(rules, people(1), 500_000 * HOUR)
    with pytest.raises(Refused, match="max_per_person"):
        kept.count(rules, people(1), 500_000.999 * HOUR)


def test_somebody_with_two_rows_counts_twice(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="max_per_person"):
        counts(tmp_path).count(Queries(max_per_person=1), people(5, 5), HOUR)


def test_all_people_count_together(tmp_path: Path) -> None:
    rules = Queries(max_in_all=5, per_hours=1)
    kept = counts(tmp_path)
    kept.count(rules, people(1, 2, 3), HOUR)
    with pytest.raises(Refused, match=r"rule 'queries.max_in_all'"):
        kept.count(rules, people(4, 5, 6), HOUR)
    kept.count(rules, people(4, 5), HOUR)
    kept.count(rules, people(4, 5, 6), 2 * HOUR)


def test_a_clock_that_was_set_back_gives_nothing_back(tmp_path: Path) -> None:
    rules = Queries(max_per_person=1, per_hours=2)
    kept = counts(tmp_path)
    kept.count(rules, people(1), 100 * HOUR)
    for hour in (1, 50, 101):
        with pytest.raises(Refused, match="max_per_person"):
            kept.count(rules, people(1), hour * HOUR)
    kept.count(rules, people(1), 102 * HOUR)


@pytest.mark.attack(
    what="Queries on several lanes at once, each within its cap",
    has="a session on every lane of a party (cheating)",
    before="(caps on queries are new)",
    now="one count for all sessions: {answered} queries of a person, of {most} allowed",
)
def test_sessions_share_the_counts(tmp_path: Path, measured: Any) -> None:
    rules = Queries(max_per_person=10)
    answered: list[int] = []

    def ask(kept: QueryCounts) -> None:
        for _ in range(10):
            try:
                kept.count(rules, people(7), HOUR)
            except Refused:
                continue
            answered.append(1)

    threads = [threading.Thread(target=ask, args=(counts(tmp_path),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answered) == 10
    measured(answered=len(answered), most=10)


def test_without_rules_nothing_is_counted(tmp_path: Path) -> None:
    kept = counts(tmp_path)
    kept.count(Queries(), people(1), HOUR)
    kept.count(Queries(max_per_person=1), people(1), HOUR)


def test_a_file_that_is_no_count_lets_nothing_pass(tmp_path: Path) -> None:
    (tmp_path / "queries.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(StorageError, match="can't be counted"):
        counts(tmp_path).count(Queries(max_per_person=1), people(1), HOUR)


@pytest.mark.parametrize("key", ["max_per_person", "max_in_all", "per_hours"])
def test_a_cap_is_at_least_one(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: must be at least 1"):
        Queries(**{key: 0})


def test_whom_it_would_refuse_is_told_and_not_counted(tmp_path: Path) -> None:
    rules, kept = Queries(max_per_person=2, per_hours=3), counts(tmp_path)
    kept.count(rules, people(1, 1, 2), 10 * HOUR)
    for _ in range(3):
        told = kept.refuses(rules, people(1, 2, 3, 3, 4, 4, 4), 12 * HOUR)
        assert told.tolist() == [True, False, False, False, True, True, True]
    assert kept.refuses(rules, people(1, 2), 13 * HOUR).tolist() == [False, False]
    assert kept.refuses(Queries(max_in_all=1), people(1, 2), HOUR).tolist() == [False, False]
