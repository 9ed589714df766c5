"""Data sets that come with scikit-learn: nothing to fetch, ready everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from colonnade.data.blocks import Labels
from colonnade.data.datasets.description import (
    Dataset,
    DatasetEntry,
    assemble,
    cut_table,
    numbered_ids,
)

__all__ = ["ENTRIES"]


def load_digits(entry: DatasetEntry, directory: Path) -> Dataset:
    """Rows 0-2, 3-4 and 5-7 of the 8 x 8 image as flat columns.

    Three pixels that are blank in every image are left out: row 0 column 0, row 4 columns 0 and 7.
    """
    from sklearn import datasets

    found = datasets.load_digits()
    names = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
    table = pd.DataFrame(found.data, columns=names)
    table = table.drop(columns=["pixel_0_0", "pixel_4_0", "pixel_4_7"])
    rows = {"top": "012", "middle": "34", "bottom": "567"}
    columns = {
        party: [name for name in table.columns if name.split("_")[1] in wanted]
        for party, wanted in rows.items()
    }
    ids = numbered_ids("digits", len(table))
    labels = Labels(ids=ids, values=found.target.astype(np.int64), name="digit")
    return assemble(entry, cut_table(table, ids, columns), labels, classes=list("0123456789"))


def load_breast_cancer(entry: DatasetEntry, directory: Path) -> Dataset:
    """Ten measures of cell nuclei: their means, the errors of these, and the worst values."""
    from sklearn import datasets

    found = datasets.load_breast_cancer(as_frame=True)
    table = found.data
    columns = {
        "clinic": [name for name in table.columns if name.startswith("mean ")],
        "laboratory": [name for name in table.columns if name.endswith(" error")],
        "pathology": [name for name in table.columns if name.startswith("worst ")],
    }
    ids = numbered_ids("breast-cancer", len(table))
    labels = Labels(ids=ids, values=found.target.to_numpy(np.int64), name="diagnosis")
    classes = ("malignant", "benign")
    return assemble(entry, cut_table(table, ids, columns), labels, classes=classes)


def load_wine(entry: DatasetEntry, directory: Path) -> Dataset:
    """Thirteen chemical measures of wines from three cultivars."""
    from sklearn import datasets

    found = datasets.load_wine(as_frame=True)
    columns = {
        "winery": ["alcohol", "malic_acid", "ash", "alcalinity_of_ash", "magnesium"],
        "laboratory": [
            "total_phenols",
            "flavanoids",
            "nonflavanoid_phenols",
            "proanthocyanins",
        ],
        "spectrometry": [
            "color_intensity",
            "hue",
            "od280/od315_of_diluted_wines",
            "proline",
        ],
    }
    ids = numbered_ids("wine", len(found.data))
    labels = Labels(ids=ids, values=found.target.to_numpy(np.int64), name="cultivar")
    classes = [str(name) for name in found.target_names]
    return assemble(entry, cut_table(found.data, ids, columns), labels, classes=classes)


def load_diabetes(entry: DatasetEntry, directory: Path) -> Dataset:
    """Progression of diabetes after a year; columns in their own units, not the scaled ones."""
    from sklearn import datasets

    found = datasets.load_diabetes(as_frame=True, scaled=False)
    columns = {
        "clinic": ["age", "sex", "bmi", "bp"],
        "laboratory": ["s1", "s2", "s3", "s4", "s5", "s6"],
    }
    ids = numbered_ids("diabetes", len(found.data))
    labels = Labels(ids=ids, values=found.target.to_numpy(np.float64), name="progression")
    return assemble(entry, cut_table(found.data, ids, columns), labels)


ENTRIES = (
    DatasetEntry(
        name="digits",
        summary="Handwritten digits, 8 x 8, cut into bands of rows",
        task="multiclass",
        parties=("top", "middle", "bottom"),
        label_holder="top",
        num_samples=1797,
        source="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, "
        "CC BY 4.0; inside scikit-learn",
        load=load_digits,
    ),
    DatasetEntry(
        name="breast_cancer",
        summary="Wisconsin breast cancer: means, errors and worst values of cell measures",
        task="binary",
        parties=("clinic", "laboratory", "pathology"),
        label_holder="clinic",
        num_samples=569,
        source="Wolberg, Mangasarian, Street, Breast Cancer Wisconsin (Diagnostic), UCI, "
        "CC BY 4.0; inside scikit-learn",
        load=load_breast_cancer,
    ),
    DatasetEntry(
        name="wine",
        summary="Which of three cultivars a wine is from, by its chemistry",
        task="multiclass",
        parties=("winery", "laboratory", "spectrometry"),
        label_holder="winery",
        num_samples=178,
        source="Aeberhard and Forina, Wine, UCI, CC BY 4.0; inside scikit-learn",
        load=load_wine,
    ),
    DatasetEntry(
        name="diabetes",
        summary="Progression of diabetes after a year, from clinic and blood values",
        task="regression",
        parties=("clinic", "laboratory"),
        label_holder="clinic",
        num_samples=442,
        source="Efron, Hastie, Johnstone, Tibshirani, Least Angle Regression (2004); "
        "inside scikit-learn",
        load=load_diabetes,
    ),
)
