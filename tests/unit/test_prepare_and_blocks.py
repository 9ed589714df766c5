"""Blocks and their preparation: what is read, what is refused, and the numbers that come out."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.core.config import dump, parse
from colonnade.core.errors import ColonnadeError, ConfigError, DataError
from colonnade.data.blocks import (
    Block,
    Labels,
    as_ids,
    make_block,
    read_block,
)
from colonnade.data.label_columns import read_labels
from colonnade.data.prepare import Preparation, PrepareSpec
from colonnade.data.table_files import read_table
from messages import says

# Ids


@pytest.mark.parametrize(
    "ids",
    [
        [7, 8, 9],
        ["7", "8", "9"],
        [7.0, 8.0, 9.0],
        np.array([7, 8, 9], dtype=np.uint8),
        pd.Index([7, 8, 9]),
        pd.Series([7, 8, 9], dtype="Int64", index=[3, 1, 2]),
        pd.Series(["7", "8", "9"], dtype="string"),
        pd.Series(["7", "8", "9"], dtype="category"),
        [7, "8", "9"],
    ],
    ids=lambda item: type(item).__name__,
)
def test_ids_of_any_type_are_the_same_text(ids: Any) -> None:
    assert list(as_ids(ids, "here")) == ["7", "8", "9"]


def test_ids_keep_their_leading_zeros(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,x\n007,1\n070,2\n")
    assert list(read_block("bank", path, id_column="id").ids) == ["007", "070"]


@pytest.mark.parametrize("ids", [[1, None], ["a", None], [1.0, float("nan")], [pd.NaT, 1]])
def test_a_missing_id(ids: list[Any]) -> None:
    with pytest.raises(DataError, match=r"here: 1 .*\bid\b.*row \d"):
        as_ids(ids, "here")


@pytest.mark.parametrize("ids", [[1.0, 2.5], [1.0, float("inf")]], ids=str)
def test_fractional_ids(ids: list[float]) -> None:
    with pytest.raises(DataError, match=says("here", "whole numbers")) as caught:
        as_ids(ids, "here")
    assert "2.5" not in str(caught.value)


# Blocks


def test_duplicate_ids_are_counted_not_named() -> None:
    ids = ["ann-secret", "bob-secret", "ann-secret", "ann-secret"]
    with pytest.raises(DataError) as caught:
        make_block("bank", pd.DataFrame({"x": range(4)}, index=ids))
    assert "'bank': 2 duplicate ids (first repeat at row 2); keep one row" in str(caught.value)
    assert "secret" not in str(caught.value)
    with pytest.raises(DataError, match=says("labels 'y'", "2 duplicate")):
        Labels(ids=np.array(ids, dtype=object), values=np.arange(4), name="y")


def test_ids_that_are_the_same_only_as_text() -> None:
    mixed = pd.DataFrame({"x": [1, 2]}, index=pd.Index([7, "7"], dtype=object))
    with pytest.raises(DataError, match=says("'bank'", "1 duplicate")):
        make_block("bank", mixed)


@pytest.mark.parametrize(
    ("values", "telling"),
    [
        (pd.DataFrame({"x": []}), "has no rows; give it at least one"),
        (pd.DataFrame(index=["a", "b"]), "has no columns besides the id"),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), "['x'] occur more than once; rename"),
    ],
    ids=["no rows", "no columns", "twice"],
)
def test_blocks_that_can_not_be(values: pd.DataFrame, telling: str) -> None:
    with pytest.raises(DataError) as caught:
        make_block("bank", values)
    assert "party 'bank'" in str(caught.value)
    assert telling in str(caught.value)


def test_arrays_need_ids() -> None:
    with pytest.raises(DataError, match=says("'bank'", "array", "ids")):
        make_block("bank", np.zeros((3, 2)))
    with pytest.raises(DataError, match=says("'bank'", "2 ids", "3 rows")):
        make_block("bank", np.zeros((3, 2)), ids=[1, 2])
    block = make_block("bank", np.arange(3), ids=[1, 2, 3])
    assert block.values.shape == (3, 1)
    assert block.columns == ()


def test_columns_are_chosen_in_the_order_asked_for() -> None:
    table = pd.DataFrame({"id": [1, 2], "a": [3, 4], "b": [5, 6], "c": [7, 8]})
    block = make_block("bank", table, id_column="id", columns=["c", "a"])
    assert block.columns == ("c", "a")
    assert list(block.ids) == ["1", "2"]
    turned = block.take(np.array([1, 0]))
    assert list(turned.ids) == ["2", "1"]
    assert turned.values["a"].tolist() == [4, 3]


@pytest.mark.parametrize(("id_column", "columns"), [("key", None), ("id", ["age", "a"])])
def test_absent_columns(id_column: str, columns: list[str] | None) -> None:
    table = pd.DataFrame({"id": [1, 2], "a": [3, 4]})
    with pytest.raises(
        DataError, match=says("'bank'", "it has: a" if columns else "it has: id, a")
    ) as caught:
        make_block("bank", table, id_column=id_column, columns=columns)
    assert ("key" if columns is None else "age") in str(caught.value)


def test_missing_labels() -> None:
    with pytest.raises(DataError, match=says("'y'", "1 of 3", "row 1")):
        Labels(ids=as_ids([1, 2, 3], ""), values=np.array(["a", None, "b"], dtype=object), name="y")


# Files

TABLE = pd.DataFrame(
    {"id": ["a1", "a2", "a3"], "x": [1.5, 2.25, -3.0], "n": [1, 2, 3], "t": ["u", "v", "u"]}
)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "T.CSV", "t.parquet", "t.pq"])
def test_every_kind_of_file_reads_alike(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith(("parquet", "pq")):
        TABLE.to_parquet(path)
    else:
        TABLE.to_csv(path, index=False, sep="\t" if "tsv" in name else ",")
    block = read_block("bank", path, id_column="id")
    assert list(block.ids) == ["a1", "a2", "a3"]
    pd.testing.assert_frame_equal(block.values, TABLE[["x", "n", "t"]], check_dtype=False)
    labels = read_labels(path, id_column="id", column="t")
    assert list(labels.values) == ["u", "v", "u"]
    with pytest.raises(DataError, match=says("labels 'z'", ["z"])):
        read_labels(path, id_column="id", column="z")


@pytest.mark.parametrize(
    ("name", "content", "telling"),
    [
        ("gone.csv", None, "no such file; check the path"),
        ("empty.csv", b"", "the file is empty; it needs a header and rows"),
        ("ragged.csv", b"id,x\n1,2\n3,4,5\n", "not readable as CSV"),
        ("t.xlsx", b"PK", "unknown kind of file; use .csv, .csv.gz, .tsv or .parquet"),
        ("noise.parquet", b"id,x\n1,2\n", "not readable"),
        ("empty.parquet", b"", "not readable"),
        ("plain.csv.gz", b"id,x\n1,2\n", "not readable"),
        ("cut.csv.gz", gzip.compress(b"id,x\n" + b"1,2\n" * 99)[:30], "not readable"),
    ],
    ids=lambda item: item if isinstance(item, str) and "." in item[-8:] else "",
)
def test_bad_files(tmp_path: Path, name: str, content: bytes | None, telling: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_table(path)
    assert str(path) in str(caught.value)
    assert telling in str(caught.value)


def test_a_header_without_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,x\n")
    with pytest.raises(DataError, match=says("'bank'", "rows")):
        read_block("bank", tmp_path / "t.csv", id_column="id")


def test_an_id_missing_in_a_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,x\na,1\n,2\nc,3\n")
    with pytest.raises(DataError, match=says("'bank'", "1 rows", "id", "row 1")):
        read_block("bank", tmp_path / "t.csv", id_column="id")


# Preparation

ALL = np.arange(6)
MIXED = pd.DataFrame(
    {
        "age": [20.0, 30.0, 40.0, 50.0, 60.0, 70.0],
        "plan": ["a", "b", "a", "c", "b", "a"],
        "code": [1, 2, 3, 1, 2, 3],
        "vip": [True, False, True, False, True, True],
    }
)


def block_of(table: Any, ids: Any = None) -> Block:
    return make_block("bank", table, ids=range(len(table)) if ids is None else ids)


def fitted(table: Any, rows: Any = ALL, **settings: Any) -> Preparation:
    return Preparation.fit(block_of(table), np.asarray(rows), PrepareSpec(**settings))


def test_numbers_are_scaled_by_the_training_rows_only() -> None:
    preparation = fitted(MIXED[["age"]], [0, 1, 2])
    prepared = preparation.apply(block_of(MIXED[["age"]]))[:, 0]
    np.testing.assert_allclose(prepared[:3].mean(), 0.0, atol=1e-12)
    np.testing.assert_allclose(prepared[:3].std(), 1.0)
    assert prepared[5] > 4
    raw = fitted(MIXED[["age"]], scale=False).apply(block_of(MIXED[["age"]]))
    assert raw[:, 0].tolist() == MIXED["age"].tolist()


def test_only_columns_with_a_long_upper_tail_go_on_a_log_scale() -> None:
    amounts = np.array([1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 40.0, 1001.0])
    table = pd.DataFrame({"amount": amounts, "age": np.arange(8.0), "below": -amounts})
    preparation = fitted(table, range(8), skewed="log")
    assert dict(preparation.logs) == {"amount": (1.0, 1000.0)}
    kept = fitted(table, range(8))
    by_log, plain = (item.apply(block_of(table)) for item in (preparation, kept))
    column = preparation.numeric.index("amount")
    expected = np.log((amounts - 1.0) / 1000.0 + 1e-3)
    expected = (expected - expected.mean()) / expected.std()
    np.testing.assert_allclose(by_log[:, column], expected)
    others = [number for number in range(3) if number != column]
    np.testing.assert_array_equal(by_log[:, others], plain[:, others])


def test_later_values_below_the_training_part_count_as_its_smallest() -> None:
    table = pd.DataFrame({"amount": [1.0, 2.0, 3.0, 200.0, -50.0, np.nan]})
    preparation = fitted(table, range(4), skewed="log", missing="mean")
    prepared = preparation.apply(block_of(table))[:, 0]
    assert prepared[4] == prepared[0]
    assert prepared[5] == 0.0


@pytest.mark.parametrize("factor", [1e-200, 1.0, 1e200])
def test_whether_a_column_is_skewed_does_not_depend_on_its_unit(factor: float) -> None:
    values = factor * np.array([1.0, 2.0, 3.0, 200.0])
    assert set(fitted(pd.DataFrame({"amount": values}), range(4), skewed="log").logs) == {"amount"}


def test_a_log_scale_needs_scaling_and_a_table() -> None:
    with pytest.raises(ConfigError, match=says("skewed", '"log"', "scale = true")):
        PrepareSpec(skewed="log", scale=False)
    pictures = make_block("bank", np.random.default_rng(0).random((4, 2, 2)), ids=range(4))
    with pytest.raises(DataError, match=says("'bank'", 'prepare.skewed = "log"', '"keep"')):
        Preparation.fit(pictures, np.arange(4), PrepareSpec(skewed="log"))


def test_one_hot_and_embedding() -> None:
    one_hot = fitted(MIXED, categorical_columns=("code",))
    assert one_hot.shape == (1 + 3 + 3 + 1,)
    assert one_hot.cardinalities == ()
    assert one_hot.apply(block_of(MIXED)).sum(axis=1).shape == (6,)
    codes = fitted(MIXED, categorical="embedding", categorical_columns=("code",))
    assert codes.cardinalities == (4, 4)
    assert codes.shape == (2 + 2,)
    assert codes.apply(block_of(MIXED))[:, 2:].min() == 1


@pytest.mark.parametrize("categorical", ["one_hot", "embedding"])
def test_levels_unseen_in_training_are_zeros_or_code_zero(categorical: Any) -> None:
    preparation = fitted(MIXED[["plan"]], [0, 1, 2], categorical=categorical)
    prepared = preparation.apply(block_of(MIXED[["plan"]]))
    assert (prepared[3] == 0).all()
    assert (prepared[:3] != 0).any(axis=1).all()


def test_the_same_level_as_whole_number_and_as_float() -> None:
    """A table with one missing cell turns whole numbers into floats; 1 and 1.0 stay one level."""
    preparation = fitted(MIXED[["code"]], categorical_columns=("code",), missing="mean")
    whole = preparation.apply(block_of(MIXED[["code"]]))
    floats = preparation.apply(block_of(MIXED[["code"]].astype(float)))
    np.testing.assert_array_equal(whole, floats)


def test_the_order_of_columns_in_a_later_table_does_not_matter() -> None:
    preparation = fitted(MIXED)
    turned = MIXED[["vip", "plan", "age", "code"]].assign(extra=1)
    np.testing.assert_array_equal(
        preparation.apply(block_of(turned)), preparation.apply(block_of(MIXED))
    )
    with pytest.raises(DataError, match=says("'bank'", ["plan"], "age")):
        preparation.apply(block_of(MIXED.drop(columns="plan")))


def holes(column: str, value: Any, rows: list[int]) -> pd.DataFrame:
    table = MIXED.astype({column: object if column == "plan" else float})
    table.loc[rows, column] = value
    return table


@pytest.mark.parametrize("column", ["age", "plan"])
def test_missing_values(column: str) -> None:
    table = holes(column, None, [2, 4])
    with pytest.raises(DataError) as caught:
        fitted(table)
    assert f"'bank': column '{column}' has 2 missing values (first at row 2)" in str(caught.value)
    assert 'prepare.missing = "mean"' in str(caught.value)
    filled = fitted(table, missing="mean").apply(block_of(table))
    assert np.isfinite(filled).all()
    if column == "age":
        assert filled[2, 0] == 0  # the mean, centred


def test_infinite_values_are_refused_even_where_missing_ones_are_filled() -> None:
    for missing in ("refuse", "mean"):
        with pytest.raises(DataError, match=says("'age'", "1 infinite", "row 3")):
            fitted(holes("age", -np.inf, [3]), missing=missing)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("shape", [(6, 3), (6, 2, 3)], ids=str)
def test_arrays_with_bad_values(value: float, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=shape)
    good = fitted(array)
    assert good.shape == shape[1:]
    assert good.apply(block_of(array)).shape == shape
    array[4, 1] = value
    for refuse in (lambda: fitted(array), lambda: good.apply(block_of(array))):
        with pytest.raises(DataError, match=says("'bank'", "row 4")):
            refuse()
    if np.isnan(value) and len(shape) == 2:
        filled = fitted(array, missing="mean").apply(block_of(array))
        assert np.isfinite(filled).all()


def test_arrays_of_another_shape() -> None:
    with pytest.raises(DataError, match=says("'bank'", "(3, 2)", "(2, 3)")):
        fitted(np.random.default_rng(0).normal(size=(6, 2, 3))).apply(block_of(np.zeros((6, 3, 2))))


@pytest.mark.parametrize("value", [5.0, "same", True])
def test_constant_columns(value: Any) -> None:
    table = MIXED[["age"]].assign(same=value)
    with pytest.raises(DataError, match=says("'bank'", "'same'", 'prepare.constant = "drop"')):
        fitted(table)
    dropped = fitted(table, constant="drop")
    assert dropped.shape == (1,)
    assert dropped.apply(block_of(table)).shape == (6, 1)
    kept = fitted(table, constant="keep")
    assert kept.shape == (2,)
    assert np.isfinite(kept.apply(block_of(table))).all()


def test_constant_columns_only() -> None:
    with pytest.raises(DataError, match=says("'bank'", "column")):
        fitted(pd.DataFrame({"same": [1] * 6}), constant="drop")


def test_columns_fold_into_a_shape() -> None:
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(6, 6)))
    assert fitted(table, shape=(2, 3)).apply(block_of(table)).shape == (6, 2, 3)
    with pytest.raises(DataError, match=says("'bank'", "prepare.shape", [2, 2], 4, 6)):
        fitted(table, shape=(2, 2))


def test_text_where_there_were_numbers_is_not_quoted() -> None:
    later = MIXED.assign(age=["secret"] * 6)
    with pytest.raises(DataError, match=says("'bank'", "'age'", "numeric")) as caught:
        fitted(MIXED).apply(block_of(later))
    assert "secret" not in str(caught.value)


def test_an_unknown_categorical_column() -> None:
    with pytest.raises(ColonnadeError, match=says(["plam"], "age, plan")):
        fitted(MIXED, categorical_columns=("plam",))


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=12, unique=True),
    levels=st.lists(st.text(max_size=3), min_size=2, max_size=4, unique=True),
    categorical=st.sampled_from(["one_hot", "embedding"]),
    skewed=st.sampled_from(["keep", "log"]),
)
def test_a_preparation_survives_being_written_down(
    values: list[float], levels: list[str], categorical: Any, skewed: Any
) -> None:
    texts = [levels[number % len(levels)] for number in range(len(values))]
    table = pd.DataFrame({"x": values, "t": pd.Series(texts, dtype=object)})
    rows = np.arange(len(values) // 2)
    spec = PrepareSpec(categorical=categorical, skewed=skewed)
    preparation = Preparation.fit(block_of(table), rows, spec)
    plain = dump(preparation)
    again = parse(Preparation, {**plain, "spec": parse(PrepareSpec, plain["spec"])})
    assert again == preparation
    np.testing.assert_array_equal(again.apply(block_of(table)), preparation.apply(block_of(table)))


_KEYS = [
    pd.Index([3, 1, 2]),
    pd.Index([3, 1, 2], dtype="uint8"),
    pd.Index([3.0, 1.0, 2.0]),
    pd.Index(["3", "1", "2"], dtype="str"),
    pd.Index([3, 1, 2], dtype=object),
    pd.Index([3, True, 2], dtype=object),
    pd.Index([1, 2, 3]),
    pd.Index([3, 1]),
]


@pytest.mark.parametrize("first", _KEYS)
@pytest.mark.parametrize("second", _KEYS)
def test_ids_of_a_block_like_another_are_those_of_the_block_alone(
    first: pd.Index[Any], second: pd.Index[Any]
) -> None:
    like = make_block("a", pd.DataFrame({"x": np.zeros(len(first))}, index=first))
    table = pd.DataFrame({"x": np.zeros(len(second))}, index=second)
    made, alone = make_block("b", table, like=like), make_block("b", table)
    assert made.ids.tolist() == alone.ids.tolist()
    assert made.keys is not None
    assert made.keys.equals(second)
