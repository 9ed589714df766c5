"""Rows that a party served: seen at home, told in aggregate over a hundred people or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from colonnade.core.errors import ConfigError, Refused
from colonnade.data.blocks import make_block
from colonnade.data.prepare import Preparation, PrepareSpec
from colonnade.federate.party_policy import PartyPolicy, read_policy
from colonnade.federate.served_rows import RowsWatched, ServedRows
from colonnade.protect.ledger import read_ledger
from colonnade.protect.lifetime_account import LifetimeAccount, Rules

NUM_ROWS = 300
TELLS = PartyPolicy(tells=("far", "drift"))


class Served:
    """Three hundred rows of two columns, and the account of a party."""

    def __init__(self, place: Path, releases_per_row: int = 5) -> None:
        self.place = place / "runs" / "one"
        self.place.mkdir(parents=True)
        rules = Rules(releases_per_row=releases_per_row)
        self.account = LifetimeAccount(place / "account.sqlite", party="telco", rules=rules)
        values = np.random.default_rng(0).normal(size=(NUM_ROWS, 2))
        table = pd.DataFrame(values, columns=["calls", "minutes"])
        block = make_block("telco", table, ids=[str(n) for n in range(NUM_ROWS)])
        self.preparation = Preparation.fit(block, np.arange(NUM_ROWS), PrepareSpec())
        self.rows = torch.tensor(self.preparation.apply(block), dtype=torch.float32)
        self.people = self.account.people(map(str, range(NUM_ROWS)))
        self.watched = RowsWatched()
        self.served = ServedRows(
            self.preparation, lambda rows: rows * 2, lambda: self.rows, self.watched
        )

    def see(self, first: int, last: int, **changes: float) -> None:
        rows = self.rows[first:last].clone()
        rows[:, 0] += changes.get("calls", 0.0)
        self.served.see(rows, self.people[first:last])

    def tell(self, policy: PartyPolicy = TELLS) -> dict[str, int]:
        told = self.served.tell(policy, self.account, self.place)
        return {name: int(item) for name, item in told.items()}  # type: ignore[call-overload]


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def test_values_far_outside_the_training_range_are_counted(served: Served) -> None:
    assert not served.preparation.far_outside(served.rows.numpy()).any()
    served.see(0, 97)
    served.see(97, 100, calls=40.0)
    told = served.tell()
    assert (told["rows"], told["far"]) == (100, 3)
    # Inputs: three rows of a hundred moved by 40 in one of two columns.
    assert told["input_drift"] == pytest.approx(100 * 0.6, abs=25)
    assert (served.watched.num_rows, served.watched.num_far) == (100, 3)
    assert set(served.watched.drift()) == {"inputs", "embeddings"}
    last = list(read_ledger(served.place))[-1]
    assert (last["event"], last["verb"]) == ("left", "aggregates")
    assert last["told"] == ["embedding_drift", "far", "input_drift", "rows"]


def test_a_category_and_an_older_preparation_are_not_far() -> None:
    table = pd.DataFrame({"town": ["a", "b", "a", "b"], "calls": [1.0, 2.0, 3.0, 4.0]})
    block = make_block("telco", table, ids=list("wxyz"))
    fitted = Preparation.fit(block, np.arange(4), PrepareSpec())
    other = make_block(
        "telco", table.assign(town="c", calls=[1.0, 9.0, 2.0, -3.0]), ids=list("wxyz")
    )
    assert fitted.far_outside(fitted.apply(other)).tolist() == [False, True, False, True]
    older = replace(fitted, ranges=())
    assert older == fitted
    assert not older.far_outside(older.apply(other)).any()


def test_nothing_is_told_by_default_and_all_is_seen_at_home(served: Served) -> None:
    served.see(0, 200, calls=40.0)
    assert served.tell(PartyPolicy()) == {}
    assert served.account.held().num_people == 0
    assert served.watched.num_far == 200


def test_the_policy_names_what_is_told(served: Served, tmp_path: Path) -> None:
    served.see(0, 100)
    assert set(served.tell(PartyPolicy(tells=("far",)))) == {"rows", "far"}
    file = tmp_path / "policy.toml"
    file.write_text('tells = ["columns"]\n')
    with pytest.raises(ConfigError, match="tells"):
        read_policy(file)


@pytest.mark.attack(
    what="Counts over rows: one person told apart",
    has="aggregates of any rows that it asks for (cheating)",
    before="(found with the aggregates)",
    now="a hundred people at least, each counted once in a session, charged a release each time",
)
@pytest.mark.parametrize("times", [1, 3])
def test_no_two_counts_differ_by_one_person(served: Served, times: int) -> None:
    # Fewer than a hundred, however often they are asked for.
    for _ in range(times * 5):
        served.see(0, 99)
    assert served.tell() == {}
    # The hundredth person completes a count; the same ones again with another are no new count.
    served.see(99, 100, calls=40.0)
    assert served.tell()["far"] == 1
    served.see(0, 99)
    served.see(100, 101, calls=40.0)
    assert served.tell() == {}
    served.see(101, 200)
    told = served.tell()
    assert (told["rows"], told["far"]) == (100, 1)


def test_everybody_in_it_is_charged_and_a_spent_account_ends_it(tmp_path: Path) -> None:
    one = Served(tmp_path, releases_per_row=1)
    one.see(0, 100)
    one.tell()
    held: Any = one.account.held()
    assert (held.num_people, held.num_bare) == (100, 100)
    # Another session counts the same people: they have had their one release.
    again = ServedRows(one.preparation, lambda rows: rows, lambda: one.rows, RowsWatched())
    again.see(one.rows[:100], one.people[:100])
    with pytest.raises(Refused, match="releases_per_row"):
        again.tell(TELLS, one.account, one.place)
