"""Batches and seeds: the same at every organisation, pinned by golden numbers."""

from __future__ import annotations

import hashlib
import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import ConfigError
from colonnade.core.seeds import derive_seed, drawing_from, shuffled
from messages import says


class TestSeeds:
    def test_golden_numbers(self) -> None:
        # These may never change: parties on different versions would pair wrong rows.
        assert derive_seed(0) == 2624730748150882600
        assert derive_seed(0, "epoch", 0) == 5970449395354586551
        assert derive_seed(7, "party", "bank") == 5521081076301191462

    def test_what_the_first_golden_number_is_made_of(self) -> None:
        digest = hashlib.sha256(b"colonnade\x1f0").digest()
        assert derive_seed(0) == int.from_bytes(digest[:8], "little") // 2

    @given(seed=st.integers(-(2**70), 2**70), purpose=st.lists(st.text(max_size=4), max_size=3))
    def test_fits_into_63_bits(self, seed: int, purpose: list[str]) -> None:
        assert 0 <= derive_seed(seed, *purpose) < 2**63

    def test_purposes_are_unlike(self) -> None:
        purposes = [(), ("a",), ("a", "b"), ("ab",), ("b", "a"), ("a", 1), ("a1",), ("a", "")]
        assert len({derive_seed(0, *purpose) for purpose in purposes}) == len(purposes)


class TestShuffled:
    def test_golden_orders(self) -> None:
        assert shuffled(10, 0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
        assert shuffled(10, 1).tolist() == [3, 5, 2, 9, 7, 0, 8, 6, 1, 4]
        assert shuffled(12, derive_seed(0, "epoch", 0)).tolist() == (
            [2, 9, 5, 11, 7, 8, 0, 6, 4, 10, 3, 1]
        )

    def test_golden_order_of_many(self) -> None:
        order = shuffled(100_000, 42)
        assert order[:5].tolist() == [83435, 6609, 32275, 70680, 4526]
        assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest() == (
            "38af5f3d95ca26a30cc1968117c66af96ae7d4a40d6051e27891e83db351b294"
        )

    @given(count=st.integers(0, 200), seed=st.integers(0, 2**63 - 1))
    def test_is_a_permutation(self, count: int, seed: int) -> None:
        assert sorted(shuffled(count, seed).tolist()) == list(range(count))

    def test_first_place_is_taken_evenly(self) -> None:
        firsts = [int(shuffled(5, seed)[0]) for seed in range(1000)]
        assert all(150 < firsts.count(place) < 250 for place in range(5))


class TestDrawingFrom:
    def test_draws_by_seed_and_leaves_the_global_stream_where_it_was(self) -> None:
        torch.manual_seed(123)
        undisturbed = torch.rand(4)
        torch.manual_seed(123)
        first = torch.rand(2)
        with drawing_from(9):
            inside = torch.rand(3)
        assert torch.equal(torch.cat([first, torch.rand(2)]), undisturbed)
        with drawing_from(9):
            assert torch.equal(torch.rand(3), inside)

    def test_leaves_it_so_after_an_error_too(self) -> None:
        def fail() -> None:
            with drawing_from(9):
                torch.rand(3)
                raise KeyError

        before = torch.get_rng_state()
        with pytest.raises(KeyError):
            fail()
        assert torch.equal(torch.get_rng_state(), before)

    def test_another_thread_draws_in_between_and_changes_nothing(self) -> None:
        def drawn(seed: int) -> torch.Tensor:
            with drawing_from(seed):
                return torch.rand(4)

        alone, of_other = drawn(1), drawn(2)
        found: list[torch.Tensor] = []
        other = threading.Thread(target=lambda: found.append(drawn(2)))
        with drawing_from(1):
            first = torch.rand(2)
            other.start()
            other.join()
            rest = torch.rand(2)
        other.join()
        assert torch.equal(torch.cat([first, rest]), alone)
        assert torch.equal(found[0], of_other)


PLANS = {
    "num_samples": st.integers(1, 60),
    "batch_size": st.integers(1, 20),
    "seed": st.integers(0, 1000),
    "shuffle": st.booleans(),
}


class TestBatchPlan:
    def test_golden_batches(self) -> None:
        plan = BatchPlan(10, 4, seed=3, shuffle=True)
        assert plan.num_batches == 3
        assert [plan.positions(number).tolist() for number in range(5)] == [
            [6, 0, 8],
            [5, 2, 1],
            [7, 3, 4, 9],
            [8, 5, 0],
            [4, 2, 6],
        ]

    @given(**PLANS)
    def test_every_epoch_has_every_position_once(
        self, num_samples: int, batch_size: int, seed: int, shuffle: bool
    ) -> None:
        plan = BatchPlan(num_samples, batch_size, seed=seed, shuffle=shuffle)
        for epoch in range(3):
            numbers = range(epoch * plan.num_batches, (epoch + 1) * plan.num_batches)
            positions = torch.cat([plan.positions(number) for number in numbers])
            assert sorted(positions.tolist()) == list(range(num_samples))
            assert positions.dtype == torch.int64
            if not shuffle:
                assert positions.tolist() == list(range(num_samples))

    @given(**PLANS)
    def test_batches_are_few_and_of_almost_one_size(
        self, num_samples: int, batch_size: int, seed: int, shuffle: bool
    ) -> None:
        plan = BatchPlan(num_samples, batch_size, seed=seed, shuffle=shuffle)
        sizes = [len(plan.positions(number)) for number in range(plan.num_batches)]
        assert max(sizes) - min(sizes) <= 1
        if batch_size == 2 and num_samples % 2 == 1:  # rather one too many than a batch of one
            assert len(sizes) == max(1, num_samples // 2)
        else:
            assert len(sizes) == math.ceil(num_samples / batch_size)

    def test_what_is_left_over_is_no_batch_of_its_own(self) -> None:
        """A batch of 8 after 39 of 128 once ruined a ResNet in the last step of a run."""
        plan = BatchPlan(5000, 128, seed=0, shuffle=True)
        assert {len(plan.positions(number)) for number in range(plan.num_batches)} == {125}
        assert plan.num_batches == 40

    @pytest.mark.parametrize(
        ("num_samples", "batch_size", "expected"),
        [(9, 4, [3, 3, 3]), (5, 2, [2, 3]), (3, 2, [3]), (1, 2, [1]), (3, 1, [1, 1, 1])],
    )
    def test_no_batch_of_one(self, num_samples: int, batch_size: int, expected: list[int]) -> None:
        plan = BatchPlan(num_samples, batch_size, seed=0, shuffle=False)
        assert [len(plan.positions(number)) for number in range(plan.num_batches)] == expected

    def test_number_alone_decides_whatever_was_asked_before(self) -> None:
        asked = [0, 7, 3, 7, 0, 12, 1]
        plan = BatchPlan(10, 4, seed=3, shuffle=True)
        for number in asked:
            fresh = BatchPlan(10, 4, seed=3, shuffle=True)
            assert torch.equal(plan.positions(number), fresh.positions(number))

    def test_epochs_and_seeds_are_unlike(self) -> None:
        def epoch(seed: int, number: int) -> list[int]:
            return BatchPlan(30, 30, seed=seed, shuffle=True).positions(number).tolist()

        orders = [epoch(seed, number) for seed in range(3) for number in range(3)]
        assert len({tuple(order) for order in orders}) == 9

    def test_batches_do_not_depend_on_global_randomness(self) -> None:
        plans = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            np.random.seed(seed)
            plans.append(BatchPlan(20, 5, seed=3, shuffle=True).positions(2))
        assert torch.equal(*plans)

    @pytest.mark.parametrize("batch_size", [0, -1])
    def test_batch_size_below_one_is_refused(self, batch_size: int) -> None:
        with pytest.raises(ConfigError, match=says("batch_size", 1, batch_size)):
            BatchPlan(10, batch_size, seed=0, shuffle=True)


def _draws() -> list[Tensor]:
    """One of everything that a network may draw."""
    layers = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.AlphaDropout(0.2), nn.RReLU())
    nn.init.trunc_normal_(layers[0].weight)  # type: ignore[arg-type]
    recurrent = nn.LSTM(8, 4, 2, dropout=0.5)
    rows = torch.randn(5, 6)
    found = layers(rows)
    return [
        *layers.parameters(),
        *recurrent.parameters(),
        found,
        recurrent(found[None])[0],
        nn.Dropout2d(0.5)(torch.rand(2, 3, 2, 2)),
        nn.Embedding(4, 2).weight,
        torch.randperm(7),
        torch.randint(9, (4,)),
        torch.bernoulli(torch.full((4,), 0.5)),
        torch.multinomial(torch.ones(5), 3),
        torch.normal(0.0, 1.0, (3,)),
        torch.distributions.Gamma(2.0, 1.0).sample((3,)),
        torch.poisson(torch.ones(4)),
    ]


def test_own_generators_give_the_bits_of_the_global_one_and_leave_it_alone() -> None:
    generator = torch.default_generator
    before = generator.get_state()
    try:
        generator.manual_seed(11)
        expected = _draws()
    finally:
        generator.set_state(before)
    with drawing_from(11):
        found = _draws()
    assert torch.equal(generator.get_state(), before)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    # One within another draws from its own, and the outer one goes on as if nothing had been.
    with drawing_from(3):
        first = torch.rand(2), functional.rrelu(-torch.ones(3), training=True)
        with drawing_from(11):
            assert all(torch.equal(*pair) for pair in zip(_draws(), expected, strict=True))
        last = torch.rand(2), functional.rrelu(-torch.ones(3), training=True)
    with drawing_from(3):
        for item in (first, last):
            assert torch.equal(item[0], torch.rand(2))
            assert torch.equal(item[1], functional.rrelu(-torch.ones(3), training=True))


@given(
    num_samples=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    shuffle=st.booleans(),
    is_grouped=st.booleans(),
)
def test_rows_of_a_batch_are_those_at_its_positions(
    num_samples: int, batch_size: int, shuffle: bool, is_grouped: bool
) -> None:
    groups = torch.arange(num_samples) % 2 if is_grouped else None
    plan = BatchPlan(num_samples, batch_size, seed=1, shuffle=shuffle, groups=groups)
    values = torch.rand(num_samples, 2)
    for number in range(2 * plan.num_batches):
        taken = plan.taken(values, number)
        assert torch.equal(taken, values[plan.positions(number)])
        # A copy: an encoder may work in place.
        assert taken.data_ptr() != values.data_ptr()
