"""House prices in Ames, Iowa: Kaggle's part, the whole set, and the nine features of a thesis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from colonnade.data.blocks import Labels
from colonnade.data.datasets.description import Dataset, DatasetEntry, assemble, cut_table, words

__all__ = ["ENTRIES"]

HOUSE_COLUMNS = {
    # The land registry: the lot, its location, and the sale with the price.
    "site": words("""
        MSZoning LotFrontage LotArea Street Alley LotShape LandContour Utilities LotConfig
        LandSlope Neighborhood Condition1 Condition2 PavedDrive Fence MiscFeature MiscVal
        MoSold YrSold SaleType SaleCondition
    """),
    # Properties that are visible from outside.
    "building": words("""
        MSSubClass BldgType HouseStyle OverallQual OverallCond YearBuilt YearRemodAdd
        RoofStyle RoofMatl Exterior1st Exterior2nd MasVnrType MasVnrArea ExterQual ExterCond
        Foundation GarageType GarageYrBlt GarageFinish GarageCars GarageArea GarageQual
        GarageCond WoodDeckSF OpenPorchSF EnclosedPorch 3SsnPorch ScreenPorch PoolArea
        PoolQC
    """),
    "interior": words("""
        BsmtQual BsmtCond BsmtExposure BsmtFinType1 BsmtFinSF1 BsmtFinType2 BsmtFinSF2
        BsmtUnfSF TotalBsmtSF Heating HeatingQC CentralAir Electrical 1stFlrSF 2ndFlrSF
        LowQualFinSF GrLivArea BsmtFullBath BsmtHalfBath FullBath HalfBath BedroomAbvGr
        KitchenAbvGr KitchenQual TotRmsAbvGrd Functional Fireplaces FireplaceQu
    """),
}
# Measured or counted; all other columns are categories, also MSSubClass, whose numbers are codes.
NUMERIC_COLUMNS = frozenset(
    words("""
        LotFrontage LotArea MiscVal MoSold YrSold OverallQual OverallCond YearBuilt
        YearRemodAdd MasVnrArea GarageYrBlt GarageCars GarageArea WoodDeckSF OpenPorchSF
        EnclosedPorch 3SsnPorch ScreenPorch PoolArea BsmtFinSF1 BsmtFinSF2 BsmtUnfSF
        TotalBsmtSF 1stFlrSF 2ndFlrSF LowQualFinSF GrLivArea BsmtFullBath BsmtHalfBath
        FullBath HalfBath BedroomAbvGr KitchenAbvGr TotRmsAbvGrd Fireplaces
""")
)
# The thesis lists these in this order and gives two parties 4 and 5 of them.
THESIS_COLUMNS = {
    "surveyor": ("Fireplaces", "1stFlrSF", "OverallQual", "TotRmsAbvGrd"),
    "registry": ("GrLivArea", "LotArea", "GarageArea", "TotalBsmtSF", "BedroomAbvGr"),
}


def read_houses(path: Path) -> pd.DataFrame:
    """Read either table under the Kaggle names, with no cell left empty.

    In a category, "NA" (the house has none) stays as written, and an empty cell becomes "NA". A
    missing GarageYrBlt becomes the year of the house, since 0 would be far from any year; other
    missing numbers (LotFrontage, MasVnrArea, a few basement and garage figures) become 0.
    """
    table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    table.columns = table.columns.str.replace("[ /]", "", regex=True)
    for name in table.columns:
        if name in NUMERIC_COLUMNS:
            table[name] = pd.to_numeric(table[name].mask(table[name].isin(["NA", ""])))
        else:
            table[name] = table[name].str.strip().replace("", "NA")
    table["GarageYrBlt"] = table["GarageYrBlt"].fillna(table["YearBuilt"])
    numbers = sorted(NUMERIC_COLUMNS)
    table[numbers] = table[numbers].fillna(0)
    return table


def load_houses(
    entry: DatasetEntry,
    directory: Path,
    *,
    id_column: str,
    columns: Mapping[str, Sequence[str]],
) -> Dataset:
    """Read the houses with the given columns for each party; the label is the price in dollars."""
    table = read_houses(directory / entry.paths[0])
    ids = table[id_column].to_numpy(object)
    price = table["SalePrice"].astype(np.float64).to_numpy()
    labels = Labels(ids=ids, values=price, name="SalePrice")
    return assemble(entry, cut_table(table, ids, columns), labels)


ENTRIES = (
    DatasetEntry(
        name="house_prices",
        summary="House prices in Ames, the labelled Kaggle part: site, building, interior",
        task="regression",
        parties=tuple(HOUSE_COLUMNS),
        label_holder="site",
        num_samples=1460,
        source="De Cock (2011), Ames Housing, as in Kaggle's House Prices (its rules apply)",
        paths=("house_prices/train.csv.gz",),
        load=partial(load_houses, id_column="Id", columns=HOUSE_COLUMNS),
    ),
    DatasetEntry(
        name="ames",
        summary="All house sales in Ames 2006-2010: site, building, interior",
        task="regression",
        parties=tuple(HOUSE_COLUMNS),
        label_holder="site",
        num_samples=2930,
        source="De Cock (2011), Ames Housing, Journal of Statistics Education",
        paths=("house_prices/AmesHousing.csv.gz",),
        load=partial(load_houses, id_column="PID", columns=HOUSE_COLUMNS),
    ),
    DatasetEntry(
        name="salesprice",
        summary="House prices in Ames from nine features, two parties with 4 and 5 of them",
        task="regression",
        parties=tuple(THESIS_COLUMNS),
        label_holder="surveyor",
        num_samples=2930,
        source="De Cock (2011), Ames Housing, Journal of Statistics Education",
        paths=("house_prices/AmesHousing.csv.gz",),
        load=partial(load_houses, id_column="PID", columns=THESIS_COLUMNS),
    ),
)
