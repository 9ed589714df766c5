"""Parkinson's disease from the voice: two data sets, split by families of speech features."""

from __future__ import annotations

from itertools import pairwise
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
    words,
)

__all__ = ["ENTRIES"]

PARKINSONS_COLUMNS = {
    "pitch": words("""
        MDVP:Fo(Hz) MDVP:Fhi(Hz) MDVP:Flo(Hz) MDVP:Jitter MDVP:Jitter(Abs) MDVP:RAP MDVP:PPQ
        Jitter:DDP
    """),
    "loudness": words("""
        MDVP:Shimmer MDVP:Shimmer(dB) Shimmer:APQ3 Shimmer:APQ5 MDVP:APQ Shimmer:DDA NHR HNR
    """),
    "dynamics": ("RPDE", "DFA", "spread1", "spread2", "D2", "PPE"),
}

# First column of each family of the speech set, in the order of the file.
SPEECH_FAMILIES = {
    "clinic": "gender",
    "vocal_fold": "GQ_prc5_95",
    "cepstrum": "mean_Log_energy",
    "wavelet": "Ea",
    "tunable_wavelet": "tqwt_energy_dec_1",
}


def load_parkinsons(entry: DatasetEntry, directory: Path) -> Dataset:
    """195 recordings of 32 people; the test part takes every fourth person, of either class.

    A person has six or seven similar recordings: a split by recording would put the same voice into
    both parts and overstate the quality. The test part has two of the eight healthy people and six
    of the 24 with the disease.
    """
    table = pd.read_csv(directory / entry.paths[0])
    ids = table["name"].to_numpy(object)
    subjects = table["name"].str.rsplit("_", n=1).str[0]
    status = table.groupby(subjects)["status"].first().sort_index()
    set_aside = [name for value in (0, 1) for name in status.index[status == value][3::4]]
    labels = Labels(ids=ids, values=table["status"].to_numpy(np.int64), name="status")
    return assemble(
        entry,
        cut_table(table, ids, PARKINSONS_COLUMNS),
        labels,
        test_ids=ids[subjects.isin(set_aside).to_numpy()],
        classes=("healthy", "parkinson"),
    )


def load_pd_speech(entry: DatasetEntry, directory: Path) -> Dataset:
    """252 people, the mean over three recordings of each; 751 features in five families."""
    table = pd.read_csv(directory / entry.paths[0])
    features = list(table.columns.drop("class"))
    edges = [features.index(first) for first in SPEECH_FAMILIES.values()] + [len(features)]
    columns = {
        party: features[start:end]
        for party, (start, end) in zip(SPEECH_FAMILIES, pairwise(edges), strict=True)
    }
    ids = numbered_ids("pd-speech", len(table))
    ill = (table["class"] == "PD").to_numpy(np.int64)
    labels = Labels(ids=ids, values=ill, name="class")
    blocks = cut_table(table, ids, columns)
    return assemble(entry, blocks, labels, classes=("control", "PD"))


ENTRIES = (
    DatasetEntry(
        name="parkinsons",
        summary="Parkinson's disease from voice recordings; people of the test part are apart",
        task="binary",
        parties=tuple(PARKINSONS_COLUMNS),
        label_holder="dynamics",
        num_samples=195,
        source="Little et al. (2007), Parkinsons, UCI, CC BY 4.0",
        paths=("parkinsons/parkinsons.data",),
        load=load_parkinsons,
    ),
    DatasetEntry(
        name="pd_speech",
        summary="Parkinson's disease from 751 speech features, a row for each person",
        task="binary",
        parties=tuple(SPEECH_FAMILIES),
        label_holder="clinic",
        num_samples=252,
        source="Sakar et al. (2019), Parkinson's Disease Classification, UCI, CC BY 4.0; "
        "means over each person's recordings from the modeldata package, MIT",
        paths=("parkinsons/pd_speech_252.csv.gz",),
        load=load_pd_speech,
    ),
)
