"""How a participant's own side goes from round to round: begun, extended, resumed."""

from __future__ import annotations

import secrets

import numpy as np

from colonnade.align.group import SECRET_BYTES, Bytes, Numbers
from colonnade.align.ids import PreparedIds
from colonnade.align.places import SecretState
from colonnade.align.sealing import sortable
from colonnade.core.errors import DataError, ProtocolError

__all__ = ["begin_round", "find_entries", "resume_round"]

# Ids that are looked up at one time.
_AT_ONCE = 65_536


def begin_round(state: SecretState | None, run: str, round_number: int, party: str) -> SecretState:
    """A fresh key, or the one of the alignment that is to be extended."""
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
    """Where each id that was ever sent is now, followed by the new ones; and the new ones."""
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
