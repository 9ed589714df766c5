"""Settings for the whole suite: one thread, and generated cases that are the same every time."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import settings

from colonnade import methods

torch.set_num_threads(1)

settings.register_profile(
    "colonnade", derandomize=True, database=None, deadline=None, max_examples=20
)
settings.load_profile("colonnade")


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[..., None]:
    """What an attack has measured, for its row in docs/security.md (see tests/attack/table.py)."""

    def note(**numbers: float) -> None:
        # Plain numbers: NumPy's own can't cross to the process that collects the reports.
        for name, value in numbers.items():
            plain = value.item() if hasattr(value, "item") else value
            request.node.user_properties.append((name, plain))

    return note


@pytest.fixture
def own_methods() -> Iterator[None]:
    """Methods that a test registers are gone after it."""
    before = dict(methods._METHODS)
    yield
    methods._METHODS.clear()
    methods._METHODS.update(before)
