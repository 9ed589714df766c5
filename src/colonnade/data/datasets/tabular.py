"""Data sets from tables: credit card default, census income, digits in six views, FATE's pairs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from colonnade.core.errors import DataError
from colonnade.data.blocks import Block, Labels, read_block
from colonnade.data.datasets.description import (
    Dataset,
    DatasetEntry,
    assemble,
    cut_table,
    numbered_ids,
    words,
)
from colonnade.data.label_columns import read_labels

__all__ = ["ENTRIES"]

CREDIT_COLUMNS = {
    "bank": ("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"),
    "history": ("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"),
    "statements": tuple(f"BILL_AMT{month}" for month in range(1, 7)),
    "payments": tuple(f"PAY_AMT{month}" for month in range(1, 7)),
}

ADULT_COLUMNS = words("""
    age workclass fnlwgt education education-num marital-status occupation relationship race sex
    capital-gain capital-loss hours-per-week native-country
""")
ADULT_DEMOGRAPHICS = words("age fnlwgt marital-status relationship race sex native-country")

MFEAT_VIEWS = {
    "profiles": "fac",
    "fourier": "fou",
    "karhunen_loeve": "kar",
    "morphology": "mor",
    "pixels": "pix",
    "zernike": "zer",
}


def load_credit_default(entry: DatasetEntry, directory: Path) -> Dataset:
    """Default next month of 30000 card holders in Taiwan, 2005.

    The bank has the columns of contract and person, and the labels; the others have the repayment
    status, the bill and the payment of six months. Coded columns (SEX, EDUCATION, MARRIAGE, PAY_*)
    stay whole numbers, undocumented codes included. No value is missing in the file.
    """
    table = pd.read_csv(directory / entry.paths[0], dtype={"ID": str})
    label = "default.payment.next.month"
    ids = table["ID"].to_numpy(object)
    labels = Labels(ids=ids, values=table[label].to_numpy(np.int64), name=label)
    blocks = cut_table(table, ids, CREDIT_COLUMNS)
    return assemble(entry, blocks, labels, classes=("no default", "default"))


def load_adult(entry: DatasetEntry, directory: Path) -> Dataset:
    """Income above 50000 dollars a year; the official test file is the test part.

    An unknown workclass, occupation or country is a category of its own, ``?``.
    """
    parts = []
    for path, part, skip in zip(entry.paths, ("train", "test"), (0, 1), strict=True):
        rows = pd.read_csv(
            directory / path,
            names=[*ADULT_COLUMNS, "income"],
            skiprows=skip,
            skipinitialspace=True,
            keep_default_na=False,
        )
        parts.append(rows.assign(id=numbered_ids(f"adult-{part}", len(rows))))
    table = pd.concat(parts, ignore_index=True)
    ids = table["id"].to_numpy(object)
    rich = table["income"].str.startswith(">50K").to_numpy(np.int64)
    work = [name for name in ADULT_COLUMNS if name not in ADULT_DEMOGRAPHICS]
    return assemble(
        entry,
        cut_table(table, ids, {"demographics": ADULT_DEMOGRAPHICS, "work": work}),
        Labels(ids=ids, values=rich, name="income"),
        test_ids=ids[len(parts[0]) :],
        classes=("<=50K", ">50K"),
        column_order=ADULT_COLUMNS,
    )


def load_mfeat(entry: DatasetEntry, directory: Path) -> Dataset:
    """Six descriptions of the same 2000 digits, a party for each; rows are in order of class."""
    views, digits = {}, []
    for party, view in MFEAT_VIEWS.items():
        values = np.loadtxt(directory / f"mfeat/mfeat-{view}.csv.gz", delimiter=",", skiprows=1)
        names = [f"{view}_{number:03d}" for number in range(values.shape[1] - 1)]
        views[party] = pd.DataFrame(values[:, :-1], columns=names)
        digits.append(values[:, -1].astype(np.int64))
    if any(not np.array_equal(digits[0], other) for other in digits[1:]):
        raise DataError("data set 'mfeat': the six files disagree on the class of some rows")
    ids = numbered_ids("mfeat", len(digits[0]))
    blocks = {
        party: cut_table(table, ids, {party: list(table.columns)})[party]
        for party, table in views.items()
    }
    labels = Labels(ids=ids, values=digits[0], name="digit")
    return assemble(entry, blocks, labels, classes=list("0123456789"))


def load_pair(entry: DatasetEntry, directory: Path, *, id_column: str, label: str) -> Dataset:
    """Two ready blocks with ids, one file each; the first file has the labels.

    FATE's files have empty cells where the original has 0; these are filled with 0. A column that
    is empty throughout is left out (x2 of ionosphere).
    """
    blocks: dict[str, Block] = {}
    for party, path in zip(entry.parties, entry.paths, strict=True):
        block = read_block(party, directory / path, id_column=id_column)
        assert isinstance(block.values, pd.DataFrame)
        table = block.values.drop(columns=label, errors="ignore").dropna(axis=1, how="all")
        blocks |= cut_table(table.fillna(0.0), block.ids, {party: list(table.columns)})
    labels = read_labels(directory / entry.paths[0], id_column=id_column, column=label)
    return assemble(entry, blocks, labels, classes=("0", "1"))


ENTRIES = (
    DatasetEntry(
        name="credit_default",
        summary="Default of credit card holders: contract, history, bills, payments",
        task="binary",
        parties=tuple(CREDIT_COLUMNS),
        label_holder="bank",
        num_samples=30000,
        source="Yeh, Default of Credit Card Clients, UCI, CC BY 4.0",
        paths=("credit_default/UCI_Credit_Card.csv.gz",),
        load=load_credit_default,
    ),
    DatasetEntry(
        name="credit_fate",
        summary="The same card holders, standardised and split in two as FATE's examples do",
        task="binary",
        parties=("card_issuer", "credit_bureau"),
        label_holder="card_issuer",
        num_samples=30000,
        source="Yeh, Default of Credit Card Clients, UCI, CC BY 4.0; "
        "split of the FATE project, Apache-2.0",
        paths=(
            "credit_default/default_credit_hetero_guest.csv.gz",
            "credit_default/default_credit_hetero_host.csv.gz",
        ),
        load=partial(load_pair, id_column="id", label="y"),
    ),
    DatasetEntry(
        name="adult",
        summary="Census income above 50000 dollars, from demographics and work",
        task="binary",
        parties=("demographics", "work"),
        label_holder="work",
        num_samples=48842,
        source="Kohavi and Becker, Adult, UCI, CC BY 4.0",
        paths=("adult/adult.data.gz", "adult/adult.test.gz"),
        load=load_adult,
    ),
    DatasetEntry(
        name="mfeat",
        summary="Handwritten digits described in six ways, a party for each",
        task="multiclass",
        parties=tuple(MFEAT_VIEWS),
        label_holder="pixels",
        num_samples=2000,
        source="Duin, Multiple Features, UCI, CC BY 4.0",
        paths=tuple(f"mfeat/mfeat-{view}.csv.gz" for view in MFEAT_VIEWS.values()),
        load=load_mfeat,
    ),
    DatasetEntry(
        name="breast_hetero",
        summary="Wisconsin breast cancer, standardised and split in two by FATE",
        task="binary",
        parties=("clinic", "laboratory"),
        label_holder="clinic",
        num_samples=569,
        source="Wolberg, Mangasarian, Street, UCI, CC BY 4.0; "
        "split of the FATE project, Apache-2.0",
        paths=(
            "fate_vfl_splits/breast_hetero_guest.csv",
            "fate_vfl_splits/breast_hetero_host.csv",
        ),
        load=partial(load_pair, id_column="id", label="y"),
    ),
    DatasetEntry(
        name="ionosphere_hetero",
        summary="Radar returns from the ionosphere, split in two by FATE",
        task="binary",
        parties=("early_pulses", "late_pulses"),
        label_holder="early_pulses",
        num_samples=351,
        source="Sigillito, Wing, Hutton, Baker, Ionosphere, UCI, CC BY 4.0; "
        "split of the FATE project, Apache-2.0",
        paths=(
            "fate_vfl_splits/ionosphere_scale_hetero_guest.csv",
            "fate_vfl_splits/ionosphere_scale_hetero_host.csv",
        ),
        load=partial(load_pair, id_column="sid", label="label"),
    ),
)
