"""What people give to fit and predict: whose rows belong together, and what columns mean."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from colonnade import VerticalClassifier, fit
from colonnade.core.errors import ColonnadeError, ConfigError, DataError
from colonnade.run.result import Result
from federations import assert_bitwise_equal, weights
from messages import says

NUM_SAMPLES = 60
SMALL: dict[str, Any] = {
    "defaults": {"encoder": {"kind": "mlp", "hidden": [6], "embedding": 4}},
    "label_holder": {"fusion": {"kind": "mlp", "hidden": [5]}},
}


def one_table() -> pd.DataFrame:
    draw = np.random.default_rng(5)
    table = pd.DataFrame(draw.normal(size=(NUM_SAMPLES, 4)), columns=["age", "pay", "calls", "sms"])
    table["plan"] = draw.choice(["basic", "gold"], NUM_SAMPLES)
    table["left"] = np.where(table["age"] + table["calls"] > 0, "yes", "no")
    return table


TABLE = one_table()
BANK, TELCO, LEFT = ["age", "pay"], ["calls", "sms", "plan"], "left"
IDS = np.arange(500, 500 + NUM_SAMPLES)


def quick(blocks: Any, labels: Any, **arguments: Any) -> Result:
    arguments = {"label_holder": "bank", "epochs": 2, "batch_size": 16, **arguments}
    settings = {**SMALL, **arguments.pop("settings", {})}
    return fit(blocks, labels, settings=settings, **arguments)


def of_one_table() -> dict[str, pd.DataFrame]:
    return {"bank": TABLE[BANK], "telco": TABLE[TELCO]}


def same(first: Result, second: Result) -> None:
    assert_bitwise_equal(weights(first._federation), weights(second._federation))


# Which rows belong together


def test_columns_of_one_table_need_no_ids() -> None:
    for other in (
        TABLE.filter(items=TELCO),
        TABLE.drop(columns=[*BANK, LEFT]),
        TABLE.copy()[TELCO],
    ):
        same(
            quick({"bank": TABLE[BANK], "telco": other}, TABLE[LEFT]),
            quick(of_one_table(), TABLE[LEFT]),
        )


@pytest.mark.parametrize("index", [None, np.arange(NUM_SAMPLES)], ids=["range", "numbers"])
def test_separate_tables_whose_index_counts_rows_are_refused(index: Any) -> None:
    """A shuffled table looked the same: every row was matched with a stranger's."""
    telco = TABLE[TELCO].sample(frac=1, random_state=1).reset_index(drop=True)
    if index is not None:
        telco.index = index
    with pytest.raises(DataError, match=says("'bank'", "'telco'", "id_column", "ids='row order'")):
        quick({"bank": TABLE[BANK], "telco": telco}, TABLE[LEFT])
    labels = pd.Series(TABLE[LEFT].to_numpy())
    with pytest.raises(DataError, match=says("labels", "ids='row order'")):
        quick(of_one_table(), labels)


def test_an_index_of_ids_matches_rows_in_any_order() -> None:
    telco = TABLE[TELCO].sample(frac=1, random_state=1)
    same(
        quick({"bank": TABLE[BANK], "telco": telco}, TABLE[LEFT]),
        quick(of_one_table(), TABLE[LEFT]),
    )


def test_row_order_when_the_caller_says_so() -> None:
    apart = {
        "bank": pd.DataFrame(TABLE[BANK].to_numpy()),
        "telco": TABLE[TELCO].reset_index(drop=True),
    }
    said = quick(apart, TABLE[LEFT].to_numpy(), ids="row order")
    blocks = {"bank": pd.DataFrame(TABLE[BANK].to_numpy()), "telco": TABLE[TELCO].set_axis(IDS)}
    same(said, quick(blocks, TABLE[LEFT], ids="row order"))
    with pytest.raises(DataError, match=says("row order", "'bank' 60", "'telco' 59")):
        quick({**apart, "telco": TABLE[TELCO][:-1]}, TABLE[LEFT], ids="row order")
    with pytest.raises(ConfigError, match=says("ids", "'customer'", "id_column")):
        quick(apart, TABLE[LEFT], ids="customer")


def test_an_id_column_of_its_own_at_each_party(tmp_path: Path) -> None:
    bank = TABLE[[*BANK, LEFT]].assign(customer=IDS)
    telco = TABLE[TELCO].assign(kunde=IDS.astype(str)).sample(frac=1, random_state=2)
    columns = {"bank": "customer", "telco": "kunde"}
    result = quick({"bank": bank, "telco": telco}, LEFT, id_column=columns)
    indexed = {"bank": TABLE[BANK].set_axis(IDS), "telco": TABLE[TELCO].set_axis(IDS)}
    same(result, quick(indexed, TABLE[LEFT].set_axis(IDS)))
    found = Result.load(result.save(tmp_path / "model")).predict({"bank": bank, "telco": telco})
    assert found.index.tolist() == IDS.tolist()
    assert found.index.name == "customer"
    with pytest.raises(
        ConfigError, match=says("id_column", "no party 'bnk'", "did you mean 'bank'?")
    ):
        quick({"bank": bank, "telco": telco}, LEFT, id_column={"bnk": "customer"})


def test_the_label_by_the_name_of_its_column() -> None:
    blocks = {"bank": TABLE[[*BANK, LEFT]], "telco": TABLE[TELCO]}
    same(quick(blocks, LEFT), quick(of_one_table(), TABLE[LEFT]))
    with pytest.raises(
        ConfigError, match=says("labels", "'bank'", "'lft'", "did you mean 'left'?")
    ):
        quick(blocks, "lft")
    with pytest.raises(ConfigError, match=says("labels", "label_holder='bank' has it")):
        quick(blocks, LEFT, label_holder="registry")


def test_tables_of_arrow_and_polars_and_files(tmp_path: Path) -> None:
    """Names and types stay: polars and Arrow tables used to lose both."""
    tables = {"bank": TABLE[[*BANK, LEFT]].assign(id=IDS), "telco": TABLE[TELCO].assign(id=IDS)}
    expected = quick(tables, LEFT, id_column="id")
    for name, table in tables.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        table.to_parquet(tmp_path / f"{name}.parquet")
    forms: list[Any] = [
        {name: pa.Table.from_pandas(table) for name, table in tables.items()},
        {name: pl.from_pandas(table) for name, table in tables.items()},
        {name: pl.from_pandas(table).lazy() for name, table in tables.items()},
        {name: tmp_path / f"{name}.parquet" for name in tables},
        {name: str(tmp_path / f"{name}.csv") for name in tables},
    ]
    for form in forms:
        same(quick(form, LEFT, id_column="id"), expected)
        assert expected.predict(form).tolist() == expected.predict(tables).tolist()
    with pytest.raises(DataError, match=says("'bank'", "'telco'", "id_column")):
        quick(forms[1], LEFT)


# What comes back


def test_predictions_come_under_the_callers_own_index() -> None:
    """X.assign(pred=...) was all NaN, because ids came back as text."""
    result = quick(of_one_table(), TABLE[LEFT])
    table = TABLE.sample(frac=1, random_state=3)
    predicted = table.assign(pred=result.predict({"bank": table[BANK], "telco": table[TELCO]}))
    assert predicted["pred"].notna().all()
    dates = pd.date_range("2024-01-01", periods=NUM_SAMPLES, name="day")
    by_day = {name: block.set_axis(dates) for name, block in of_one_table().items()}
    assert result.predict_proba(by_day).index.equals(dates)
    assert result.answer(by_day).index.equals(dates)


def test_arrays_that_fit_takes_predict_takes() -> None:
    arrays: dict[str, Any] = {"bank": TABLE[BANK].to_numpy(), "telco": TABLE[["calls"]].to_numpy()}
    labels = TABLE[LEFT].to_numpy()
    result = quick(arrays, labels, ids=IDS)
    found = result.predict(arrays, ids=IDS)
    assert found.index.tolist() == IDS.tolist()
    assert result.evaluate(arrays, labels, ids=IDS)["accuracy"] == (found == labels).mean()
    assert result.predict(arrays, ids="row order").tolist() == found.tolist()
    tensors = {name: torch.tensor(item) for name, item in arrays.items()}
    assert result.predict(tensors, ids=IDS).tolist() == found.tolist()
    with pytest.raises(DataError, match=says("'bank'", "array", "ids")):
        result.predict(arrays)
    images = np.random.default_rng(0).normal(size=(NUM_SAMPLES, 1, 8, 8))
    cnn = {"party": {"bank": {"encoder": {"kind": "cnn", "channels": [2, 2], "embedding": 4}}}}
    seen = quick({"bank": images}, labels, ids="row order", settings=cnn)
    assert len(seen.predict({"bank": images[:5]}, ids="row order")) == 5


# What columns mean


def with_column(values: Any) -> dict[str, pd.DataFrame]:
    table = TABLE.assign(extra=values)
    return {"bank": table[[*BANK, "extra"]], "telco": table[TELCO]}


def widths(result: Result) -> int:
    return int(weights(result._federation)["bank.encoder.hidden0.weight"].shape[1])


NUMBERS = np.random.default_rng(8).normal(100, 20, NUM_SAMPLES).round(2)


@pytest.mark.parametrize(
    "values",
    [
        pd.Series(NUMBERS, dtype=object),
        pd.Series([Decimal(str(item)) for item in NUMBERS]),
        pd.Series(NUMBERS, dtype=object).where(NUMBERS < 999, None),
        pd.Series(pa.array(NUMBERS), dtype=pd.ArrowDtype(pa.float64())),
        pd.Series(
            pa.array([Decimal(str(item)) for item in NUMBERS]),
            dtype=pd.ArrowDtype(pa.decimal128(9, 2)),
        ),
    ],
    ids=["objects", "decimals", "object", "arrow", "arrow decimals"],
)
def test_numbers_of_any_type_are_numbers(values: Any) -> None:
    same(quick(with_column(values), TABLE[LEFT]), quick(with_column(NUMBERS), TABLE[LEFT]))


DAYS = pd.date_range("2023-11-01", periods=NUM_SAMPLES, freq="11h")


@pytest.mark.parametrize(
    "values",
    [
        DAYS,
        DAYS.tz_localize("UTC").tz_convert("Asia/Tokyo"),
        DAYS.strftime("%Y-%m-%d %H:%M:%S"),
        pd.Series(list(DAYS.to_pydatetime()), dtype=object),
        pd.Series(pa.array(DAYS), dtype=pd.ArrowDtype(pa.timestamp("ns"))),
    ],
    ids=["dates", "zone", "iso text", "objects", "arrow"],
)
def test_dates_are_days(values: Any) -> None:
    days = (DAYS - pd.Timestamp(0)) / pd.Timedelta(days=1)
    result = quick(with_column(values), TABLE[LEFT])
    same(result, quick(with_column(days.to_numpy()), TABLE[LEFT]))
    assert widths(result) == 3
    with pytest.raises(DataError, match=says("'extra'", "dates in training")):
        result.predict(with_column(NUMBERS))


def number_texts(pattern: str) -> list[str]:
    return [pattern.format(item).replace(".", ",") for item in NUMBERS]


@pytest.mark.parametrize(
    ("values", "telling"),
    [
        (number_texts("{:.2f}"), ["numbers as text", 'csv.decimal = ","']),
        ([f"{item:.2f}" for item in NUMBERS], ["numbers as text", "turn it into numbers"]),
        ([f"{item:.2f} €" for item in NUMBERS], ["numbers with a unit"]),
        ([f"${item:.2f}" for item in NUMBERS], ["numbers with a unit"]),
        ([*map(str, NUMBERS[:-2]), "n.b.", "n.b."], ["numbers but for 2", "row 58", "csv.missing"]),
        (DAYS.strftime("%d.%m.%Y"), ["dates as text", "csv.dates"]),
        ([f"Smith {number}" for number in range(NUM_SAMPLES)], ["different text in 60 of 60 rows"]),
        ([[1, 2]] * NUM_SAMPLES, ["'extra'", "type list"]),
        ([{"a": 1}] * NUM_SAMPLES, ["'extra'", "type dict"]),
        ([1, "a"] * (NUM_SAMPLES // 2), ["texts and numbers", "categorical_columns"]),
        ([b"a", b"b"] * (NUM_SAMPLES // 2), ["type bytes"]),
        ([1j] * NUM_SAMPLES, ["complex"]),
    ],
    ids=[
        "comma",
        "text",
        "euro",
        "dollar",
        "odd",
        "dates",
        "names",
        "lists",
        "dicts",
        "mixed",
        "bytes",
        "complex",
    ],
)
def test_columns_that_would_silently_mislead(values: Any, telling: list[str]) -> None:
    with pytest.raises(DataError, match=says("'bank'", "'extra'")) as caught:
        quick(with_column(values), TABLE[LEFT])
    assert [item for item in telling if item not in str(caught.value)] == [], caught.value
    assert "Smith" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        ["01", "02", "30"] * 20,
        ["1", "2", "3"] * 20,
        ["3 rooms", "4 rooms"] * 30,
        ["A1", "A2", "B7"] * 20,
    ],
    ids=["codes", "few", "two", "letters"],
)
def test_texts_that_are_categories(values: list[str]) -> None:
    assert widths(quick(with_column(values), TABLE[LEFT])) == 2 + len(set(values))


def test_categories_that_look_like_numbers_may_be_named() -> None:
    settings = {"party": {"bank": {"prepare": {"categorical_columns": ["extra"]}}}}
    result = quick(
        with_column([f"{item:.0f},5" for item in NUMBERS]), TABLE[LEFT], settings=settings
    )
    assert widths(result) > 20


def test_columns_named_by_numbers() -> None:
    """10 was read as the eleventh column."""
    table = TABLE[[*BANK, "calls", "sms"]].set_axis([10, 3, 2, 7], axis=1)
    parties = {"bank": [10, 2], "telco": [3, 7]}
    model = VerticalClassifier(parties=parties, label_holder="bank", epochs=1, random_state=0)
    model.fit(table, TABLE[LEFT])
    assert model.parties_ == {"bank": ["x0", "x2"], "telco": ["x1", "x3"]}
    turned = model.predict_proba(table[[7, 2, 3, 10]])
    np.testing.assert_array_equal(turned, model.predict_proba(table))
    with pytest.raises(ConfigError, match=says("parties.bank", "no column 0", [10, 3, 2, 7])):
        VerticalClassifier(parties={"bank": [0, 1]}).fit(table, TABLE[LEFT])
    with pytest.raises(DataError, match=says("int and str")):
        VerticalClassifier().fit(table.rename(columns={3: "a"}), TABLE[LEFT])
    columns = {"party": {"bank": {"columns": ["10"]}}}
    blocks = {"bank": table[[10, 2]], "telco": table[[3, 7]]}
    assert widths(quick(blocks, TABLE[LEFT], settings=columns)) == 1


@pytest.mark.parametrize(
    ("blocks", "labels", "telling"),
    [
        ({1: TABLE[BANK]}, TABLE[LEFT], "party name 1"),
        ({"p": TABLE[BANK], "P": TABLE[TELCO]}, TABLE[LEFT], "capital letters only"),
        ({"bank": [1, 2, 3]}, TABLE[LEFT], "got list"),
        ([TABLE], TABLE[LEFT], "by the party's name"),
        ({"bank": TABLE[BANK].set_index(["age", "pay"])}, TABLE[LEFT], "2 levels of its index"),
        ({"bank": pd.concat({"a": TABLE[BANK]}, axis=1)}, TABLE[LEFT], "2 levels of its columns"),
        ({"bank": TABLE[BANK]}, pd.Series(DAYS, index=TABLE.index), "datetime64"),
        ({"bank": TABLE[BANK]}, [dt.time(1)] * NUM_SAMPLES, "no ids"),
        ({"bank": TABLE[BANK]}, None, "labels: missing"),
        ({"bank": TABLE[BANK]}, TABLE[BANK], "a table of 2 columns"),
        ({"bank": np.array([["a"]] * NUM_SAMPLES)}, TABLE[LEFT], "expected numbers"),
    ],
    ids=str,
)
def test_what_can_not_be_used_is_said(blocks: Any, labels: Any, telling: str) -> None:
    with pytest.raises(ColonnadeError) as caught:
        quick(blocks, labels)
    assert telling in str(caught.value)


def test_a_party_may_be_named_by_a_digit(tmp_path: Path) -> None:
    blocks = {"1": TABLE[BANK], "2": TABLE[TELCO]}
    result = quick(blocks, TABLE[LEFT], label_holder="1")
    loaded = Result.load(result.save(tmp_path / "model"))
    pd.testing.assert_series_equal(loaded.predict(blocks), result.predict(blocks))
