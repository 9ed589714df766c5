"""A participant's half of private matching; ``matching`` has the label holder's."""

from __future__ import annotations

import functools
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from colonnade.align.files import MemoryPlace, PartyAlignment, Place, SecretState
from colonnade.align.group import (
    CHUNK,
    POINT_BYTES,
    SECRET_BYTES,
    Bytes,
    Indices,
    derive_order,
    derive_scalar,
    hash_and_multiply,
    multiply,
    require_group,
)
from colonnade.align.ids import PreparedIds
from colonnade.align.sealing import as_array, as_tensor, make_seal, sortable
from colonnade.align.terms import AlignPolicy, AlignSpec
from colonnade.core.errors import ConfigError, DataError, ProtocolError
from colonnade.core.respondent import Respondent
from colonnade.core.verbs import verb

__all__ = ["MAX_PARTICIPANTS", "NUM_CHECKS", "AlignParty"]

MAX_PARTICIPANTS = 20

# Points that everybody hides in its list; a wrong order that moves a share f of a list goes
# unnoticed with probability (1 - f) to this power.
NUM_CHECKS = 8

_SECONDS_PER_DAY = 86_400


class AlignParty(Respondent):
    """A participant's half: its ids, its scalar and the order of its rows never leave it."""

    def __init__(
        self,
        *,
        name: str,
        ids: PreparedIds,
        spec: AlignSpec,
        policy: AlignPolicy | None = None,
        place: Place | None = None,
        today: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(name=name)
        require_group()
        self.place: Place = place or MemoryPlace()
        self.alignment: PartyAlignment | None = None
        self._ids = ids
        self._spec = spec
        self._policy = policy or spec.policy
        self._today = today or (lambda: int(time.time()) // _SECONDS_PER_DAY)
        self._salt = spec.salt.encode()
        self._job: _Job | None = None

    @verb
    def terms(self, run: str, round_number: int) -> Tensor:
        """A tag of what this participant has agreed to, for the others to compare."""
        return as_tensor(self._terms(run, round_number))

    @verb
    def enter(self, run: str, round_number: int, tag: Tensor, resume: bool) -> int:
        """Begin an alignment, an extension, or one that was interrupted; gives the list's length.

        Nothing of an id leaves before the terms are the same and the policy allows it.
        """
        if not hmac.compare_digest(
            as_array(tag).tobytes(), self._terms(run, round_number).tobytes()
        ):
            raise ConfigError(
                f"align: party '{self.name}' has other terms than the label holder: compare salt, "
                "mode, labelled_only and key in both configurations"
            )
        self._policy.check_sizes({self.name: len(self._ids)}, self.name)
        # One that is resumed counts too: its lists could be other ones than before.
        days = self._policy.check_days(self.place.load_days(), self._today(), self.name)
        self.place.save_days(days)
        prepare = self._resumed if resume else self._begun
        state = prepare(self.place.load_state(), run, round_number)
        rows_of, new = self._entries(state)
        if resume and len(new):
            raise DataError(
                f"party '{self.name}': its ids have changed since the alignment was interrupted; "
                "align anew"
            )
        if not resume:
            prints = self._ids.ids.fingerprints(new, key=state.secret)
            state.prints = np.concatenate([state.prints, prints]) if len(state.prints) else prints
            state.numbers = np.concatenate([state.numbers, np.full(len(new), -1, np.int64)])
            state.ends.append(len(state.prints))
            state.passed.append(0)
            self.place.save_state(state)
        self._job = _Job(state, rows_of)
        return self._job.length

    @verb
    def admit(self, sizes: Mapping[str, float], label_holder: str) -> None:
        """Hear how long everybody's list is, and refuse one that is too long."""
        job = self._current()
        lengths = {name: int(size) for name, size in sizes.items()}
        if job.lengths or not {self.name, label_holder} <= lengths.keys():
            raise ProtocolError(
                f"party '{self.name}': the lists' lengths are told once, all of them"
            )
        if len(lengths) > MAX_PARTICIPANTS:
            raise ProtocolError(f"{len(lengths)} lists; at most {MAX_PARTICIPANTS} can be aligned")
        self._policy.check_sizes(
            {name: size - NUM_CHECKS for name, size in lengths.items()}, self.name
        )
        job.lengths, job.label_holder = lengths, label_holder
        job.state.passed[-1] = lengths[label_holder]
        self.place.save_state(job.state)

    @verb
    def offer(self, start: int, count: int) -> Mapping[str, Tensor]:
        """Some of the own list: hashed, blinded with the own scalar, in a secret order."""
        job = self._current()
        state = job.state
        items = job.order[start : start + count]
        first = len(job.rows_of) - job.num_ids
        texts = [
            b"id\0" + self._ids.ids.encoded(job.rows_of[first + item])
            if item < job.num_ids
            else f"check\0{state.run} {state.round} {item - job.num_ids}".encode()
            for item in items.tolist()
        ]
        points = hash_and_multiply(texts, self._salt, job.scalar)
        return self._sealed(self.name, 0, start, points)

    @verb
    def blind(
        self, owner: str, hop: int, start: int, points: Tensor, seal: Tensor
    ) -> Mapping[str, Tensor]:
        """Multiply some of another's list by the own scalar, in the same order."""
        if self._spec.mode == "intersection" and owner == self._current().label_holder:
            raise ProtocolError(
                f"party '{self.name}': in an intersection the label holder must not follow its own "
                "list; it is shuffled"
            )
        return self._sealed(owner, hop, start, self._multiplied(owner, hop, start, points, seal))

    @verb
    def absorb(self, owner: str, hop: int, start: int, points: Tensor, seal: Tensor) -> None:
        """Multiply some of the label holder's list, to be given back in another order."""
        job = self._current()
        if owner != job.label_holder:
            raise ProtocolError(f"party '{self.name}' shuffles the label holder's list only")
        if job.held is None:
            job.held = np.zeros((job.lengths[owner], POINT_BYTES), np.uint8)
        product = self._multiplied(owner, hop, start, points, seal)
        job.held[start : start + len(product)] = product

    @verb
    def release(self, owner: str, hop: int, start: int, count: int) -> Mapping[str, Tensor]:
        """Some of the label holder's list in this party's own secret order."""
        job = self._current()
        if job.held is None or owner != job.label_holder:
            raise ProtocolError(f"party '{self.name}' has no list of '{owner}' to give back")
        return self._sealed(owner, hop, start, job.held[job.shuffle(-1)[start : start + count]])

    @verb
    def locate(self) -> Mapping[str, Tensor]:
        """Where the check points are in the own list; asked for when all lists are blinded."""
        job = self._current()
        job.held = None
        places = np.argsort(job.order)[job.num_ids :]
        return self._sealed(self.name, -1, 0, places)

    @verb
    def trace(
        self, round_number: int, hop: int, positions: Tensor, seal: Tensor
    ) -> Mapping[str, Tensor]:
        """Undo the own shuffle of the label holder's list, for samples that all have."""
        job = self._current()
        wanted = as_array(positions)
        self._check(seal, job.label_holder, -2 - hop, round_number, wanted)
        job.num_traced += len(wanted)
        if job.num_traced > len(job.state.prints):
            raise ProtocolError(
                f"party '{self.name}' was asked to trace {job.num_traced} samples and has only "
                f"{len(job.state.prints)}; those can't be in the intersection"
            )
        if not 0 <= round_number < len(job.state.passed):
            raise ProtocolError(f"party '{self.name}': there is no round {round_number}")
        back = _taken(job.shuffle(round_number), wanted)
        return self._sealed(job.label_holder, -1 - hop, round_number, back)

    @verb
    def assign(self, positions: Tensor, numbers: Tensor, seal: Tensor) -> None:
        """Sample numbers of own ids, by where they were in the lists that this party sent."""
        job = self._current()
        where, found = as_array(positions), as_array(numbers)
        self._check(seal, self.name, -30, 0, where, found)
        job.state.numbers[job.entry_of(where)] = found

    @verb
    def describe(self, start: int, presence: Tensor, seal: Tensor) -> None:
        """Some of the presence table: one bit per participant."""
        job = self._current()
        bits = as_array(presence)
        self._check(seal, self.name, -31, start, bits)
        if start != sum(map(len, job.bits)):
            raise ProtocolError(f"party '{self.name}': a piece of the presence table is missing")
        job.bits.append(bits.astype(np.int32))

    @verb
    def conclude(self, num_samples: int) -> Tensor:
        """The digest of what all should have in common."""
        job = self._current()
        bits = np.concatenate([np.zeros(0, np.int32), *job.bits])
        own = 1 << sorted(job.lengths).index(self.name)
        numbers = job.state.numbers
        found = np.sort(numbers[numbers >= 0])
        if len(bits) != num_samples or not np.array_equal(np.flatnonzero(bits & own), found):
            raise ProtocolError(
                f"party '{self.name}': {len(found)} of its ids have a sample number, and the "
                f"presence table of {len(bits)} samples says otherwise; align again"
            )
        job.table = bits
        job.digest = self._digest(job, bits)
        return as_tensor(np.frombuffer(job.digest, dtype=np.uint8))

    @verb
    def commit(self, digest: Tensor) -> None:
        """Keep the alignment, now that everybody's digest is the same."""
        job = self._current()
        if job.table is None or as_array(digest).tobytes() != job.digest:
            raise ProtocolError(
                f"party '{self.name}' has another digest than the label holder; align again"
            )
        state = job.state
        state.finished, state.digest = True, job.digest.hex()
        names = sorted(job.lengths)
        entries = np.flatnonzero(state.numbers >= 0)
        entries = entries[np.argsort(state.numbers[entries], kind="stable")]
        self.alignment = PartyAlignment(
            participant=self.name,
            names=tuple(names),
            label_holder=job.label_holder,
            mode=self._spec.mode,
            run=state.run,
            round=state.round,
            num_samples=len(job.table),
            numbers=state.numbers[entries],
            rows=self._ids.rows[job.rows_of[entries]],
            presence=_columns(job.table, len(names)),
            digest=state.digest,
        )
        self.place.save_alignment(self.alignment)
        self.place.save_state(state)
        self._job = None

    def _current(self) -> _Job:
        if self._job is None:
            raise ProtocolError(f"party '{self.name}': no alignment has begun here")
        return self._job

    def _terms(self, run: str, round_number: int) -> Bytes:
        content = f"terms\0{run}\0{round_number}\0{self._spec.agreed}"
        return np.frombuffer(hmac.digest(self._salt, content.encode(), "sha256"), dtype=np.uint8)

    def _begun(self, state: SecretState | None, run: str, round_number: int) -> SecretState:
        """A fresh key, or the one of the alignment that is to be extended."""
        if round_number == 0:
            return SecretState(run=run, secret=secrets.token_bytes(SECRET_BYTES))
        if state is None or state.run != run:
            raise ProtocolError(
                f"party '{self.name}' does not have the alignment that is to be extended; align "
                "anew"
            )
        if not state.finished and state.round == round_number:
            # An extension that was interrupted, and is begun again rather than resumed.
            end = state.ends[round_number - 1]
            state.prints, state.numbers = state.prints[:end], state.numbers[:end]
            state.ends, state.passed = state.ends[:round_number], state.passed[:round_number]
        elif not state.finished or state.round != round_number - 1:
            raise ProtocolError(
                f"party '{self.name}' is at round {state.round} of this alignment, and the label "
                f"holder begins round {round_number}; align anew"
            )
        state.round, state.finished = round_number, False
        return state

    def _resumed(self, state: SecretState | None, run: str, round_number: int) -> SecretState:
        if state is None or (state.run, state.round) != (run, round_number):
            raise ProtocolError(
                f"party '{self.name}' has nothing of the alignment that was interrupted; align anew"
            )
        return state

    def _entries(self, state: SecretState) -> tuple[Indices, Indices]:
        """Where each id that was ever sent is now, followed by the new ones; and the new ones."""
        everything = np.arange(len(self._ids), dtype=np.int64)
        if not len(state.prints):
            return everything, everything
        known = sortable(state.prints)
        order = np.argsort(known, kind="stable")
        prints = sortable(self._ids.ids.fingerprints(range(len(self._ids)), key=state.secret))
        place = np.minimum(np.searchsorted(known, prints, sorter=order), len(known) - 1)
        is_known = known[order[place]] == prints
        if int(is_known.sum()) < len(known):
            raise DataError(
                f"party '{self.name}': {len(known) - int(is_known.sum())} ids of the earlier "
                "alignment are no longer in its table; an extension only adds, so align anew"
            )
        rows_of = np.empty(len(known), dtype=np.int64)
        rows_of[order[place[is_known]]] = everything[is_known]
        new = everything[~is_known]
        return np.concatenate([rows_of, new]), new

    def _multiplied(self, owner: str, hop: int, start: int, points: Tensor, seal: Tensor) -> Bytes:
        """Check what came, and multiply it; a place in a list is answered for one content only."""
        job = self._current()
        array = as_array(points)
        if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != POINT_BYTES:
            raise ProtocolError(f"'{owner}': points of shape {tuple(array.shape)}, not (n, 32)")
        self._check(seal, owner, hop - 1, start, array)
        whole = start >= 0 and start % CHUNK == 0 and len(array) <= CHUNK
        if owner == self.name or not whole or start + len(array) > job.lengths.get(owner, 0):
            raise ProtocolError(
                f"party '{self.name}' was asked to blind ids {start} to {start + len(array)} of "
                f"'{owner}', whose list has {job.lengths.get(owner, 0)}"
            )
        before = job.answered.setdefault((owner, start), as_array(seal).tobytes())
        if before != as_array(seal).tobytes():
            raise ProtocolError(f"party '{self.name}' has blinded that part of '{owner}' already")
        return multiply(array, job.scalar)

    def _sealed(self, owner: str, hop: int, start: int, content: Any) -> dict[str, Tensor]:
        state = self._current().state
        seal = make_seal(state.run, state.round, owner, hop, start, content)
        return {"content": as_tensor(content), "seal": as_tensor(seal)}

    def _check(self, seal: Tensor, owner: str, hop: int, start: int, *content: Any) -> None:
        state = self._current().state
        if as_array(seal).tobytes() != make_seal(
            state.run, state.round, owner, hop, start, *content
        ):
            raise ProtocolError(
                f"party '{self.name}': what came of the list of '{owner}' (from {start}) is not "
                "what was sent: cut, permuted or changed on its way; run the alignment again"
            )

    def _digest(self, job: _Job, bits: Any) -> bytes:
        content = json.dumps(
            [job.state.run, job.state.round, sorted(job.lengths), job.label_holder]
        )
        text = f"alignment\0{self._spec.agreed}\0{content}\0".encode()
        return hmac.digest(self._salt, text + bits.astype("<i4").tobytes(), "sha256")


class _Job:
    """One round of an alignment at one participant."""

    def __init__(self, state: SecretState, rows_of: Indices) -> None:
        self.state = state
        # For every id that was ever sent, its place among the ids now.
        self.rows_of = rows_of
        self.scalar = derive_scalar(state.secret, "scalar")
        self.num_ids = _num_ids(state, -1)
        self.length = self.num_ids + NUM_CHECKS
        self.order = derive_order(state.secret, f"order {state.round}", self.length)
        self.lengths: dict[str, int] = {}
        self.label_holder = ""
        self._shuffle: tuple[int, Indices] | None = None
        self.held: Bytes | None = None
        self.answered: dict[tuple[str, int], bytes] = {}
        self.num_traced = 0
        self.bits: list[Any] = []
        self.table: Any = None
        self.digest = b""

    def shuffle(self, round_number: int) -> Indices:
        """The own secret order of the label holder's list in a round (-1: this one)."""
        number = range(len(self.state.passed))[round_number]
        if self._shuffle is None or self._shuffle[0] != number:
            length = self.state.passed[number]
            order = derive_order(self.state.secret, f"shuffle {number}", length)
            self._shuffle = (number, order)
        return self._shuffle[1]

    def entry_of(self, positions: Indices) -> Indices:
        """Which entries were at these positions of the lists of all rounds, end to end."""
        found = _taken(self._entries, positions)
        if (found < 0).any():
            raise ProtocolError("a check point was given a sample number; align again")
        return found

    @functools.cached_property
    def _entries(self) -> Indices:
        entries = []
        for number, end in enumerate(self.state.ends):
            size = _num_ids(self.state, number)
            order = derive_order(self.state.secret, f"order {number}", size + NUM_CHECKS)
            entries.append(np.where(order < size, order + end - size, -1))
        return np.concatenate(entries)


def _taken(values: Indices, positions: Indices) -> Indices:
    """Values at positions, none of which may be outside."""
    if positions.ndim != 1 or (
        len(positions) and not 0 <= positions.min() <= positions.max() < len(values)
    ):
        raise ProtocolError(f"a position is outside a list of {len(values)}; align again")
    taken: Indices = values[positions]
    return taken


def _columns(bits: Any, num_columns: int) -> Any:
    """Bits as a table of their own, one column per participant."""
    table = np.empty((len(bits), num_columns), dtype=bool)
    for place in range(num_columns):
        table[:, place] = bits >> place & 1
    return table


def _num_ids(state: SecretState, round_number: int) -> int:
    """How many ids were new in a round."""
    ends = [0, *state.ends]
    number = range(len(state.ends))[round_number]
    return ends[number + 1] - ends[number]
