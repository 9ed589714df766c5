"""Kept layouts of requests are those that would be made anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from colonnade.core.messages import Batch
from colonnade.core.presence import Presence
from colonnade.federate.prediction_requests import Layouts, Request, roll_of
from colonnade.run.assembly import NEW
from colonnade.run.party_building import make_plans
from colonnade.run.spec import parse_spec

NAMES = ("bank", "shop", "telco")
SPEC = parse_spec(
    {"method": "laser", "label_holder": {"label": "y"}, "data": {"batch_size": 4}},
)


class Holder:
    """What a layout needs of a label holder."""

    def over(self, parts: Any, presence: Any) -> Any:
        return SimpleNamespace(parts=parts, presence=presence)


def layouts() -> Layouts:
    holder: Any = Holder()
    return Layouts(SPEC, NAMES, "bank", holder)


def tables() -> st.SearchStrategy[Any]:
    return st.integers(1, 20).flatmap(lambda n: arrays(np.bool_, (n, len(NAMES))))


@given(st.lists(tables(), min_size=1, max_size=8), st.sampled_from([NEW, "test", "train"]))
def test_a_kept_layout_is_that_of_a_fresh_one(asked: list[Any], part: str) -> None:
    kept = layouts()
    for table in (*asked, *asked):
        request = Request(part=part, numbers=np.arange(len(table)), presence=table)
        found = kept.of(request, "its digest")
        plan = make_plans(SPEC, roll_of(request, "its digest", NAMES), "bank")["its digest"]
        assert found.plan.num_batches == plan.num_batches
        # Never as in training, whatever the part is called: answers are in the request's order.
        assert not found.plan.shuffle
        for number in range(plan.num_batches):
            assert torch.equal(found.plan.positions(number), plan.positions(number))
        known: Presence = found.holder.presence[part]
        assert np.array_equal(known.table.numpy(), table)


def test_a_table_that_is_changed_afterwards_changes_no_layout() -> None:
    kept, table = layouts(), np.ones((2, 3), dtype=bool)
    request = Request(numbers=np.arange(2), presence=table)
    first = kept.of(request, "one")
    table[:] = False
    assert first.holder.presence[NEW].table.all()
    again = kept.of(Request(numbers=np.arange(2), presence=np.ones((2, 3), dtype=bool)), "two")
    assert again is first
    assert again.plan.positions(Batch(NEW, 0).number).tolist() == [0, 1]


@pytest.mark.parametrize("num_rows", [16, 17])
def test_only_few_samples_and_only_so_many_are_kept(num_rows: int) -> None:
    kept = layouts()
    for number in range(300):
        bits = [[bool(number >> bit & 1)] * 3 for bit in range(num_rows)]
        kept.of(Request(numbers=np.arange(num_rows), presence=np.array(bits)), "one")
    assert len(kept._known) == (256 if num_rows == 16 else 0)
