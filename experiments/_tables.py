"""Tables to choose and judge defaults on: columns of several owners, and models on all of them.

A third of the tables is never looked at while defaults are chosen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import colonnade
from colonnade.data.datasets import load_dataset
from colonnade.data.datasets.location import find_data

# Sorted by task and name, every third from the second on is left out.
_BY_TASK = (
    *("CreditCard", "HMDA", "OJ", "attrition", "cells", "credit_data", "email", "lending_club"),
    *("mlc_churn", "wa_churn", "Chile", "hpc_data", "leaf_id_flavia", "Computers", "Wage", "ames"),
    *("car_prices", "concrete", "deliveries", "diamonds"),
)
LEFT_OUT = _BY_TASK[1::3]
TUNED = tuple(name for name in _BY_TASK if name not in LEFT_OUT)
NAMED = (
    *("breast_cancer", "wine", "digits", "diabetes", "credit_default", "adult", "mfeat"),
    *("breast_hetero", "ionosphere_hetero", "parkinsons", "pd_speech", "house_prices"),
    *("salesprice", "video_qoe", "qoe", "mimic3_demo"),
)
# What is measured of each kind of task, on samples that no model has seen.
METRICS = {"binary": "auc", "multiclass": "accuracy", "regression": "r2"}
_NUM_PARTIES = 3
_TEST_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table whose columns have owners; the first owner has the labels, too."""

    task: str
    blocks: Mapping[str, pd.DataFrame]
    labels: pd.Series[Any]
    holder: str

    @property
    def joined(self) -> pd.DataFrame:
        """All columns side by side."""
        return pd.concat(
            [block.add_prefix(f"{name}.") for name, block in self.blocks.items()], axis=1
        )

    def part(self, rows: Any) -> Table:
        """Some of the rows."""
        blocks = {name: block.iloc[rows] for name, block in self.blocks.items()}
        return Table(
            task=self.task, blocks=blocks, labels=self.labels.iloc[rows], holder=self.holder
        )

    def split(self, seed: int, num_rows: int | None) -> tuple[Table, Table]:
        """Training and test rows; of a large table, so many rows drawn at random."""
        chosen = np.arange(len(self.labels))
        if num_rows is not None and len(chosen) > num_rows:
            chosen = np.random.default_rng(seed).permutation(chosen)[:num_rows]
        by = None if self.task == "regression" else self.labels.iloc[chosen]
        train, test = train_test_split(
            chosen, test_size=_TEST_SHARE, random_state=seed, stratify=by
        )
        return self.part(train), self.part(test)


@cache
def table_of(name: str) -> Table:
    """A table by name: the files' columns in order to three parties, or a data set's own split."""
    return _of_file(name) if name in _BY_TASK else _of_dataset(name)


def _of_file(name: str) -> Table:
    root = find_data("tables", ("tables/index.json",), "the collection Rdatasets", None)
    index = json.loads((root / "tables/index.json").read_text(encoding="utf-8"))
    entry = next(item for item in index if item["name"] == name)
    table = pd.read_csv(root / "tables" / entry["file"], index_col="id")
    labels = table.pop(entry["target"])
    columns = np.array_split(np.array(table.columns), _NUM_PARTIES)
    blocks = {f"party_{number}": table[list(own)] for number, own in enumerate(columns, 1)}
    return Table(task=entry["task"], blocks=blocks, labels=labels, holder="party_1")


def _of_dataset(name: str) -> Table:
    loaded = load_dataset(name)
    ids = loaded.labels.ids
    blocks = {}
    for party, block in loaded.blocks.items():
        values = block.values
        own = values if isinstance(values, pd.DataFrame) else pd.DataFrame(values)
        blocks[party] = own.set_axis(block.ids, axis=0).loc[ids].rename(columns=str)
    labels = pd.Series(loaded.labels.values, index=ids, name=loaded.labels.name)
    return Table(task=loaded.task, blocks=blocks, labels=labels, holder=loaded.label_holder)


def ours(
    train: Table,
    test: Table,
    seed: int,
    method: str | Mapping[str, Any],
    settings: Mapping[str, Any],
) -> float:
    """The quality of ``colonnade.fit``; the test rows are apart already, and cells may be empty."""
    given: dict[str, Any] = {"threads": 1, **settings}
    data, defaults = given.get("data", {}), given.get("defaults", {})
    given["data"] = {**data, "split": {**data.get("split", {}), "test": 0.0}}
    given["defaults"] = {**defaults, "prepare": {"missing": "mean", "constant": "drop"}}
    result = colonnade.fit(
        train.blocks,
        train.labels,
        method=method,
        label_holder=train.holder,
        task=train.task,
        seed=seed,
        settings=given,
    )
    return float(result.evaluate(test.blocks, test.labels)[METRICS[train.task]])


def alone(train: Table, test: Table, seed: int, settings: Mapping[str, Any]) -> float:
    """The quality of the label holder's own columns."""
    own = [
        Table(
            task=part.task,
            blocks={part.holder: part.blocks[part.holder]},
            labels=part.labels,
            holder=part.holder,
        )
        for part in (train, test)
    ]
    return ours(*own, seed, "alone", settings)


def _numbers_and_words(table: pd.DataFrame) -> tuple[list[str], list[str]]:
    words = [name for name in table.columns if not pd.api.types.is_numeric_dtype(table[name])]
    return [name for name in table.columns if name not in words], words


def _scaled(table: pd.DataFrame) -> Any:
    numbers, words = _numbers_and_words(table)
    filled = make_pipeline(SimpleImputer(), StandardScaler())
    known = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="missing"),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    )
    return make_column_transformer((filled, numbers), (known, words))


def _as_codes(table: pd.DataFrame) -> Any:
    numbers, words = _numbers_and_words(table)
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return make_column_transformer((codes, words), ("passthrough", numbers))


def joined_model(kind: str, train: Table, test: Table, seed: int) -> float:
    """The quality of a model of scikit-learn, with its defaults, on the joined table."""
    classifies = train.task != "regression"
    rows, new_rows = train.joined, test.joined
    if kind == "boosting":
        make = HistGradientBoostingClassifier if classifies else HistGradientBoostingRegressor
        model = make_pipeline(_as_codes(rows), make(random_state=seed))
    elif kind == "linear":
        last = LogisticRegression(max_iter=2000) if classifies else Ridge()
        model = make_pipeline(_scaled(rows), last)
    elif classifies:
        model = make_pipeline(_scaled(rows), MLPClassifier(random_state=seed, max_iter=300))
    else:
        last = make_pipeline(_scaled(rows), MLPRegressor(random_state=seed, max_iter=300))
        model = TransformedTargetRegressor(last, transformer=StandardScaler())
    model.fit(rows, train.labels)
    if train.task == "binary":
        return float(roc_auc_score(test.labels, model.predict_proba(new_rows)[:, 1]))
    measure = accuracy_score if classifies else r2_score
    return float(measure(test.labels, model.predict(new_rows)))
