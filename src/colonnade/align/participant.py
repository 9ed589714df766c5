"""A participant's half of private matching: its verbs. ``matching`` has the label holder's half."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from colonnade.align.alignment_file import PartyAlignment
from colonnade.align.counting import Count, MemoryCount
from colonnade.align.freed_memory import give_back_memory
from colonnade.align.group import (
    CHUNK,
    MOST_IDS,
    POINT_BYTES,
    Bytes,
    hash_and_multiply,
    multiply,
    require_group,
)
from colonnade.align.ids import PreparedIds
from colonnade.align.participant_files import MemoryStore, Store
from colonnade.align.participant_round import (
    NUM_CHECKS,
    ParticipantRound,
    begin_round,
    find_entries,
    resume_round,
    values_at,
)
from colonnade.align.sealing import as_array, as_tensor, make_seal, position_in_rounds
from colonnade.align.terms import AlignPolicy, AlignSpec
from colonnade.core.errors import ConfigError, DataError, ProtocolError
from colonnade.core.messages import Call, Reply
from colonnade.core.respondent import Respondent
from colonnade.core.verbs import verb

__all__ = ["MAX_PARTICIPANTS", "AlignParty"]

MAX_PARTICIPANTS = 20

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
        store: Store | None = None,
        count: Count | None = None,
        today: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(name=name)
        require_group()
        self.store: Store = store or MemoryStore()
        self.alignment: PartyAlignment | None = None
        self._count: Count = count or MemoryCount()
        self._ids = ids
        self._spec = spec
        self._policy = policy or spec.policy
        self._today = today or (lambda: int(time.time()) // _SECONDS_PER_DAY)
        self._salt = spec.salt.encode()
        self._job: ParticipantRound | None = None

    def execute(self, call: Call) -> Reply:
        """Execute one call, and return the memory that it needed."""
        reply = super().execute(call)
        give_back_memory()
        return reply

    @verb
    def terms(self, run: str, round_number: int) -> Tensor:
        """A tag of the terms that this participant has, for the others to compare."""
        return as_tensor(self._terms(run, round_number))

    @verb
    def enter(self, run: str, round_number: int, tag: Tensor, resume: bool) -> int:
        """Begin, extend or resume an alignment; returns the length of the own list.

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
        # A resumed alignment counts too: the others' lists may differ from the earlier ones.
        self._count.admit(self._policy, self._today(), self.name)
        prepare = resume_round if resume else begin_round
        state = prepare(self.store.load_state(), run, round_number, self.name)
        sent = self.store.load_prints(state)
        rows_of, new = find_entries(self._ids, sent, state.secret, self.name)
        if resume and len(new):
            raise DataError(
                f"party '{self.name}': its ids have changed since the alignment was interrupted; "
                "align anew"
            )
        if not resume:
            prints = self._ids.ids.fingerprints(new, key=state.secret)
            prints = np.concatenate([sent, prints]) if len(sent) else prints
            self.store.save_prints(state, prints)
            state.numbers = np.concatenate([state.numbers, np.full(len(new), -1, np.int32)])
            state.ends.append(len(prints))
            state.passed.append(0)
            self.store.save_state(state)
            del prints
        del sent
        self._job = ParticipantRound(state, rows_of)
        return self._job.length

    @verb
    def admit(self, sizes: Mapping[str, float], label_holder: str) -> None:
        """Take the lengths of all lists, and refuse one that is too long."""
        job = self._current()
        lengths = {name: int(size) for name, size in sizes.items()}
        if job.lengths or not {self.name, label_holder} <= lengths.keys():
            raise ProtocolError(
                f"party '{self.name}': the lists' lengths are told once, all of them"
            )
        if len(lengths) > MAX_PARTICIPANTS:
            raise ProtocolError(f"{len(lengths)} lists; at most {MAX_PARTICIPANTS} can be aligned")
        if min(lengths.values()) < NUM_CHECKS or sum(lengths.values()) > MOST_IDS:
            raise ProtocolError(f"party '{self.name}' was told lists of impossible lengths")
        self._policy.check_sizes(
            {name: size - NUM_CHECKS for name, size in lengths.items()}, self.name
        )
        job.lengths, job.label_holder = lengths, label_holder
        job.state.passed[-1] = lengths[label_holder]
        self.store.save_state(job.state)

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
        """Multiply some of the label holder's list, for ``release`` in another order."""
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
        """The positions of the check points in the own list; for when all lists are blinded."""
        job = self._current()
        job.forget_list()
        at = np.flatnonzero(job.order >= job.num_ids)
        return self._sealed(self.name, -1, 0, at[np.argsort(job.order[at])])

    @verb
    def trace(
        self, round_number: int, hop: int, start: int, positions: Tensor, seal: Tensor
    ) -> Mapping[str, Tensor]:
        """Undo the own shuffle of the label holder's list, for samples that all have."""
        job = self._current()
        wanted = as_array(positions)
        where = position_in_rounds(round_number, start)
        self._check(seal, job.label_holder, -2 - hop, where, wanted)
        job.num_traced += len(wanted)
        if job.num_traced > job.state.ends[-1]:
            raise ProtocolError(
                f"party '{self.name}' was asked to trace {job.num_traced} samples and has only "
                f"{job.state.ends[-1]}; those can't be in the intersection"
            )
        if not 0 <= round_number < len(job.state.passed):
            raise ProtocolError(f"party '{self.name}': there is no round {round_number}")
        back = values_at(job.shuffle(round_number), wanted).astype(np.int64)
        return self._sealed(job.label_holder, -1 - hop, where, back)

    @verb
    def assign(self, positions: Tensor, numbers: Tensor, seal: Tensor) -> None:
        """Take sample numbers of own ids, by their positions in the lists that this party sent."""
        job = self._current()
        where, found = as_array(positions), as_array(numbers)
        self._check(seal, self.name, -30, 0, where, found)
        job.state.numbers[job.entry_of(where)] = found

    @verb
    def describe(self, start: int, presence: Tensor, seal: Tensor) -> None:
        """Take a piece of the presence table: one bit per participant."""
        job = self._current()
        bits = as_array(presence)
        self._check(seal, self.name, -31, start, bits)
        if start != sum(map(len, job.bits)):
            raise ProtocolError(f"party '{self.name}': a piece of the presence table is missing")
        job.bits.append(bits.astype(np.int32))

    @verb
    def conclude(self, num_samples: int) -> Tensor:
        """Check the presence table against the own numbers; returns the digest all must share."""
        job = self._current()
        bits = np.concatenate([np.zeros(0, np.int32), *job.bits])
        job.bits = []
        own = 1 << sorted(job.lengths).index(self.name)
        numbers = job.state.numbers
        num_found = int(np.count_nonzero(numbers >= 0))
        is_mine = np.zeros(len(bits) + 1, dtype=bool)
        is_mine[np.clip(numbers, -1, len(bits))] = True
        is_mine[-1] = bool((numbers >= len(bits)).any())
        # The own numbers must be exactly the samples that the table says are here.
        is_told = np.append(bits & own != 0, False)
        if (
            len(bits) != num_samples
            or not np.array_equal(is_mine, is_told)
            or np.count_nonzero(is_told) != num_found
        ):
            raise ProtocolError(
                f"party '{self.name}': {num_found} of its ids have a sample number, and the "
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
        row_of = np.full(len(job.table), -1, np.int32)
        entries = np.flatnonzero(state.numbers >= 0)
        row_of[state.numbers[entries]] = self._ids.rows[job.rows_of[entries]]
        del entries
        numbers = np.flatnonzero(row_of >= 0)
        self.alignment = PartyAlignment(
            participant=self.name,
            names=tuple(names),
            label_holder=job.label_holder,
            mode=self._spec.mode,
            run=state.run,
            round=state.round,
            num_samples=len(job.table),
            numbers=numbers,
            rows=row_of[numbers].astype(np.int64),
            presence=_columns(job.table, len(names)),
            digest=state.digest,
            table=self._ids.digest(state.run.encode()),
        )
        self.store.save_alignment(self.alignment)
        self.store.save_state(state)
        self._job = None

    def _current(self) -> ParticipantRound:
        if self._job is None:
            raise ProtocolError(f"party '{self.name}': no alignment has begun here")
        return self._job

    def _terms(self, run: str, round_number: int) -> Bytes:
        content = f"terms\0{run}\0{round_number}\0{self._spec.agreed}"
        return np.frombuffer(hmac.digest(self._salt, content.encode(), "sha256"), dtype=np.uint8)

    def _multiplied(self, owner: str, hop: int, start: int, points: Tensor, seal: Tensor) -> Bytes:
        """Check some points and multiply them; a position is answered for one content only."""
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

    def _digest(self, job: ParticipantRound, bits: Any) -> bytes:
        state = job.state
        content = json.dumps([state.run, state.round, sorted(job.lengths), job.label_holder])
        text = f"alignment\0{self._spec.agreed}\0{content}\0".encode()
        digest = hmac.new(self._salt, text, "sha256")
        digest.update(bits.astype("<i4"))
        return digest.digest()


def _columns(bits: Any, num_columns: int) -> Any:
    """Bits as a table of their own, one column per participant."""
    table = np.empty((len(bits), num_columns), dtype=bool)
    for place in range(num_columns):
        table[:, place] = bits >> place & 1
    return table
