"""Named data sets: what the registry promises, what is loaded, and what is said when it is not."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.core.errors import DataError, DatasetNotFound
from colonnade.data.blocks import Block, Labels
from colonnade.data.datasets import (
    DATASETS,
    TRACES,
    Dataset,
    activity,
    cache_directory,
    is_available,
    is_trace_available,
    load_cpu_trace,
    load_dataset,
    repartition,
)
from colonnade.data.datasets.activity_features import (
    AXES,
    FEATURE_NAMES,
    all_features,
    burg,
    recording_features,
)
from colonnade.data.datasets.image_sets import read_idx
from colonnade.data.datasets.location import find_data
from messages import says

Array = np.ndarray[Any, Any]

BUNDLED = [name for name, entry in DATASETS.items() if not entry.needs_files]

# Counts by class (or the mean of the label) as the providers publish them.
PUBLISHED = {
    "digits": [178, 182, 177, 183, 181, 182, 181, 179, 174, 180],
    "breast_cancer": [212, 357],
    "wine": [59, 71, 48],
    "credit_default": [23364, 6636],
    "credit_fate": [23364, 6636],
    "adult": [37155, 11687],
    "mfeat": [200] * 10,
    "breast_hetero": [212, 357],
    "ionosphere_hetero": [126, 225],
    "mnist": [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958],
    "fashion_mnist": [7000] * 10,
    "cifar10": [2477, 2486, 2554, 2508, 2516, 2413, 2529, 2522, 2516, 2479],
    "hapt": [1722, 1544, 1407, 1801, 1979, 1958, 70, 33, 107, 85, 139, 84],
    "parkinsons": [48, 147],
    "pd_speech": [64, 188],
    "mimic3_demo": [89, 40],
}
PUBLISHED_MEANS = {"house_prices": 180921.20, "ames": 180796.06, "video_qoe": 66.17}
TRAIN_COUNTS = {
    "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "cifar10": [1989, 1981, 2042, 2011, 2009, 1925, 2038, 2027, 2012, 1966],
    "adult": [24720, 7841],
}


def loaded(name: str) -> Dataset:
    if not is_available(name):
        pytest.skip(f"the files of '{name}' are not here; set COLONNADE_DATA to run this")
    return load_dataset(name)


@pytest.fixture(scope="module", params=list(DATASETS))
def dataset(request: pytest.FixtureRequest) -> Dataset:
    # One at a time, and each only once: the images are large.
    return loaded(request.param)


# --- every data set -----------------------------------------------------------------------------


def test_the_registry_says_what_is_loaded(dataset: Dataset) -> None:
    entry = DATASETS[dataset.name]
    assert tuple(dataset.blocks) == entry.parties
    assert dataset.label_holder == entry.label_holder
    assert len(dataset.labels.ids) == entry.num_samples
    assert dataset.task == entry.task
    assert dataset.source == entry.source
    assert "\n" not in entry.summary + entry.source


def test_all_parties_hold_the_labelled_samples(dataset: Dataset) -> None:
    ids = dataset.labels.ids
    assert pd.Index(ids).is_unique
    assert all(isinstance(one, str) for one in ids)
    for party, block in dataset.blocks.items():
        assert block.owner == party
        assert len(block.ids) == len(ids)
        assert pd.Index(ids).isin(block.ids).all()


def test_no_cell_is_empty_and_no_column_is_constant(dataset: Dataset) -> None:
    for party, block in dataset.blocks.items():
        values = block.values
        if isinstance(values, pd.DataFrame):
            assert not values.isna().any().any()
            assert np.isfinite(values.select_dtypes("number").to_numpy()).all()
            assert (values.nunique() > 1).all(), (party, values.columns[values.nunique() < 2])
            assert dataset.labels.name not in values.columns
        else:
            assert values.dtype == np.float32
            assert values.min() == 0.0
            assert values.max() == 1.0


def test_labels_are_numbers_from_zero(dataset: Dataset) -> None:
    values = dataset.labels.values
    if dataset.task == "regression":
        assert values.dtype == np.float64
        assert dataset.classes == ()
        return
    assert values.dtype == np.int64
    assert np.unique(values).tolist() == list(range(len(dataset.classes)))
    assert (len(dataset.classes) == 2) == (dataset.task == "binary")


def test_the_labels_are_those_published(dataset: Dataset) -> None:
    values = dataset.labels.values
    if dataset.name in PUBLISHED:
        assert np.bincount(values).tolist() == PUBLISHED[dataset.name]
    if dataset.name in PUBLISHED_MEANS:
        assert values.mean() == pytest.approx(PUBLISHED_MEANS[dataset.name], abs=0.01)
    if dataset.name in TRAIN_COUNTS:
        train = ~pd.Index(dataset.labels.ids).isin(dataset.test_ids)
        assert np.bincount(values[train]).tolist() == TRAIN_COUNTS[dataset.name]


def test_test_ids_leave_every_class_to_both_parts(dataset: Dataset) -> None:
    if dataset.test_ids is None:
        return
    in_test = pd.Index(dataset.labels.ids).isin(dataset.test_ids)
    assert in_test.sum() == len(dataset.test_ids) == len(set(dataset.test_ids))
    for part in (in_test, ~in_test):
        assert len(np.unique(dataset.labels.values[part])) == len(dataset.classes)


def test_columns_can_be_dealt_out_to_three_parties(dataset: Dataset) -> None:
    if dataset.grid is not None:
        return  # made-up images, below, do the same with less memory
    dealt = repartition(dataset, 3)
    widths = [len(block.columns) for block in dealt.blocks.values()]
    assert list(dealt.blocks) == ["party_1", "party_2", "party_3"]
    assert dealt.label_holder == "party_1"
    assert sum(widths) == sum(len(block.columns) for block in dataset.blocks.values())
    assert max(widths) - min(widths) <= 1
    assert widths == sorted(widths)


# --- single data sets ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_sets_need_no_files(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path))
    assert is_available(name)
    assert load_dataset(name).name == name


def test_digits_are_bands_of_rows() -> None:
    digits = load_dataset("digits")
    assert [len(block.columns) for block in digits.blocks.values()] == [23, 14, 24]
    assert digits.labels.ids[0] == "digits-0001"


def test_num_parties_deals_out_anew() -> None:
    blocks = load_dataset("wine", num_parties=4).blocks
    assert [len(block.columns) for block in blocks.values()] == [3, 3, 3, 4]


def test_credit_split_of_fate_is_the_raw_file() -> None:
    fate, raw = loaded("credit_fate"), loaded("credit_default")
    in_raw = pd.Series(raw.labels.values, index=raw.labels.ids)
    assert np.array_equal(in_raw.loc[fate.labels.ids], fate.labels.values)
    bureau = fate.blocks["credit_bureau"]
    bank = raw.blocks["bank"].values
    assert isinstance(bank, pd.DataFrame)
    limit = pd.Series(bank["LIMIT_BAL"].to_numpy(), index=raw.labels.ids)
    assert np.corrcoef(limit.loc[bureau.ids], bureau.values["x0"])[0, 1] == pytest.approx(1.0)


def test_adult_keeps_unknown_as_a_category() -> None:
    adult = loaded("adult")
    work = adult.blocks["work"].values
    assert isinstance(work, pd.DataFrame)
    assert (work["workclass"] == "?").sum() == 2799
    assert adult.test_ids is not None
    assert len(adult.test_ids) == 16281


def test_parkinsons_keeps_people_apart() -> None:
    voices = loaded("parkinsons")
    assert voices.test_ids is not None
    person = pd.Series(voices.labels.ids).str.rsplit("_", n=1).str[0]
    in_test = pd.Index(voices.labels.ids).isin(voices.test_ids)
    assert not set(person[in_test]) & set(person[~in_test])
    assert person[in_test].nunique() == 8


def test_houses_have_a_year_for_every_garage() -> None:
    for name in ("house_prices", "ames"):
        building = loaded(name).blocks["building"].values
        assert isinstance(building, pd.DataFrame)
        assert building["GarageYrBlt"].min() > 1800
        assert (building["GarageType"] == "NA").any()
        assert not pd.api.types.is_numeric_dtype(building["MSSubClass"])


def test_salesprice_deals_nine_columns_as_the_thesis_does() -> None:
    prices = loaded("salesprice")
    assert [len(block.columns) for block in prices.blocks.values()] == [4, 5]
    four = repartition(prices, 4)
    assert [len(block.columns) for block in four.blocks.values()] == [2, 2, 2, 3]


def test_qoe_is_the_rated_videos_cut_at_sixty() -> None:
    good, rated = loaded("qoe"), loaded("video_qoe")
    assert np.array_equal(good.labels.ids, rated.labels.ids)
    assert np.array_equal(good.labels.values, (rated.labels.values >= 60).astype(int))
    assert sum(len(block.columns) for block in good.blocks.values()) == 9


def test_mimic_tells_nothing_of_the_end_of_the_stay() -> None:
    mimic = loaded("mimic3_demo")
    columns = " ".join(name for block in mimic.blocks.values() for name in block.columns)
    for word in ("DEATH", "DISCH", "DOD", "EXPIRE", "LOS"):
        assert word not in columns
    office = mimic.blocks["admissions"].values
    assert isinstance(office, pd.DataFrame)
    assert office["AGE"].between(15, 90).all()


# --- activity: windows, features, cache ---------------------------------------------------------


def features_of(acceleration: Array, rotation: Array) -> dict[str, float]:
    values = recording_features(acceleration, rotation, np.array([200]))
    return dict(zip(FEATURE_NAMES, values[0].tolist(), strict=True))


def test_features_are_561_with_the_published_signals() -> None:
    assert len(FEATURE_NAMES) == len(set(FEATURE_NAMES)) == 561
    if not is_available("hapt"):
        pytest.skip("the files of 'hapt' are not here; set COLONNADE_DATA to run this")
    entry = DATASETS["hapt"]
    names = find_data("hapt", entry.paths, entry.source) / "hapt/features.txt"
    if not names.is_file():
        pytest.skip("features.txt of 'hapt' is not here")
    published = [line.split("-")[0].strip() for line in names.read_text().splitlines() if line]
    assert [name.split("-")[0] for name in FEATURE_NAMES] == published


def test_features_of_a_still_phone_find_gravity() -> None:
    generator = np.random.default_rng(0)
    noise = generator.normal(scale=1e-3, size=(2, 600, 3))
    features = features_of(np.array([1.0, 0.0, 0.0]) + noise[0], noise[1])
    assert features["tGravityAcc-mean-X"] == pytest.approx(1.0, abs=1e-2)
    assert features["tXAxisAcc-angleToGravity"] == pytest.approx(0.0, abs=1e-2)
    assert features["tYAxisAcc-angleToGravity"] == pytest.approx(np.pi / 2, abs=1e-2)
    assert features["tBodyAcc-std-X"] < 2e-3


def test_features_of_a_swing_find_its_frequency() -> None:
    time = np.arange(600) / 50
    swing = np.sin(2 * np.pi * 3.125 * time)  # bin 8 of a window of 2.56 seconds
    rotation = np.stack([swing, -swing, 0.01 * np.cos(time)], axis=1)
    acceleration = np.random.default_rng(1).normal(size=(600, 3))
    features = features_of(acceleration, rotation)
    assert features["fBodyGyro-maxInds-X"] == 8
    assert features["tBodyGyro-correlation-XY"] == pytest.approx(-1.0, abs=1e-6)
    assert features["tBodyGyro-energy-X"] == pytest.approx(0.5, rel=0.1)
    bands = {name: features[f"fBodyGyro-bandsEnergy-{name}-X"] for name in ("9to16", "17to24")}
    assert bands["9to16"] > 100 * bands["17to24"]


def test_burg_finds_the_process_that_made_the_signal() -> None:
    generator = np.random.default_rng(2)
    signal = np.zeros(4000)
    for step in range(2, len(signal)):
        signal[step] = 1.2 * signal[step - 1] - 0.5 * signal[step - 2] + generator.normal()
    found = burg(signal[None, None], 4)[0, 0]
    assert found == pytest.approx([-1.2, 0.5, 0.0, 0.0], abs=0.06)


def test_simple_features_equal_their_definition() -> None:
    windows = np.random.default_rng(3).normal(size=(5, 3, 128))
    signals = ("tBodyAcc", "tGravityAcc", "tBodyAccJerk", "tBodyGyro", "tBodyGyroJerk")
    found = dict(all_features(dict.fromkeys(signals, windows)))
    for number, axis in enumerate(AXES):
        values = windows[:, number]
        median = np.median(values, axis=1, keepdims=True)
        mad = np.median(np.abs(values - median), axis=1)
        assert found[f"tBodyAcc-mad-{axis}"] == pytest.approx(mad)
        assert found[f"tBodyAcc-std-{axis}"] == pytest.approx(values.std(axis=1))
        assert found[f"tBodyAcc-max-{axis}"] == pytest.approx(values.max(axis=1))
    assert found["tBodyAcc-sma"] == pytest.approx(np.abs(windows).mean(axis=2).sum(axis=1))
    expected = [np.corrcoef(window[0], window[1])[0, 1] for window in windows]
    assert found["tBodyAcc-correlation-XY"] == pytest.approx(expected)


@pytest.fixture
def small_hapt(tmp_path: Path) -> Path:
    """Two made-up recordings of two people, each with two activities, laid out as HAPT is."""
    folder = tmp_path / "data" / "hapt"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(4)
    for sensor in ("acc", "gyro"):
        with tarfile.open(folder / f"RawData_{sensor}.tar.xz", "w:xz") as archive:
            for experiment in (1, 2):
                text = io.StringIO()
                np.savetxt(text, generator.normal(size=(800, 3)))
                content = text.getvalue().encode()
                name = f"RawData/{sensor}_exp{experiment:02d}_user{experiment:02d}.txt"
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    segments = ["1 1 5 1 320", "1 1 4 401 727", "2 2 4 11 266", "2 2 5 300 400", "2 2 5 500 700"]
    (folder / "labels.txt").write_text("\n".join(segments) + "\n")
    # 320 samples hold 4 windows, 327 hold 4, 256 hold 3, 101 hold none, 201 hold 2.
    (folder / "y_train.txt").write_text("5\n" * 4 + "4\n" * 4)
    (folder / "subject_id_train.txt").write_text("1\n" * 8)
    (folder / "y_test.txt").write_text("4\n" * 3 + "5\n" * 2)
    (folder / "subject_id_test.txt").write_text("2\n" * 5)
    return tmp_path / "data"


def test_hapt_windows_lie_wholly_in_segments(small_hapt: Path) -> None:
    windows = activity.official_windows(small_hapt)
    train, test = windows[windows["part"] == "train"], windows[windows["part"] == "test"]
    assert train["begin"].tolist() == [0, 64, 128, 192, 400, 464, 528, 592]
    assert test["begin"].tolist() == [10, 74, 138, 499, 563]
    assert windows["id"].iloc[-1] == "hapt-02-02-00563"


def test_hapt_features_are_scaled_by_the_training_part(
    small_hapt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path / "cache"))
    hapt = load_dataset("hapt", root=small_hapt)
    assert hapt.test_ids is not None
    widths = {party: len(block.columns) for party, block in hapt.blocks.items()}
    assert widths == {
        "acc_time": 164,
        "acc_frequency": 184,
        "gyro_time": 108,
        "gyro_frequency": 105,
    }
    train = ~pd.Index(hapt.labels.ids).isin(hapt.test_ids)
    values = hapt.blocks["gyro_time"].take(np.flatnonzero(train)).values
    assert isinstance(values, pd.DataFrame)
    assert np.allclose(values.min(), -1)
    assert np.allclose(values.max(), 1)
    # Four even blocks follow the published order of columns, not that of the parties.
    assert repartition(hapt, 4).blocks["party_1"].columns == FEATURE_NAMES[:140]


def test_hapt_features_are_computed_once(
    small_hapt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path / "cache"))
    first = load_dataset("hapt", root=small_hapt)

    def refuse(*_: object) -> Array:
        raise AssertionError("computed again")

    monkeypatch.setattr(activity, "compute_features", refuse)
    second = load_dataset("hapt", root=small_hapt)
    for party, block in first.blocks.items():
        assert np.array_equal(block.values, second.blocks[party].values)
    kept = list((tmp_path / "cache" / "features").iterdir())
    assert len(kept) == 1
    assert kept[0].name.startswith("hapt-v1-")


def test_hapt_goes_on_when_the_cache_is_not_writable(
    small_hapt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file, not a directory")
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path / "cache"))
    with pytest.warns(UserWarning, match="COLONNADE_CACHE"):
        hapt = load_dataset("hapt", root=small_hapt)
    assert len(hapt.labels.ids) == 13


def test_hapt_refuses_lists_of_another_version(small_hapt: Path) -> None:
    (small_hapt / "hapt/y_test.txt").write_text("4\n" * 5)
    with pytest.raises(DataError, match=r"y_test\.txt"):
        load_dataset("hapt", root=small_hapt)


# --- images -------------------------------------------------------------------------------------


def write_idx(path: Path, values: Array) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


@pytest.fixture
def small_mnist(tmp_path: Path) -> Path:
    folder = tmp_path / "mnist"
    folder.mkdir()
    images = np.arange(7 * 28 * 28).reshape(7, 28, 28) % 256
    for part, rows in (("train", slice(0, 5)), ("t10k", slice(5, 7))):
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images[rows])
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", np.arange(7)[rows])
    return tmp_path


def whole_images() -> Array:
    return (np.arange(7 * 28 * 28).reshape(7, 1, 28, 28) % 256).astype(np.float32) / 255


def test_images_are_cut_into_halves(small_mnist: Path) -> None:
    mnist = load_dataset("mnist", root=small_mnist)
    assert np.array_equal(mnist.blocks["left"].values, whole_images()[:, :, :, :14])
    assert np.array_equal(mnist.blocks["right"].values, whole_images()[:, :, :, 14:])
    assert mnist.test_ids is not None
    assert mnist.test_ids.tolist() == ["mnist-test-0001", "mnist-test-0002"]


def test_four_parties_get_quadrants(small_mnist: Path) -> None:
    blocks = load_dataset("mnist", num_parties=4, root=small_mnist).blocks
    image = whole_images()
    quadrants = [image[:, :, :14, :14], image[:, :, :14, 14:]]
    quadrants += [image[:, :, 14:, :14], image[:, :, 14:, 14:]]
    for block, quadrant in zip(blocks.values(), quadrants, strict=True):
        assert np.array_equal(block.values, quadrant)


def test_strips_after_quadrants_are_the_same_image(small_mnist: Path) -> None:
    quadrants = load_dataset("mnist", num_parties=4, root=small_mnist)
    strips = repartition(quadrants, 3)
    parts = [np.asarray(block.values) for block in strips.blocks.values()]
    assert [part.shape[3] for part in parts] == [9, 9, 10]
    joined = np.concatenate(parts, axis=3)
    assert np.array_equal(joined, whole_images())


def test_a_broken_image_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.gz"
    write_idx(path, np.zeros((2, 3)))
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content[:-1]))
    with pytest.raises(DataError, match=says("broken.gz", 5, "(2, 3)")):
        read_idx(path)
    path.write_bytes(gzip.compress(b"something else"))
    with pytest.raises(DataError, match=says("broken.gz", "idx")):
        read_idx(path)


# --- dealing out --------------------------------------------------------------------------------


def two_parties(second_ids: list[str], **more: Any) -> Dataset:
    ids = np.array(["a", "b", "c"], object)
    left = pd.DataFrame({"x": [1, 2, 3], "y": [4, 5, 6]})
    right = pd.DataFrame({"x": [7, 8, 9]})
    return Dataset(
        name="made up",
        task="binary",
        blocks={
            "one": Block(owner="one", ids=ids, values=left),
            "two": Block(owner="two", ids=np.array(second_ids, object), values=right),
        },
        labels=Labels(ids=ids, values=np.array([0, 1, 0])),
        label_holder=more.pop("label_holder", "one"),
        source="made up",
        **more,
    )


def test_pooled_rows_are_matched_by_id_and_shared_names_told_apart() -> None:
    pooled = repartition(two_parties(["c", "a", "b"]), 1).blocks["party_1"].values
    assert isinstance(pooled, pd.DataFrame)
    assert pooled.columns.tolist() == ["one.x", "y", "two.x"]
    assert pooled["two.x"].tolist() == [8, 9, 7]


def test_pooling_refuses_other_samples() -> None:
    with pytest.raises(DataError, match=says("'made up'", "'two'", "'one'", "samples")):
        repartition(two_parties(["a", "b", "d"]), 2)


@pytest.mark.parametrize(
    ("num_parties", "message"),
    [(0, says("num_parties", 1, 0)), (4, says("num_parties", "'made up'", 3, 4))],
)
def test_a_wrong_number_of_parties_is_refused(num_parties: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        repartition(two_parties(["a", "b", "c"]), num_parties)


def test_a_data_set_checks_itself() -> None:
    with pytest.raises(DataError, match=says("'made up'", "'three'", "block", "one, two")):
        two_parties(["a", "b", "c"], label_holder="three")
    with pytest.raises(DataError, match=says("'made up'", "1 of 2", "label")):
        two_parties(["a", "b", "c"], test_ids=np.array(["a", "z"], object))


# --- where files are looked for -----------------------------------------------------------------


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(DataError, match="fashion_mnist"):
        load_dataset("fashionmnist")
    with pytest.raises(DataError, match=says("'zzzzzzzz'", "adult", "wine")):
        is_available("zzzzzzzz")
    with pytest.raises(DataError, match=says("'planet_lab'", "planetlab")):
        load_cpu_trace("planet_lab")


def test_missing_files_are_named_with_the_places_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path / "named"))
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "named" / "adult").mkdir(parents=True)
    (tmp_path / "named" / "adult" / "adult.data.gz").touch()
    assert not is_available("adult", root=tmp_path / "given")
    with pytest.raises(DatasetNotFound) as caught:
        load_dataset("adult", root=tmp_path / "given")
    message = str(caught.value)
    assert "1 of 2 files are missing: adult/adult.test.gz" in message
    places = [tmp_path / "given", tmp_path / "named", tmp_path / "cache" / "data"]
    found = [message.index(str(place)) for place in places]
    assert found == sorted(found)
    assert "Kohavi and Becker" in message
    assert "COLONNADE_DATA" in message


def test_an_unset_place_is_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLONNADE_DATA", raising=False)
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path))
    with pytest.raises(DatasetNotFound, match=says("COLONNADE_DATA", "not set")):
        load_dataset("mnist")


def test_places_are_searched_in_order(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLONNADE_DATA", raising=False)
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path / "cache"))
    assert not is_available("mnist")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "data").symlink_to(small_mnist, target_is_directory=True)
    paths = DATASETS["mnist"].paths
    assert find_data("mnist", paths, "") == tmp_path / "cache" / "data"
    monkeypatch.setenv("COLONNADE_DATA", str(small_mnist))
    assert find_data("mnist", paths, "") == small_mnist
    # A directory without the files is passed over.
    assert find_data("mnist", paths, "", root=tmp_path / "elsewhere") == small_mnist


def test_the_cache_directory_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("COLONNADE_CACHE")
    assert cache_directory() == tmp_path / "shared" / "colonnade"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "colonnade"


# --- traces -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mean"), [("google", 0.2185), ("planetlab", 0.111), ("nab", 0.233)]
)
def test_traces_are_shares_of_a_machine(name: str, mean: float) -> None:
    if not is_trace_available(name):
        pytest.skip(f"the files of trace '{name}' are not here; set COLONNADE_DATA to run this")
    trace = load_cpu_trace(name)
    assert trace.shape == (TRACES[name].num_machines, TRACES[name].num_steps)
    assert trace.min() >= 0
    assert trace.max() <= 1
    assert trace.mean() == pytest.approx(mean, abs=5e-4)
    assert np.array_equal(load_cpu_trace(name, num_machines=3), trace[:3])


def test_traces_refuse_more_machines_than_there_are() -> None:
    with pytest.raises(DataError, match=says("num_machines", "'nab'", 11, 12)):
        load_cpu_trace("nab", num_machines=12)


def test_missing_traces_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path))
    assert not is_trace_available("google")
    with pytest.raises(DatasetNotFound, match=r"google_GCD_VMs\.tar\.gz"):
        load_cpu_trace("google")
