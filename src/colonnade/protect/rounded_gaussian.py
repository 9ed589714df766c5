"""The rounded Gaussian as a table: whole numbers, drawn exactly enough to put the error into δ.

A draw is round(s·Z) for a standard normal Z and s = ``STEPS`` steps a deviation. Whoever adds it to
a whole number x has round(x + s·Z): a Gaussian mechanism and a rounding after it, so the Gaussian's
privacy holds as it is. Floating point has no part in it: a uniform number of 128 bits falls between
two thresholds, which are known to the last of 128 bits. Decision 0015 has the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

__all__ = [
    "ERROR_OF_A_DRAW",
    "STEPS",
    "Array",
    "Table",
    "rounded_gaussian",
    "rounded_gaussian_table",
]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

STEPS = 64
# Beyond this, a Gaussian has less than 2^-129 of its mass on either side.
_FARTHEST = 13.3 * STEPS
_BITS = 128
# The first bits of a uniform number find nearly every draw; few need the rest.
_FIRST_BITS = 16
_UNDECIDED = np.int16(-(2**15))
# Total variation between a draw and the rounded Gaussian: each of the table's thresholds is off by
# 2^-129 at most, and the two tails beyond the last are less than that.
ERROR_OF_A_DRAW = (2 * math.ceil(_FARTHEST) + 2) * 2.0**-_BITS

# Thresholds are computed with so many bits more: each of some 10^5 operations loses one unit.
_SPARE_BITS = 64
_PI_DIGITS = 70
_PI = int("31415926535897932384626433832795028841971693993751058209749445923078164")


class Table(NamedTuple):
    """Thresholds of a uniform number of 128 bits, and what its first 16 bits decide alone."""

    # Ascending; a number that reaches n of them is the draw ``least`` + n.
    thresholds: tuple[int, ...]
    # The upper 64 bits of each.
    upper: Array
    least: int
    decided: Array


def rounded_gaussian(first: Array, more: Callable[[int], bytes]) -> Array:
    """Draws from uniform bits.

    Args:
        first: 16 uniform bits a draw (uint16).
        more: Gives so many further uniform bytes; asked once, for 16 bytes a draw in need.

    Returns:
        Whole numbers (int16), one for each of ``first``.
    """
    known = rounded_gaussian_table()
    drawn = known.decided[first]
    open_ones = np.flatnonzero(drawn == _UNDECIDED)
    if len(open_ones):
        rest = np.frombuffer(more(16 * len(open_ones)), dtype="<u8").reshape(-1, 2)
        upper = first[open_ones].astype(np.uint64) << np.uint64(64 - _FIRST_BITS)
        upper |= rest[:, 0] >> np.uint64(_FIRST_BITS)
        reached = np.searchsorted(known.upper, upper, side="right")
        # As good as never: as far as 64 bits go it lies on a threshold, and the lower bits decide.
        for place in np.flatnonzero(known.upper[reached - 1] == upper).tolist():
            whole = int(upper[place]) << 64 | int(rest[place, 1])
            reached[place] = sum(whole >= threshold for threshold in known.thresholds)
        drawn[open_ones] = reached + known.least
    return drawn


@lru_cache(maxsize=1)
def rounded_gaussian_table() -> Table:
    """The table for ``STEPS``; it takes some milliseconds to make."""
    upper_half = _upper_half()
    # Φ(-x) = 1 - Φ(x): the two halves mirror each other.
    lower_half = [2**_BITS - item for item in reversed(upper_half)]
    every = [item for item in (*lower_half, *upper_half) if 0 < item < 2**_BITS]
    least = -(len(every) // 2)
    upper = np.array([item >> 64 for item in every], dtype=np.uint64)
    cells = np.arange(2**_FIRST_BITS, dtype=np.uint64) << np.uint64(64 - _FIRST_BITS)
    last = cells | np.uint64(2 ** (64 - _FIRST_BITS) - 1)
    # Thresholds at or below a cell's first number, and those at or below its last.
    low = np.searchsorted(upper, cells, side="left")
    high = np.searchsorted(upper, last, side="right")
    decided = np.where(low == high, low + least, _UNDECIDED).astype(np.int16)
    return Table(tuple(every), upper, least, decided)


def _upper_half() -> list[int]:
    """2^128 times the probability of a draw of at most 0, 1, 2, ..., to the nearest number.

    In fixed point, by Taylor's series of φ from one half step to the next: φ(x + t) =
    φ(x) Σ c_k t^k with (k + 1) c_k+1 = -x c_k - c_k-1.
    """
    half_steps = 2 * STEPS
    one = 2 ** (_BITS + _SPARE_BITS)
    density = math.isqrt(one**2 * 10**_PI_DIGITS // (2 * _PI))
    below, found = one // 2, []
    for place in range(2 * math.ceil(_FARTHEST) - 1):
        term, before, count, rise, area = density, 0, 0, 0, 0
        while abs(term) > 1 or abs(before) > 1:
            rise += term
            count += 1
            area += term // count
            term, before = -(place * term + before) // (count * half_steps**2), term
        density = rise
        below += area // half_steps
        if place % 2 == 0:
            found.append((below + 2 ** (_SPARE_BITS - 1)) >> _SPARE_BITS)
    return found
