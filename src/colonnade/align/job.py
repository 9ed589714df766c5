"""One round of an alignment at one participant: its orders, its scalar, what it was told."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from colonnade.align.group import Bytes, Indices, Numbers, derive_order, derive_scalar
from colonnade.align.places import SecretState
from colonnade.core.errors import ProtocolError

__all__ = ["NUM_CHECKS", "Job", "taken"]

# Points that everybody hides in its list; a wrong order that moves a share f of a list goes
# unnoticed with probability (1 - f) to this power.
NUM_CHECKS = 8


class Job:
    """One round of an alignment at one participant."""

    def __init__(self, state: SecretState, rows_of: Numbers) -> None:
        self.state = state
        # For every id that was ever sent, its place among the ids now.
        self.rows_of = rows_of
        self.scalar = derive_scalar(state.secret, "scalar")
        self.num_ids = num_ids_of(state, -1)
        self.length = self.num_ids + NUM_CHECKS
        self.order = derive_order(state.secret, f"order {state.round}", self.length)
        self.lengths: dict[str, int] = {}
        self.label_holder = ""
        self._shuffle: tuple[int, Numbers] | None = None
        self.held: Bytes | None = None
        self.answered: dict[tuple[str, int], bytes] = {}
        self.num_traced = 0
        self.bits: list[Any] = []
        self.table: Any = None
        self.digest = b""

    def forget_list(self) -> None:
        """Let go of the label holder's list; how it was shuffled can be derived again."""
        self.held = self._shuffle = None

    def shuffle(self, round_number: int) -> Numbers:
        """The own secret order of the label holder's list in a round (-1: this one)."""
        number = range(len(self.state.passed))[round_number]
        if self._shuffle is None or self._shuffle[0] != number:
            length = self.state.passed[number]
            order = derive_order(self.state.secret, f"shuffle {number}", length)
            self._shuffle = (number, order)
        return self._shuffle[1]

    def entry_of(self, positions: Indices) -> Numbers:
        """Which entries were at these positions of the lists of all rounds, end to end."""
        found = taken(self._entries, positions)
        if (found < 0).any():
            raise ProtocolError("a check point was given a sample number; align again")
        return found

    @functools.cached_property
    def _entries(self) -> Numbers:
        entries = []
        for number, end in enumerate(self.state.ends):
            size = num_ids_of(self.state, number)
            if number == self.state.round:
                # Not needed in its first form again: check points were located before.
                order, self.order = self.order, self.order[:0]
            else:
                order = derive_order(self.state.secret, f"order {number}", size + NUM_CHECKS)
            is_check = order >= size
            order += end - size
            order[is_check] = -1
            entries.append(order)
        return entries[0] if len(entries) == 1 else np.concatenate(entries)


def taken(values: Numbers, positions: Indices) -> Numbers:
    """Values at positions, none of which may be outside."""
    if positions.ndim != 1 or (
        len(positions) and not 0 <= positions.min() <= positions.max() < len(values)
    ):
        raise ProtocolError(f"a position is outside a list of {len(values)}; align again")
    taken: Numbers = values[positions]
    return taken


def num_ids_of(state: SecretState, round_number: int) -> int:
    """How many ids were new in a round."""
    ends = [0, *state.ends]
    number = range(len(state.ends))[round_number]
    return ends[number + 1] - ends[number]
