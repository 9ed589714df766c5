"""Queries as blocks: types stay, and every mistake is one line."""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

import colonnade
from colonnade.core.errors import DataError
from colonnade.run.result import Result
from messages import says

COUNT = 40
DRAW = np.random.default_rng(4)
PAY = DRAW.normal(100, 20, COUNT).round(2)
DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=int(day)) for day in DRAW.integers(0, 90, COUNT)]
KEYS = [f"k{number}" for number in range(COUNT)]
SHOP = pd.DataFrame({"key": KEYS[::-1], "visits": DRAW.normal(size=COUNT)})
LABELS = pd.Series(np.where(PAY > 100, "yes", "no"), index=KEYS)


@pytest.fixture
def database() -> Iterator[Any]:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE people (key VARCHAR, pay DECIMAL(9, 2), since DATE)")
        rows = [
            (key, Decimal(str(pay)), day) for key, pay, day in zip(KEYS, PAY, DAYS, strict=True)
        ]
        connection.executemany("INSERT INTO people VALUES (?, ?, ?)", rows)
        yield connection


def fitted(bank: Any) -> Result:
    return colonnade.fit(
        {"bank": bank, "shop": SHOP},
        LABELS,
        label_holder="bank",
        id_column="key",
        epochs=2,
    )


def columns_of(result: Result) -> Any:
    return result._blueprint.preparations["bank"]


def test_decimals_and_dates_keep_their_types(database: Any) -> None:
    table = pd.DataFrame({"key": KEYS, "pay": PAY, "since": pd.to_datetime(pd.Series(DAYS))})
    expected = fitted(table)
    query = colonnade.Sql("SELECT * FROM people ORDER BY since", database)
    asked = fitted(query)
    assert columns_of(asked).num_numeric == columns_of(expected).num_numeric == 2
    new = {"bank": query, "shop": SHOP}
    found = asked.predict_proba(new).sort_index()
    same = expected.predict_proba({"bank": table, "shop": SHOP}).sort_index()
    np.testing.assert_allclose(found, same, atol=1e-6)
    assert asked.evaluate(new, LABELS)["accuracy"] <= 1


def test_relations_of_duckdb_are_arrow_tables(database: Any) -> None:
    relation = database.sql("SELECT key, pay, since FROM people")
    assert columns_of(fitted(relation)).num_numeric == 2


def test_any_database_and_values_for_placeholders() -> None:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE people (key TEXT, pay REAL)")
        connection.executemany(
            "INSERT INTO people VALUES (?, ?)", zip(KEYS, PAY.tolist(), strict=True)
        )
        query = "SELECT key, pay FROM people WHERE pay > ?"
        table = colonnade.Sql(query, connection, (100,)).read("block")
    connection.close()
    assert sorted(table["pay"]) == sorted(PAY[PAY > 100])


@pytest.mark.parametrize(
    ("query", "telling"),
    [
        ("SELECT nothing FROM people", "the query failed"),
        ("SELECT key, key FROM people", "['key'] more than once"),
        ("CREATE TABLE other (a TEXT)", "gives no columns"),
    ],
)
def test_what_is_wrong_is_said(query: str, telling: str) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE people (key TEXT, pay REAL)")
    with pytest.raises(DataError, match=says("block of party 'bank'", telling)):
        fitted(colonnade.Sql(query, connection))
    connection.close()


def test_a_path_is_no_connection() -> None:
    with pytest.raises(DataError, match=says("open database connection", "got str")):
        fitted(colonnade.Sql("SELECT 1", "people.db"))
