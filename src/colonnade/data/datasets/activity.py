"""HAPT: activities of people with a phone at the waist, from accelerometer and gyroscope.

The loader reads the raw signals, cuts the official windows and computes 561 features of each
(``activity_features``). It keeps them in the cache directory. The published matrices are not read.
Features are scaled to -1 ... 1 by the smallest and largest value of the training part; values of
the test part beyond these are clipped.
"""

from __future__ import annotations

import hashlib
import tarfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.core.errors import DataError, StorageError
from colonnade.data.blocks import Labels
from colonnade.data.datasets.activity_features import FEATURE_NAMES, WINDOW, recording_features
from colonnade.data.datasets.description import Dataset, DatasetEntry, assemble, cut_table, words
from colonnade.data.datasets.location import cache_directory
from colonnade.files import writing_atomically

__all__ = ["ENTRIES", "compute_features", "official_windows", "read_labelled_segments"]

Array = np.ndarray[Any, Any]

HOP = 64
FEATURES_VERSION = 1
"""Part of the cached file's name: raise it when any feature is computed differently."""

CLASSES = words(
    "walking,walking upstairs,walking downstairs,sitting,standing,lying,stand to sit,sit to stand,"
    "sit to lie,lie to sit,stand to lie,lie to stand",
    ",",
)
PATHS = words("""
    hapt/RawData_acc.tar.xz hapt/RawData_gyro.tar.xz hapt/labels.txt hapt/y_train.txt
    hapt/y_test.txt hapt/subject_id_train.txt hapt/subject_id_test.txt
""")


def party_of(feature: str) -> str:
    """The party that holds a feature: each sensor has a party for time and one for frequency.

    An angle between a signal and gravity belongs to the signal's sensor. Gravity itself comes from
    the accelerometer, so two columns of the gyroscope need both sensors.
    """
    sensor = "gyro" if "Gyro" in feature else "acc"
    return f"{sensor}_{'frequency' if feature.startswith('f') else 'time'}"


def load_hapt(entry: DatasetEntry, directory: Path) -> Dataset:
    """Twelve activities of 30 people, 21 of them for training; windows of 2.56 seconds."""
    windows = official_windows(directory)
    features = cached_features(directory, windows)
    train = windows["part"].to_numpy() == "train"
    low, high = features[train].min(axis=0), features[train].max(axis=0)
    spread = np.where(high > low, high - low, 1.0)
    scaled = np.clip(2 * (features - low) / spread - 1, -1, 1)
    table = pd.DataFrame(scaled.astype(np.float32), columns=list(FEATURE_NAMES))
    columns = {
        party: [name for name in FEATURE_NAMES if party_of(name) == party]
        for party in entry.parties
    }
    ids = windows["id"].to_numpy(object)
    activity = windows["activity"].to_numpy(np.int64) - 1
    return assemble(
        entry,
        cut_table(table, ids, columns),
        Labels(ids=ids, values=activity, name="activity"),
        test_ids=ids[~train],
        classes=CLASSES,
        column_order=FEATURE_NAMES,
    )


def read_labelled_segments(directory: Path) -> pd.DataFrame:
    """Segments of recordings with one activity, as the provider labelled them."""
    names = ["experiment", "subject", "activity", "start", "end"]
    return pd.read_csv(directory / "hapt/labels.txt", sep=" ", names=names)


def official_windows(directory: Path) -> pd.DataFrame:
    """The official windows in the official order: training rows first, then test rows.

    A segment has every window that lies wholly in it, in steps of half a window. Labels and
    subjects of the windows are checked against the provider's own lists.
    """
    segments = read_labelled_segments(directory)
    rows = [
        (experiment, subject, activity, begin - 1)
        for experiment, subject, activity, start, end in segments.itertuples(index=False)
        for begin in range(start, end - WINDOW + 2, HOP)
    ]
    found = pd.DataFrame(rows, columns=["experiment", "subject", "activity", "begin"])
    parts = []
    for part in ("train", "test"):
        subjects = np.loadtxt(directory / f"hapt/subject_id_{part}.txt", dtype=int)
        activities = np.loadtxt(directory / f"hapt/y_{part}.txt", dtype=int)
        rows_of_part = found[found["subject"].isin(np.unique(subjects))].assign(part=part)
        if not (
            np.array_equal(rows_of_part["activity"], activities)
            and np.array_equal(rows_of_part["subject"], subjects)
        ):
            raise DataError(
                f"data set 'hapt': windows cut from labels.txt differ from y_{part}.txt or "
                f"subject_id_{part}.txt; the files are of different versions, fetch them together"
            )
        parts.append(rows_of_part)
    windows = pd.concat(parts, ignore_index=True)
    windows["id"] = [
        f"hapt-{experiment:02d}-{subject:02d}-{begin:05d}"
        for experiment, subject, begin in zip(
            windows["experiment"], windows["subject"], windows["begin"], strict=True
        )
    ]
    return windows


def cached_features(directory: Path, windows: pd.DataFrame) -> Array:
    """The features of all windows, from the cache, or computed and then cached."""
    kept = cache_directory() / "features" / f"hapt-v{FEATURES_VERSION}-{fingerprint(directory)}.npy"
    if kept.is_file():
        features = np.asarray(np.load(kept, allow_pickle=False))
        if features.shape == (len(windows), len(FEATURE_NAMES)):
            return features
    features = compute_features(directory, windows)
    try:
        with writing_atomically(kept) as file:
            np.save(file, features, allow_pickle=False)
    except StorageError as error:
        warnings.warn(
            f"data set 'hapt': computed features are not kept and will be computed again next "
            f"time ({error}); set COLONNADE_CACHE to a directory for writing",
            stacklevel=2,
        )
    return features


def fingerprint(directory: Path) -> str:
    """A digest that changes with the files that features are computed from."""
    digest = hashlib.sha256((directory / "hapt/labels.txt").read_bytes())
    for path in PATHS[:2]:
        digest.update(str((directory / path).stat().st_size).encode())
    return digest.hexdigest()[:12]


def compute_features(
    directory: Path, windows: pd.DataFrame, experiments: Sequence[int] | None = None
) -> Array:
    """Features of the windows, before scaling, in their order; some recordings only if given."""
    wanted = set(windows["experiment"].unique() if experiments is None else experiments)
    acceleration = read_recordings(directory / PATHS[0], wanted)
    rotation = read_recordings(directory / PATHS[1], wanted)
    chosen = windows[windows["experiment"].isin(wanted)].reset_index(drop=True)
    features = np.empty((len(chosen), len(FEATURE_NAMES)), dtype=np.float32)
    for experiment in sorted(wanted):
        rows = np.flatnonzero(chosen["experiment"] == experiment)
        starts = chosen["begin"].to_numpy()[rows]
        features[rows] = recording_features(acceleration[experiment], rotation[experiment], starts)
    return features


def read_recordings(path: Path, wanted: set[int]) -> dict[int, Array]:
    """Recordings by experiment, (sample, axis), from an archive of ``acc_exp01_user01.txt`` ..."""
    recordings = {}
    with tarfile.open(path) as archive:
        for member in archive:
            stem = Path(member.name).stem
            file = archive.extractfile(member)
            if file is None or "_exp" not in stem:
                continue
            experiment = int(stem.split("_exp")[1][:2])
            if experiment in wanted:
                recordings[experiment] = pd.read_csv(file, sep=" ", header=None).to_numpy(float)
    absent = sorted(wanted - set(recordings))
    if absent:
        raise DataError(f"{path.name}: no recording of experiments {absent}; fetch it again")
    return recordings


ENTRIES = (
    DatasetEntry(
        name="hapt",
        summary="Activities and postural transitions from phone sensors, 561 own features",
        task="multiclass",
        parties=("acc_time", "acc_frequency", "gyro_time", "gyro_frequency"),
        label_holder="acc_time",
        num_samples=10929,
        source="Reyes-Ortiz, Oneto, Samà, Parra, Anguita, HAPT v2.1, UCI; "
        "cite the authors, no commercial use",
        paths=PATHS,
        load=load_hapt,
    ),
)
