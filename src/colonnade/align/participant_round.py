"""One round of an alignment at one participant: its keys, its orders, and what it was told.

A round begins with a new secret, extends an earlier alignment, or resumes an interrupted one.
"""

from __future__ import annotations

import functools
import secrets
from typing import Any

import numpy as np

from colonnade.align.group import SECRET_BYTES, Bytes, Indices, Numbers, derive_order, derive_scalar
from colonnade.align.ids import PreparedIds
from colonnade.align.participant_files import SecretState
from colonnade.align.sealing import sortable
from colonnade.core.errors import DataError, ProtocolError

__all__ = [
    "NUM_CHECKS",
    "ParticipantRound",
    "begin_round",
    "find_entries",
    "resume_round",
    "values_at",
]

# Check points that everybody hides in its list. A wrong order that moves a share f of a list goes
# unnoticed with probability (1 - f) to this power.
NUM_CHECKS = 8

# Ids that are looked up at the same time.
_AT_ONCE = 65_536


class ParticipantRound:
    """One round of an alignment at one participant."""

    def __init__(self, state: SecretState, rows_of: Numbers) -> None:
        self.state = state
        # For every id that was ever sent, its present position among the ids.
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
        """Free the label holder's list; its shuffle can be derived again."""
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
        """The entries at these positions of all rounds' lists, end to end."""
        found = values_at(self._entries, positions)
        if (found < 0).any():
            raise ProtocolError("a check point was given a sample number; align again")
        return found

    @functools.cached_property
    def _entries(self) -> Numbers:
        entries = []
        for number, end in enumerate(self.state.ends):
            size = num_ids_of(self.state, number)
            if number == self.state.round:
                # Changed in place below: check points were located before.
                order, self.order = self.order, self.order[:0]
            else:
                order = derive_order(self.state.secret, f"order {number}", size + NUM_CHECKS)
            is_check = order >= size
            order += end - size
            order[is_check] = -1
            entries.append(order)
        return entries[0] if len(entries) == 1 else np.concatenate(entries)


def values_at(values: Numbers, positions: Indices) -> Numbers:
    """Values at positions; a position outside is a ProtocolError."""
    if positions.ndim != 1 or (
        len(positions) and not 0 <= positions.min() <= positions.max() < len(values)
    ):
        raise ProtocolError(f"a position is outside a list of {len(values)}; align again")
    found: Numbers = values[positions]
    return found


def num_ids_of(state: SecretState, round_number: int) -> int:
    """The number of ids that were new in a round."""
    ends = [0, *state.ends]
    number = range(len(state.ends))[round_number]
    return ends[number + 1] - ends[number]


def begin_round(state: SecretState | None, run: str, round_number: int, party: str) -> SecretState:
    """The state for a new round: with a new key, or with that of the alignment to extend."""
    if round_number == 0:
        return SecretState(run=run, secret=secrets.token_bytes(SECRET_BYTES))
    if state is None or state.run != run:
        raise ProtocolError(
            f"party '{party}' does not have the alignment that is to be extended; align anew"
        )
    if not state.finished and state.round == round_number:
        # An extension that was interrupted, and is begun again rather than resumed.
        end = state.ends[round_number - 1]
        state.numbers = state.numbers[:end]
        state.ends, state.passed = state.ends[:round_number], state.passed[:round_number]
    elif not state.finished or state.round != round_number - 1:
        raise ProtocolError(
            f"party '{party}' is at round {state.round} of this alignment, and the label "
            f"holder begins round {round_number}; align anew"
        )
    state.round, state.finished = round_number, False
    return state


def resume_round(state: SecretState | None, run: str, round_number: int, party: str) -> SecretState:
    """The state of a round that was interrupted."""
    if state is None or (state.run, state.round) != (run, round_number):
        raise ProtocolError(
            f"party '{party}' has nothing of the alignment that was interrupted; align anew"
        )
    return state


def find_entries(
    ids: PreparedIds, prints_sent: Bytes, secret: bytes, party: str
) -> tuple[Numbers, Numbers]:
    """Present positions of all ids that were ever sent, then of new ones; and the new ones."""
    everything = np.arange(len(ids), dtype=np.int32)
    num_known = len(prints_sent)
    if not num_known:
        return everything, everything
    known = sortable(prints_sent)
    order = np.argsort(known, kind="stable")
    rows_of = np.full(num_known, -1, dtype=np.int32)
    is_new = np.ones(len(ids), dtype=bool)
    for begin in range(0, len(ids), _AT_ONCE):
        some = everything[begin : begin + _AT_ONCE]
        prints = sortable(ids.ids.fingerprints(some, key=secret))
        place = order[np.minimum(np.searchsorted(known, prints, sorter=order), num_known - 1)]
        is_known = known[place] == prints
        rows_of[place[is_known]] = some[is_known]
        is_new[some] = ~is_known
    num_gone = int(np.count_nonzero(rows_of < 0))
    if num_gone:
        raise DataError(
            f"party '{party}': {num_gone} ids of the earlier alignment are no longer in its table; "
            "an extension only adds, so align anew"
        )
    new = everything[is_new]
    return np.concatenate([rows_of, new]), new
