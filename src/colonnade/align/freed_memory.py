"""Returning freed memory to the system, which C's allocator otherwise keeps."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

__all__ = ["give_back_memory"]


def give_back_memory() -> None:
    """Return freed pages to the system, where the C library can (glibc); called once per phase.

    Arrays of a million ids come and go in every phase, and glibc keeps blocks of up to 32 MB.
    """
    _trim()(0)


@functools.cache
def _trim() -> Callable[[int], object]:
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda _: None
    return trim
