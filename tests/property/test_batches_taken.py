"""The rows of a batch: cut out or chosen, they are those at the batch's positions, in a copy."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from colonnade.core.batches import BatchPlan


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 3),
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
)
def test_rows_of_a_batch_are_a_copy_of_those_at_its_positions(
    num_samples: int, size: int, further: int, number: int, shuffle: bool, in_groups: bool
) -> None:
    groups = torch.arange(num_samples) % 2 if in_groups else None
    plan = BatchPlan(num_samples, size, seed=4, shuffle=shuffle, groups=groups)
    values = torch.randn(num_samples + further, 2)
    rows = plan.taken(values, number)
    assert torch.equal(rows, values[plan.positions(number)])
    assert plan.num_positions(number) == len(plan.positions(number)) == len(rows)
    before = values.clone()
    rows.zero_()
    assert torch.equal(values, before)
