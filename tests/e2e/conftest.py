"""Organisations as real processes, for the tests that need them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.organisations import Nursery, Organisations
from e2e.typed import Typed

Make = Callable[..., Organisations]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """A process that has imported everything, and forks the others."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def make(tmp_path: Path, nursery: Nursery) -> Iterator[Make]:
    """Makes organisations whose processes end with the test."""
    opened = []

    def made(**settings: Any) -> Organisations:
        opened.append(Organisations(tmp_path, nursery, **settings))
        return opened[-1]

    yield made
    for item in opened:
        item.close()


@pytest.fixture
def typed(tmp_path: Path, nursery: Nursery) -> Iterator[Typed]:
    """Runs commands of a page; they end with the test."""
    opened = Typed(tmp_path, nursery)
    yield opened
    opened.close()
