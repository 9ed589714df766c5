"""A full disk without needing one: a limit on the size of files, as the system enforces it.

A write fails in its middle, as on a full disk: a part is taken, and the rest is an error.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

_LIMIT = resource.RLIMIT_FSIZE


@contextmanager
def full_disk(num_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes."""
    before = resource.getrlimit(_LIMIT)
    fill(num_bytes)
    try:
        yield
    finally:
        resource.setrlimit(_LIMIT, before)


def fill(num_bytes: int) -> None:
    """From now on no file of this process grows beyond so many bytes."""
    resource.setrlimit(_LIMIT, (num_bytes, resource.getrlimit(_LIMIT)[1]))


def make_room(pid: int) -> None:
    """End that for a process, from outside."""
    hard = resource.prlimit(pid, _LIMIT)[1]
    resource.prlimit(pid, _LIMIT, (hard, hard))
