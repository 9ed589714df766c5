"""Death in hospital, from the MIMIC-III demo: 129 admissions of 100 patients.

What a department knows in the first 48 hours is used, to predict and not to look back. Columns
that tell of death or of the end of the stay are never read (DEATHTIME, DISCHTIME,
DISCHARGE_LOCATION, all DOD*, EXPIRE_FLAG; diagnoses, which are coded at discharge).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from colonnade.data.blocks import Labels, make_block
from colonnade.data.datasets.description import Dataset, DatasetEntry, assemble, words

__all__ = ["ENTRIES"]

TABLES = words("""
    ADMISSIONS PATIENTS SERVICES ICUSTAYS LABEVENTS_6col D_LABITEMS PRESCRIPTIONS PROCEDURES_ICD
""")
HOURS = 48
FREQUENT = 0.5
"""Share of admissions that need a laboratory item for it to become a column."""
PRESCRIBED = 0.15
"""The same for a drug, and for a group of procedures half of it."""
OVER_89 = 90
"""Ages above 89 are hidden by the provider, who moves the birth 300 years back."""

ADMISSION_CATEGORIES = words("""
    ADMISSION_TYPE ADMISSION_LOCATION INSURANCE LANGUAGE RELIGION MARITAL_STATUS ETHNICITY
""")


def load_mimic3_demo(entry: DatasetEntry, directory: Path) -> Dataset:
    """Four departments; the admissions office has the labels.

    Unknown categories become "UNKNOWN". A laboratory item that was not measured in time gets the
    median of the other admissions, and its count is 0. Drugs, procedures: 0 where there were none.
    """
    tables = {
        # Codes are text: 0331 is not 331.
        name: pd.read_csv(directory / path, dtype={"ICD9_CODE": str}, low_memory=False)
        for name, path in zip(TABLES, entry.paths, strict=True)
    }
    admissions = tables["ADMISSIONS"].set_index("HADM_ID")
    admitted = admission_times(admissions, tables["SERVICES"])
    departments = {
        "admissions": admission_columns(admissions, tables, admitted),
        "laboratory": laboratory_columns(tables, admitted),
        "pharmacy": pharmacy_columns(tables["PRESCRIPTIONS"], admitted),
        "procedures": procedure_columns(tables["PROCEDURES_ICD"], admitted),
    }
    ids = np.array([f"admission-{number}" for number in admissions.index], object)
    blocks = {
        party: make_block(party, table.rename_axis(columns=None), ids=ids)
        for party, table in departments.items()
    }
    died = admissions["HOSPITAL_EXPIRE_FLAG"].to_numpy(np.int64)
    labels = Labels(ids=ids, values=died, name="HOSPITAL_EXPIRE_FLAG")
    return assemble(entry, blocks, labels, classes=("survived", "died"))


def admission_times(admissions: pd.DataFrame, services: pd.DataFrame) -> pd.Series:
    """The time of each admission; two-digit years of the file get their century back.

    Dates are moved to the years 2100 to 2210. The first service starts with the admission and has
    its year in full, so the century is the one that brings both years together.
    """
    first = pd.to_datetime(services["TRANSFERTIME"]).groupby(services["HADM_ID"]).min()
    year_of_service = first.reindex(admissions.index).dt.year
    fields = admissions["ADMITTIME"].str.extract(r"(\d+)/(\d+)/(\d+) (\d+):(\d+)").astype(int)
    fields.columns = pd.Index(["month", "day", "year", "hour", "minute"])
    fields["year"] = year_of_service + (fields["year"] - year_of_service + 50) % 100 - 50
    return pd.Series(pd.to_datetime(fields))


def admission_columns(
    admissions: pd.DataFrame, tables: dict[str, pd.DataFrame], admitted: pd.Series
) -> pd.DataFrame:
    """The person, the way in, the first service and the first intensive care unit."""
    patients = tables["PATIENTS"].set_index("SUBJECT_ID").loc[admissions["SUBJECT_ID"]]
    # Years have two or four digits; without centuries every age is below 100.
    written = patients["DOB"].str.extract(r"/(\d+) |^(\d+)-")
    born = written[0].fillna(written[1]).astype(int).to_numpy() % 100
    age = (admitted.dt.year.to_numpy() - born) % 100
    services = tables["SERVICES"].sort_values("TRANSFERTIME").groupby("HADM_ID")
    stays = tables["ICUSTAYS"].sort_values("INTIME").groupby("HADM_ID")
    columns = admissions[list(ADMISSION_CATEGORIES)].fillna("UNKNOWN").astype(str)
    columns["SERVICE"] = services["CURR_SERVICE"].first().reindex(admissions.index)
    columns["CARE_UNIT"] = stays["FIRST_CAREUNIT"].first().reindex(admissions.index)
    columns["GENDER"] = patients["GENDER"].to_numpy()
    # The demo has no children: a small age comes from a birth that was moved by 300 years.
    columns["AGE"] = np.where(age < 15, OVER_89, age)
    columns["VIA_EMERGENCY"] = admissions["EDREGTIME"].notna().astype(int)
    columns["HOUR"] = admitted.dt.hour
    return columns


def laboratory_columns(tables: dict[str, pd.DataFrame], admitted: pd.Series) -> pd.DataFrame:
    """Mean and number of results of each frequent item, and how many were out of range."""
    results = tables["LABEVENTS_6col"].dropna(subset=["HADM_ID"])
    hours = hours_since(admitted, results["HADM_ID"], results["CHARTTIME"])
    results = results[hours <= HOURS]
    abnormal = results["FLAG"].eq("abnormal").groupby(results["HADM_ID"]).sum()
    values = pd.to_numeric(results["VALUE"], errors="coerce")
    results = results.assign(number=values).dropna(subset=["number"])
    by_item = results.groupby(["HADM_ID", "ITEMID"])["number"]
    means = by_item.mean().unstack().reindex(admitted.index)
    counts = by_item.size().unstack(fill_value=0).reindex(admitted.index, fill_value=0)
    frequent = means.columns[means.notna().mean() >= FREQUENT]
    items = tables["D_LABITEMS"].set_index("ITEMID")
    names = {item: f"{items['LABEL'][item]} ({items['FLUID'][item]})" for item in frequent}
    means, counts = means[frequent], counts[frequent]
    columns = means.fillna(means.median()).rename(columns=lambda item: f"{names[item]} mean")
    columns = columns.join(counts.rename(columns=lambda item: f"{names[item]} count"))
    columns["abnormal count"] = abnormal.reindex(admitted.index, fill_value=0)
    return columns


def pharmacy_columns(prescriptions: pd.DataFrame, admitted: pd.Series) -> pd.DataFrame:
    """Orders of each frequent drug (yes or no), and the numbers of orders and drugs.

    Orders have a date and no time, so those of the day of admission and the next are taken.
    """
    midnight = admitted.dt.normalize()
    hours = hours_since(midnight, prescriptions["HADM_ID"], prescriptions["STARTDATE"])
    orders = prescriptions[hours < HOURS]
    by_drug = orders.groupby(["HADM_ID", "DRUG"]).size().unstack(fill_value=0)
    by_drug = by_drug.reindex(admitted.index, fill_value=0)
    frequent = by_drug.columns[(by_drug > 0).mean() >= PRESCRIBED]
    columns = (by_drug[frequent] > 0).astype(int)
    columns["orders"] = by_drug.sum(axis=1)
    columns["drugs"] = (by_drug > 0).sum(axis=1)
    return columns


def procedure_columns(procedures: pd.DataFrame, admitted: pd.Series) -> pd.DataFrame:
    """The number of procedures of each frequent group (first two digits of ICD-9).

    Procedure codes have no time: these alone cover the whole stay.
    """
    groups = procedures["ICD9_CODE"].str[:2]
    by_group = procedures.groupby(["HADM_ID", groups]).size().unstack(fill_value=0)
    by_group = by_group.reindex(admitted.index, fill_value=0)
    frequent = by_group.columns[(by_group > 0).mean() >= PRESCRIBED / 2]
    columns = by_group[frequent].rename(columns=lambda group: f"group {group}")
    columns["procedures"] = by_group.sum(axis=1)
    return columns


def hours_since(start: pd.Series, admission: pd.Series, time: pd.Series) -> pd.Series:
    """Hours from the start of each row's admission to its time; missing where there is none."""
    begun = admission.map(start)
    return (pd.to_datetime(time) - begun).dt.total_seconds() / 3600


ENTRIES = (
    DatasetEntry(
        name="mimic3_demo",
        summary="Death in hospital from the first two days, as four departments know them",
        task="binary",
        parties=("admissions", "laboratory", "pharmacy", "procedures"),
        label_holder="admissions",
        num_samples=129,
        source="Johnson, Pollard, Mark, MIMIC-III Clinical Database Demo, PhysioNet, ODbL 1.0",
        paths=tuple(f"mimic3_demo/{table}.csv.gz" for table in TABLES),
        load=load_mimic3_demo,
    ),
)
