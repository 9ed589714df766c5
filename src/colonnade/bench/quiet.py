"""Whether the machine is quiet, as far as its load average does not tell.

A virtual machine shares the last level of cache with others on the same host. While they fill it,
code of several processes takes up to twice as long, and a short loop takes as long as ever. How
long it takes to look up numbers all over 8 MB tells the two apart.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

__all__ = ["Quiet"]

# More than a core's own cache, less than the host's.
_NUM_NUMBERS, _NUM_LOOKS = 1 << 20, 300_000
# Times the quickest look: what counts as quiet.
_MOST_OF_LEAST = 1.5
_NUM_AT_FIRST, _PAUSE_SECONDS = 40, 0.5


class Quiet:
    """Waits until the machine is quiet, before something is measured.

    Args:
        patience_seconds: How long to wait at most, each time.
        look: Gives the seconds of one look; for tests.
        pause: Lets time pass; for tests.
    """

    def __init__(
        self,
        *,
        patience_seconds: float = 60.0,
        look: Callable[[], float] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.num_waits = 0
        self.num_disturbed = 0
        self._look, self._pause = look or _Looks().seconds, pause
        self._num_looks = round(patience_seconds / _PAUSE_SECONDS)
        self._least = min(self._look() for _ in range(_NUM_AT_FIRST))

    def wait(self) -> None:
        """Wait; what is measured without quiet, when patience is over, is counted."""
        for number in range(self._num_looks + 1):
            took = self._look()
            self._least = min(self._least, took)
            if took <= _MOST_OF_LEAST * self._least:
                self.num_waits += number > 0
                return
            if number < self._num_looks:
                self._pause(_PAUSE_SECONDS)
        self.num_disturbed += 1

    def told(self) -> dict[str, int]:
        """For a row of a bench: how often it waited, and how often that was in vain."""
        return {"waits_for_quiet": self.num_waits, "measured_without_quiet": self.num_disturbed}


class _Looks:
    def __init__(self) -> None:
        numbers = np.random.default_rng(0)
        self._numbers = numbers.integers(0, 1 << 30, _NUM_NUMBERS)
        self._places = numbers.permutation(_NUM_NUMBERS)[:_NUM_LOOKS]

    def seconds(self) -> float:
        """The median of a few."""
        found = []
        for _ in range(5):
            began = time.perf_counter()
            self._numbers[self._places]
            found.append(time.perf_counter() - began)
        return statistics.median(found)
