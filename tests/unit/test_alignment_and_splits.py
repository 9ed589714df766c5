"""Which samples train, and who has them where: the same at every party, whatever the row order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.align.plain import align_plainly
from colonnade.core.batches import BatchPlan
from colonnade.core.errors import DataError
from colonnade.core.seeds import derive_seed, shuffled
from colonnade.data.blocks import Labels, as_ids, make_block
from colonnade.data.splits import SplitSpec, split_samples
from messages import says

ids = st.lists(st.text("abc01", min_size=1, max_size=3), max_size=25, unique=True)


def as_array(values: list[str]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=object)


# Alignment


@given(blocks=st.dictionaries(st.sampled_from("pqr"), ids, min_size=1), labels=ids)
def test_every_labelled_sample_of_any_party_is_kept(
    blocks: dict[str, list[str]], labels: Any
) -> None:
    known = set(labels) & set(chain.from_iterable(blocks.values()))
    arrays = {name: as_array(item) for name, item in blocks.items()}
    if not known:
        with pytest.raises(
            DataError,
            match=says(
                "0 labelled" if not labels else f"{len(labels)} labelled",
                *(f"'{name}'" for name in blocks),
            ),
        ):
            align_plainly(arrays, as_array(labels))
        return
    alignment = align_plainly(arrays, as_array(labels))
    assert alignment.num_samples == len(known)
    expected = sorted(known)
    assert [labels[row] for row in alignment.label_rows] == expected
    for name, rows in alignment.rows.items():
        assert rows.dtype == np.int64
        here = [item if item in blocks[name] else None for item in expected]
        assert [blocks[name][row] if row >= 0 else None for row in rows] == here


@given(labels=ids.filter(len), seed=st.integers(0, 1000), names=st.permutations(["p", "q", "r"]))
def test_the_order_of_rows_and_parties_does_not_matter(
    labels: list[str], seed: int, names: list[str]
) -> None:
    draw = np.random.default_rng(seed)
    orders = {name: draw.permutation(as_array(labels)) for name in names}
    alignment = align_plainly(orders, draw.permutation(as_array(labels)))
    for name, rows in alignment.rows.items():
        assert list(orders[name][rows]) == sorted(labels)


def aligned_slowly(
    blocks: dict[str, list[str]], labels: list[str]
) -> tuple[dict[str, list[int]], list[int]]:
    """The oracle: look every id up in every list, in the order of the sorted ids."""
    known = [item for item in labels if any(item in ids for ids in blocks.values())]
    samples = sorted(known)
    return {
        name: [ids.index(item) if item in ids else -1 for item in samples]
        for name, ids in blocks.items()
    }, [labels.index(item) for item in samples]


numbers_as_text = st.lists(st.integers(-20, 200).map(str), max_size=25, unique=True)
# Order by code point is not that of UTF-16; an id may be empty, blank or have a zero inside.
any_text = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
    | st.sampled_from(["", " ", "\0", "\uffff", "\U00010000", "é", "e\u0301"]),
    max_size=25,
    unique=True,
)


@given(data=st.data(), kind=st.sampled_from([ids, numbers_as_text, any_text]))
def test_rows_are_those_of_looking_every_id_up(
    data: st.DataObject, kind: st.SearchStrategy[list[str]]
) -> None:
    labels = data.draw(kind.filter(len))
    own = st.lists(st.sampled_from(labels), unique=True)
    blocks = {}
    for name in "pqr":
        shared, strange = data.draw(own), data.draw(kind)
        mixed = list(dict.fromkeys([*shared, *strange]))
        blocks[name] = data.draw(st.permutations(mixed))
    expected_rows, expected_labels = aligned_slowly(blocks, labels)
    arrays = {name: as_array(item) for name, item in blocks.items()}
    if not expected_labels:
        with pytest.raises(DataError, match=f"{len(labels)} labelled ids"):
            align_plainly(arrays, as_array(labels))
        return
    alignment = align_plainly(arrays, as_array(labels))
    assert alignment.label_rows.tolist() == expected_labels
    assert {name: rows.tolist() for name, rows in alignment.rows.items()} == expected_rows
    assert alignment.label_rows.dtype == np.int64


@pytest.mark.parametrize(
    "make",
    [
        lambda ids: make_block("bank", np.zeros((5, 1)), ids=ids),
        lambda ids: Labels(ids=ids, values=np.zeros(5)),
    ],
    ids=["block", "labels"],
)
def test_an_id_that_occurs_twice_never_reaches_alignment(make: Callable[[Any], Any]) -> None:
    with pytest.raises(DataError, match=r"2 duplicate ids \(first repeat at row 2\)"):
        make(as_array(["b", "a", "b", "a", "c"]))


def test_numbers_and_texts_meet() -> None:
    blocks = {"bank": as_ids([3, 1, 2], ""), "telco": as_ids(["2", "3", "9"], "")}
    alignment = align_plainly(blocks, as_ids([2.0, 3.0, 1.0], ""))
    assert alignment.num_samples == 3
    assert alignment.rows["bank"].tolist() == [1, 2, 0]
    assert alignment.rows["telco"].tolist() == [-1, 0, 1]
    assert alignment.label_rows.tolist() == [2, 0, 1]


def test_no_overlap_says_who_shares_how_many_and_never_an_id() -> None:
    blocks = {"bank": as_array(["secret-1", "secret-2"]), "telco": as_array(["secret-9"])}
    with pytest.raises(DataError) as caught:
        align_plainly(blocks, as_array(["secret-3", "secret-4", "secret-5"]))
    message = str(caught.value)
    assert "of the 3 labelled ids" in message
    assert "'bank' shares 0 of its 2, 'telco' shares 0 of its 1;" in message
    assert "same kind of id, written the same way" in message
    assert "secret" not in message


# Splits


@given(
    num_samples=st.integers(1, 300),
    validation=st.floats(0, 0.6),
    test=st.floats(0, 0.39),
    seed=st.integers(0, 2**31),
)
def test_parts_cover_everything_once(
    num_samples: int, validation: float, test: float, seed: int
) -> None:
    spec = SplitSpec(validation=validation, test=test)
    if round(num_samples * validation) + round(num_samples * test) >= num_samples:
        with pytest.raises(DataError, match=says(num_samples, "train", "validation", "test")):
            split_samples(num_samples, spec, seed=seed)
        return
    parts = split_samples(num_samples, spec, seed=seed)
    together = np.concatenate(list(parts.values()))
    assert sorted(together) == list(range(num_samples))
    assert "train" in parts
    for name, share in (("validation", validation), ("test", test)):
        count = len(parts.get(name, ()))
        assert abs(count - share * num_samples) <= 0.5
    for samples in parts.values():
        assert len(samples)
        assert (np.diff(samples) > 0).all()


@given(num_samples=st.integers(2, 200), seed=st.integers(0, 2**31), share=st.floats(0, 0.5))
def test_an_official_test_part_is_taken_as_it_is(num_samples: int, seed: int, share: float) -> None:
    official = np.arange(0, num_samples, 3)
    spec = SplitSpec(validation=share, test=0.4)
    parts = split_samples(num_samples, spec, seed=seed, test=official)
    assert parts["test"].tolist() == official.tolist()
    rest = np.concatenate([parts["train"], parts.get("validation", np.array([], dtype=int))])
    assert sorted([*rest, *official]) == list(range(num_samples))


def test_the_split_depends_on_seed_and_number_only() -> None:
    spec = SplitSpec()
    first, again = (split_samples(100, spec, seed=3) for _ in range(2))
    other = split_samples(100, spec, seed=4)
    assert all((first[part] == again[part]).all() for part in first)
    assert first["test"].tolist() != other["test"].tolist()
    assert {part: len(samples) for part, samples in first.items()} == {
        "train": 70,
        "validation": 15,
        "test": 15,
    }


def test_parts_of_no_samples_are_left_out() -> None:
    assert split_samples(10, SplitSpec(validation=0, test=0), seed=0).keys() == {"train"}
    with pytest.raises(DataError, match=says(1, "train", "validation", "test", "shares")):
        split_samples(1, SplitSpec(validation=0.0, test=0.9), seed=0)


def test_orders_are_fixed_for_ever() -> None:
    """Organisations with other versions must derive the same rows: these numbers never change."""
    assert derive_seed(0, "split") == 3813469316836640466
    assert shuffled(10, derive_seed(0, "split")).tolist() == [3, 6, 4, 1, 9, 2, 0, 7, 5, 8]
    parts = split_samples(12, SplitSpec(validation=0.25, test=0.25), seed=7)
    assert {part: samples.tolist() for part, samples in parts.items()} == {
        "train": [0, 6, 7, 9, 10, 11],
        "validation": [2, 4, 5],
        "test": [1, 3, 8],
    }


# Batches


@given(
    num_samples=st.integers(1, 80),
    batch_size=st.integers(1, 30),
    seed=st.integers(0, 2**31),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_an_epoch_of_batches_is_every_sample_once(
    num_samples: int, batch_size: int, seed: int, shuffle: bool, epoch: int
) -> None:
    plan = BatchPlan(num_samples, batch_size, seed=seed, shuffle=shuffle)
    numbers = range(epoch * plan.num_batches, (epoch + 1) * plan.num_batches)
    batches = [plan.positions(number).tolist() for number in numbers]
    assert sorted(chain.from_iterable(batches)) == list(range(num_samples))
    assert all(len(batch) <= batch_size + 1 for batch in batches)
    if batch_size > 1 and num_samples > 1:
        assert all(len(batch) > 1 for batch in batches)
    elsewhere = BatchPlan(num_samples, batch_size, seed=seed, shuffle=shuffle)
    for number in reversed(numbers):
        assert elsewhere.positions(number).tolist() == plan.positions(number).tolist()
