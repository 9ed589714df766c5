"""Ids that are whole numbers give what their texts give, made at once or never."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.core.errors import ColonnadeError
from colonnade.data.blocks import Block, as_ids, make_block
from colonnade.run.fit import fit
from colonnade.run.result import Result

# Neighbours that are one number as float64, and numbers that only some types have.
_LARGE = 2**53
_NUMBERS = st.one_of(
    st.integers(0, 6),
    st.sampled_from([-1, 127, 128, _LARGE, _LARGE + 1, 2**63 - 1, 2**63, 2**64 - 1]),
)
_KINDS = ("int8", "int64", "uint8", "uint64", "float64", "str", "object", "Int64")


@st.composite
def an_index(draw: st.DrawFn) -> pd.Index:
    """Ids of one type; now and then there is one twice, or one is missing."""
    numbers = draw(st.lists(_NUMBERS, min_size=1, max_size=5))
    kind = draw(st.sampled_from(_KINDS))
    values: list[Any] = [str(item) for item in numbers] if kind == "str" else list(numbers)
    if kind in ("object", "Int64", "str") and draw(st.integers(0, 9)) == 0:
        values[0] = None
    try:
        return pd.Index(values, dtype=kind)
    except (OverflowError, ValueError, TypeError):
        return pd.Index(np.array(numbers, dtype=object).astype(str), dtype="str")


def outcome(make: Any) -> Any:
    """What a call gives, or the words of its refusal."""
    try:
        return make()
    except ColonnadeError as error:
        return type(error), str(error)


def from_text(owner: str, index: pd.Index) -> Block:
    """The slow and obvious way: text first."""
    written = index.tolist() if index.dtype.kind in "iu" else index
    return Block(
        owner=owner,
        ids=as_ids(written, f"block of party '{owner}'"),
        values=pd.DataFrame({"x": np.arange(len(index), dtype=np.float64)}),
    )


def from_table(owner: str, index: pd.Index, *, as_column: bool, like: Block | None = None) -> Block:
    """A table with ids as its index or as a column."""
    table = pd.DataFrame({"x": np.arange(len(index), dtype=np.float64)}, index=index)
    if not as_column:
        return make_block(owner, table, like=like)
    return make_block(
        owner, table.reset_index(drop=True).assign(id=index), id_column="id", like=like
    )


@settings(max_examples=200, deadline=None)
@given(first=an_index(), second=an_index(), as_column=st.booleans())
def test_numbers_as_ids_are_their_texts(first: pd.Index, second: pd.Index, as_column: bool) -> None:
    slow = [outcome(lambda i=index: from_text("bank", i)) for index in (first, second)]
    fast: list[Any] = [outcome(lambda: from_table("bank", first, as_column=as_column))]
    like = fast[0] if isinstance(fast[0], Block) else None
    fast.append(outcome(lambda: from_table("bank", second, as_column=as_column, like=like)))
    for quick, plain in zip(fast, slow, strict=True):
        if isinstance(plain, tuple):
            assert quick == plain
        else:
            assert quick.ids.tolist() == plain.ids.tolist()
    if all(isinstance(item, Block) for item in slow):
        same = slow[0].ids.tolist() == slow[1].ids.tolist()
        # Before any text is made, and afterwards.
        fresh = [from_table("bank", index, as_column=as_column) for index in (first, second)]
        assert fresh[0].has_ids_of(fresh[1]) is same
        assert fast[0].has_ids_of(fast[1]) is same
        assert fresh[0].has_ids_of(slow[1]) is same


def test_ids_stay_what_they_were_whatever_becomes_of_the_table() -> None:
    table = pd.DataFrame({"id": [5, 6], "x": [1.0, 2.0]})
    block = make_block("bank", table, id_column="id")
    table.loc[0, "id"] = 9
    assert block.ids.tolist() == ["5", "6"]


def test_a_block_needs_ids() -> None:
    with pytest.raises(TypeError, match="ids"):
        Block(owner="bank", values=pd.DataFrame({"x": [1.0]}))


def test_a_block_with_unread_ids_is_copied_and_chosen_from() -> None:
    block = make_block("bank", pd.DataFrame({"x": [1.0, 2.0, 3.0]}, index=[30, 10, 20]))
    assert block.take(np.array([2, 0])).ids.tolist() == ["20", "30"]
    assert copy.deepcopy(block).ids.tolist() == ["30", "10", "20"]
    assert block.under(pd.Index(list("abc"))).ids.tolist() == ["30", "10", "20"]


@pytest.fixture(scope="module")
def trained() -> tuple[Result, dict[str, pd.DataFrame]]:
    """A result, and tables to ask it about."""
    numbers = np.random.default_rng(1)
    ids = pd.Index(range(500, 580), name="id")
    blocks = {
        name: pd.DataFrame(numbers.normal(size=(80, 3)), columns=list("xyz"), index=ids)
        for name in ("bank", "shop")
    }
    labels = pd.Series(np.where(blocks["bank"].x > 0, "yes", "no"), ids)
    return fit(blocks, labels, epochs=1), blocks


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kinds=st.tuples(*[st.sampled_from(["int64", "int32", "uint64", "str"])] * 2))
def test_a_prediction_is_the_same_whatever_type_ids_have(
    trained: tuple[Result, dict[str, pd.DataFrame]], data: st.DataObject, kinds: tuple[str, str]
) -> None:
    result, blocks = trained
    drawn = st.lists(st.integers(500, 579), min_size=1, max_size=6)
    rows = (
        [data.draw(drawn) for _ in blocks] if data.draw(st.booleans()) else [data.draw(drawn)] * 2
    )
    given = {name: blocks[name].loc[own] for name, own in zip(blocks, rows, strict=True)}
    as_text = {name: block.set_axis(block.index.astype(str)) for name, block in given.items()}
    as_kinds = {
        name: block.set_axis(block.index.astype(kind))
        for (name, block), kind in zip(given.items(), kinds, strict=True)
    }
    slow, fast = (outcome(lambda t=tables: result.outputs(t)) for tables in (as_text, as_kinds))
    if isinstance(slow, tuple):
        assert fast == slow
    else:
        assert fast.index.astype(str).tolist() == slow.index.tolist()
        assert fast.to_numpy().tobytes() == slow.to_numpy().tobytes()
