"""The run's patience, and where it lasts longer: before the first exchange and at the end."""

from __future__ import annotations

import pytest

from colonnade.core.patience import Patience
from colonnade.federate.alignment import preparing


@pytest.mark.parametrize(("timeout", "lasts"), [(None, None), (20, 600_000), (700_000, 700_000)])
def test_before_the_first_exchange_nobody_is_left_out_for_ten_minutes(
    timeout: int | None, lasts: int | None
) -> None:
    for then in ("stop", "continue"):
        assert preparing(Patience(timeout=timeout, then=then)) == Patience(timeout=lasts)


@pytest.mark.parametrize(("timeout", "lasts"), [(None, None), (20, 10_000), (60_000, 60_000)])
def test_at_the_end_a_run_that_waits_for_nobody_gives_ten_seconds(
    timeout: int | None, lasts: int | None
) -> None:
    found = Patience(timeout=timeout).at_the_end()
    assert found == Patience(timeout=lasts, then="continue")
