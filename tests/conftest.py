"""Settings for the whole suite: one thread, and generated cases that are the same every time."""

from collections.abc import Iterator

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
def own_methods() -> Iterator[None]:
    """Methods that a test registers are gone after it."""
    before = dict(methods._METHODS)
    yield
    methods._METHODS.clear()
    methods._METHODS.update(before)
