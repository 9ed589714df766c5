"""The samples of a request at a party: the short ways give what the long ones give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import ProtocolError, Refused
from colonnade.federate.roll_calls import checked_request, checked_roll
from colonnade.run.party_building import make_parts, part_of_rows
from colonnade.run.samples import Roll, bounds_of

NAMES = ("bank", "shop", "telco")


@given(st.lists(st.booleans(), min_size=1, max_size=9).filter(any), st.integers(1, 9))
def test_a_part_by_its_rows_is_the_part_that_a_roll_gives(said: list[bool], size: int) -> None:
    here = np.array(said)
    count = int(here.sum())
    features, people = torch.randn(count, 2), torch.arange(100, 100 + count)
    plan = BatchPlan(len(said), size, seed=0, shuffle=False)
    table = np.ones((len(said), 3), dtype=bool)
    table[:, 1] = here
    roll = Roll(names=NAMES, samples={"new": np.arange(len(said))}, presence={"new": table})
    own = np.where(here, np.cumsum(here) - 1, -1)
    wanted = make_parts(features, own, "shop", roll, {"new": plan}, people)["new"]
    found = part_of_rows(features, plan, None if here.all() else torch.from_numpy(here), people)
    assert found.plan is wanted.plan
    for name in ("features", "rows", "people"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert (one is None) == (other is None)
        assert one is None or (torch.equal(one, other) and one.dtype is other.dtype)
    for number in range(plan.num_batches):
        assert torch.equal(found.own.positions(number), wanted.own.positions(number))


@given(
    st.lists(st.integers(-2, 5), max_size=4),
    st.sampled_from((torch.int64, torch.int32)),
    st.sampled_from((torch.bool, torch.uint8)),
    st.tuples(st.integers(0, 4), st.integers(2, 4)),
    st.booleans(),
)
def test_a_request_is_checked_like_a_roll_of_one_part(
    numbers: list[int],
    dtype: torch.dtype,
    presence: torch.dtype,
    shape: tuple[int, int],
    fits: bool,
) -> None:
    samples = torch.tensor(numbers, dtype=dtype)
    table = torch.ones((len(numbers), 3) if fits else shape, dtype=presence)

    def by_roll() -> tuple[Any, Any]:
        roll = checked_roll("shop", NAMES, {"new": samples}, {"new": table})
        return roll.samples["new"], roll.presence["new"]

    def by_itself() -> tuple[Any, Any]:
        return checked_request("shop", NAMES, "new", samples, table)

    assert _told(by_itself) == _told(by_roll)


def _told(check: Callable[[], tuple[Any, Any]]) -> tuple[Any, ...]:
    """What a check gives, or the error that it raises."""
    try:
        return tuple(item.tolist() for item in check())
    except (ProtocolError, Refused) as error:
        return type(error), str(error)


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=9), st.sampled_from((1, 30)))
def test_bounds_are_the_smallest_and_the_largest_of_few_and_of_many(
    few: list[int], times: int
) -> None:
    numbers = np.array(few * times, dtype=np.int64)
    assert bounds_of(numbers) == (int(numbers.min()), int(numbers.max()))
