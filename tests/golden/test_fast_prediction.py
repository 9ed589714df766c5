"""The fast ways of a prediction give the very bits of the slow and obvious ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.core.errors import DataError
from colonnade.data.blocks import as_ids, make_block
from colonnade.data.prepare import Preparation, PrepareSpec
from colonnade.run.fit import fit
from messages import says

KINDS = ("float64", "float32", "int64", "uint8")


def a_table(seed: int, kinds: list[str], num_rows: int) -> pd.DataFrame:
    """Columns of several kinds in no order, with long tails and numbers that have no exact half."""
    numbers = np.random.default_rng(seed)
    columns = {}
    for place in numbers.permutation(len(kinds)):
        values = numbers.exponential(50, num_rows) if place % 2 else numbers.normal(size=num_rows)
        columns[f"c{place}"] = (np.abs(values) * 1.1).astype(kinds[place])
        columns[f"c{place}"][:2] = (0, 3)
    return pd.DataFrame(columns)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=6),
    skewed=st.sampled_from(["keep", "log"]),
    scale=st.booleans(),
    holes=st.booleans(),
    text=st.booleans(),
)
def test_all_columns_at_once_are_the_columns_one_by_one(
    seed: int, kinds: list[str], skewed: Any, scale: bool, holes: bool, text: bool
) -> None:
    table = a_table(seed, kinds, 40)
    if holes:
        table = table.astype(dict.fromkeys(table.columns[:1], "float64"))
        table.iloc[3, 0] = np.nan
    if text:
        table["level"] = ["a", "b"] * 20
    spec = PrepareSpec(skewed=skewed if scale else "keep", scale=scale, missing="mean")
    block = make_block("bank", table)
    fitted = Preparation.fit(block, np.arange(30), spec)
    # Columns of objects are prepared one by one.
    slow = fitted.apply(make_block("bank", table.astype(object)))
    for rows in (table, table.iloc[5:6], table[table.columns[::-1]].assign(unused=1.5)):
        found = fitted.apply(make_block("bank", rows))
        own = slow if len(rows) > 1 else slow[5:6]
        assert found.tobytes() == own.tobytes()


@pytest.mark.parametrize(("bad", "words"), [(np.inf, "infinite"), (np.nan, "missing")])
def test_a_value_that_is_refused_one_by_one_is_refused_at_once(bad: float, words: str) -> None:
    table = a_table(0, ["float64"] * 3, 20)
    fitted = Preparation.fit(make_block("bank", table), np.arange(20), PrepareSpec())
    table.iloc[4, 1] = bad
    facts = says(f"'{table.columns[1]}'", f"1 {words} values", "row 4")
    with pytest.raises(DataError, match=facts):
        fitted.apply(make_block("bank", table))


def test_text_ids_are_what_they_are_by_the_long_way() -> None:
    ids = pd.Index(["007", "b", "nan"])
    assert as_ids(ids, "here").tolist() == as_ids(ids.tolist(), "here").tolist()
    with pytest.raises(DataError, match=says("1 rows have no id", "row 1")):
        as_ids(pd.Index(["a", None], dtype="str"), "here")


@pytest.mark.parametrize("method", ["splitnn", "laser"])
def test_rows_in_one_order_and_rows_looked_up_give_the_same_bits(method: str) -> None:
    numbers = np.random.default_rng(1)
    ids = [f"i{number}" for number in range(120)]
    blocks = {
        name: pd.DataFrame(numbers.normal(size=(120, 3)), index=ids, columns=list("xyz"))
        for name in ("bank", "shop")
    }
    labels = pd.Series(np.where(blocks["bank"].x > 0, "yes", "no"), index=ids, name="label")
    result = fit(blocks, labels, method=method, epochs=1)
    fast = result.outputs(blocks)
    turned = {**blocks, "shop": blocks["shop"].iloc[::-1]}
    slow = result.outputs(turned)
    assert fast.index.tolist() == slow.index.tolist() == ids
    assert fast.to_numpy().tobytes() == slow.to_numpy().tobytes()
    one = result.outputs({name: block.iloc[7:8] for name, block in blocks.items()})
    np.testing.assert_allclose(one.to_numpy(), fast.iloc[7:8].to_numpy(), rtol=1e-5)
