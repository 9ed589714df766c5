"""Private matching of ids: who has which sample, without showing who you know.

Every participant has a secret scalar of the group. A list of ids, hashed to the group, travels
through all participants, and each multiplies it by its own scalar. In the end every id is
H(id)·(a₁···a_K): equal ids are equal points, and nobody can make such a point alone.

The label holder drives it. Its own list visits all the others; theirs visit one another in a ring
and the label holder last. So nobody but the label holder sees two lists that can be compared, and
the label holder does not see in which order a party holds its rows: a party shuffles its list
before it leaves. In mode ``intersection`` the others shuffle the label holder's list as well, so
that it can't follow its own ids; those of the samples that all have are traced back afterwards.

What is found to be wrong: a message that was cut, permuted, repeated or changed between the one
that made it and the one that uses it (a seal over its content and its place); a participant that
answered with another key or in another order (check points, known to all and hidden at random
places of every list, must meet in the end); a list that holds a sample twice; alignments that
don't agree in the end (a digest).

docs/alignment.md says who learns what.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from colonnade.align.files import TAG_BYTES, HolderRecord, PointLists
from colonnade.align.group import CHUNK, Bytes, Indices
from colonnade.align.numbering import CHECK, number_samples
from colonnade.align.participant import MAX_PARTICIPANTS, NUM_CHECKS, AlignParty
from colonnade.align.sealing import as_array, as_rows, as_tensor, make_seal, sortable
from colonnade.align.terms import AlignSpec
from colonnade.core.errors import ConfigError, NoAnswer, PartyFailed, ProtocolError
from colonnade.core.messages import Call
from colonnade.core.parties import Each, Parties, each

__all__ = ["Overlap", "match"]

Progress = Callable[[int, int], None]

# Numbers per message.
_NUMBERS_CHUNK = 65536


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """What the label holder learns: sizes, and how many samples each combination has.

    ``combinations`` counts all samples, also those that were left out; the alignment has
    ``num_samples``. ``record`` is for extending it later.
    """

    names: tuple[str, ...]
    label_holder: str
    mode: str
    sizes: Mapping[str, int]
    combinations: Mapping[tuple[str, ...], int]
    num_samples: int
    num_complete: int
    digest: str
    record: HolderRecord = field(repr=False)


async def match(
    parties: Parties,
    *,
    spec: AlignSpec,
    own: AlignParty | None = None,
    label_holder: str | None = None,
    extend: HolderRecord | None = None,
    lists: PointLists | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Overlap:
    """Match everybody's ids, driven by the label holder; every participant keeps its alignment.

    ``own`` is the label holder's list of labelled ids, at its side; without it, ``label_holder``
    names the party whose block and labels are the label holder's own. ``extend`` is the record
    of an earlier alignment. With ``resume``, ``lists`` has what an interrupted one left.
    """
    with _Everyone(parties, own) as everyone:
        holder = own.name if own is not None else label_holder
        if holder is None or holder not in everyone.names:
            raise ConfigError(
                f"label_holder: '{holder}' is none of the participants {list(everyone.names)}"
            )
        required = set(parties.names)
        if spec.labelled_only:
            required.add(holder)
        matching = _Matching(everyone, spec, holder, frozenset(required), lists or PointLists())
        return await matching.run(extend, resume=resume, progress=progress)


class _Everyone:
    """All participants: parties through their links, the label holder's own list beside them."""

    def __init__(self, parties: Parties, own: AlignParty | None) -> None:
        names = list(parties.names) + ([own.name] if own else [])
        if len(set(names)) < len(names):
            raise ConfigError(f"party.{names[-1]}: the label holder's list needs a name of its own")
        if not 2 <= len(names) <= MAX_PARTICIPANTS:
            raise ConfigError(
                f"party: an alignment has 2 to {MAX_PARTICIPANTS} participants, got {len(names)}"
            )
        self.names = tuple(sorted(names))
        self._parties = parties
        self._own = own
        self._num_calls = 0
        # The label holder works on its own lists while the parties work on theirs.
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="colonnade-align-own")

    def __enter__(self) -> _Everyone:
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.shutdown()

    async def ask(
        self, name_of_verb: str, *arguments: Any, among: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Ask some or all; answers in the order of names."""
        chosen = set(self.names if among is None else among)
        own = self._own
        mine = None
        if own is not None and own.name in chosen:
            chosen.discard(own.name)
            mine = self._beside.submit(self._ask_own, own, name_of_verb, arguments)
        answers = await self._parties.ask(name_of_verb, *arguments, among=chosen) if chosen else {}
        if silent := sorted(chosen - answers.keys()):
            raise NoAnswer(
                f"no answer from {silent} to '{name_of_verb}'; an alignment needs everybody",
                parties=tuple(silent),
            )
        if own is not None and mine is not None:
            answers[own.name] = mine.result()
        return {name: answers[name] for name in self.names if name in answers}

    def _ask_own(self, own: AlignParty, name_of_verb: str, arguments: tuple[Any, ...]) -> Any:
        values = tuple(
            item.by_party[own.name] if isinstance(item, Each) else item for item in arguments
        )
        self._num_calls += 1
        reply = own.execute(Call(self._num_calls, own.name, name_of_verb, values, 0, True))
        if reply.failure is not None:
            raise PartyFailed(
                f"'{own.name}' failed ({name_of_verb}): {reply.failure.message}", party=own.name
            ) from reply.failure.cause
        return reply.value


class _Matching:
    """The label holder's half of one round."""

    def __init__(
        self,
        everyone: _Everyone,
        spec: AlignSpec,
        holder: str,
        required: frozenset[str],
        lists: PointLists,
    ) -> None:
        self._everyone = everyone
        self._names = everyone.names
        self._spec = spec
        self._holder = holder
        self._required = required
        self._lists = lists
        self._ring = [name for name in self._names if name != holder]
        self._shuffles = spec.mode == "intersection"
        self._run = ""
        self._round = 0
        self._sizes: dict[str, int] = {}
        self._progress: Progress | None = None
        self._num_blinded = 0
        self._checks: Bytes = np.zeros((0, TAG_BYTES), np.uint8)

    async def run(
        self, earlier: HolderRecord | None, *, resume: bool, progress: Progress | None
    ) -> Overlap:
        """Blind, compare, number, tell."""
        self._progress = progress
        if earlier is not None and (earlier.names, earlier.label_holder) != (
            self._names,
            self._holder,
        ):
            raise ConfigError(
                f"the earlier alignment was between {list(earlier.names)}, this one is between "
                f"{list(self._names)}; align anew"
            )
        await self._begin(earlier, resume)
        await self._blind()
        record = self._joined(earlier, await self._checked_tags())
        presence, combinations = number_samples(record, self._needed)
        await self._tell(earlier, record, presence)
        digest = await self._agree(record.num_samples)
        complete = sum(1 << self._names.index(name) for name in self._required)
        return Overlap(
            names=self._names,
            label_holder=self._holder,
            mode=self._spec.mode,
            sizes={
                name: record.ends[name][-1] - NUM_CHECKS * len(record.ends[name])
                for name in self._names
            },
            combinations=combinations,
            num_samples=record.num_samples,
            num_complete=int(np.count_nonzero(presence & complete == complete)),
            digest=digest,
            record=record,
        )

    @property
    def _needed(self) -> frozenset[str]:
        """Who must have a sample for it to be numbered."""
        if self._spec.mode == "intersection":
            return self._required
        return frozenset({self._holder} if self._spec.labelled_only else ())

    async def _begin(self, earlier: HolderRecord | None, resume: bool) -> None:
        self._round = 0 if earlier is None else earlier.round + 1
        self._run = secrets.token_hex(16) if earlier is None else earlier.run
        if resume:
            left = self._lists.unfinished()
            if left is None:
                raise ConfigError("resume: no alignment was interrupted here; leave it out")
            if left["round"] != self._round:
                raise ConfigError("resume: the last alignment here is finished; leave it out")
            self._run = left["run"]
        tag = (await self._everyone.ask("terms", self._run, self._round, among={self._holder: 0}))[
            self._holder
        ]
        self._sizes = await self._everyone.ask("enter", self._run, self._round, tag, resume)
        await self._everyone.ask(
            "admit", {name: float(size) for name, size in self._sizes.items()}, self._holder
        )
        self._lists.begin(self._run, self._round, self._sizes, resume=resume)

    async def _blind(self) -> None:
        """Every list through everybody; see the module's docstring for the way that each takes."""
        ring, holder = self._ring, self._holder
        await self._pass({name: name for name in self._names}, 0, "offer")
        for hop in range(1, len(ring)):
            await self._pass(
                {ring[(place + hop) % len(ring)]: owner for place, owner in enumerate(ring)}, hop
            )
        for hop, at in enumerate(ring, start=1):
            await self._pass({at: holder}, hop, "shuffle" if self._shuffles else "blind")
        for owner in ring:
            await self._pass({holder: owner}, len(ring))

    async def _pass(self, owners: Mapping[str, str], hop: int, how: str = "blind") -> None:
        """Lists through one hop each, chunk by chunk; ``owners`` says whose list is at whom."""
        if how == "shuffle":
            await self._absorb(owners, hop)
        starts = {at: self._lists.num_done(owner, hop) for at, owner in owners.items()}
        self._moved(sum(starts.values()) if how != "shuffle" else 0)
        while starts := {at: n for at, n in starts.items() if n < self._sizes[owners[at]]}:
            counts = {at: min(CHUNK, self._sizes[owners[at]] - n) for at, n in starts.items()}
            if how == "offer":
                replies = await self._everyone.ask(
                    "offer", each(starts), each(counts), among=counts
                )
            elif how == "shuffle":
                replies = await self._everyone.ask(
                    "release", each(owners), hop, each(starts), each(counts), among=counts
                )
            else:
                points = self._outgoing(owners, hop, starts, counts)
                replies = await self._everyone.ask(
                    "blind", each(owners), hop, each(starts), *points, among=counts
                )
            for at, reply in replies.items():
                owner, start = owners[at], starts[at]
                points_back = self._opened(at, reply, owner, hop, start, counts[at])
                self._lists.append(owner, hop, points_back)
                starts[at] = start + counts[at]
                self._moved(counts[at] if how != "shuffle" else 0)

    async def _absorb(self, owners: Mapping[str, str], hop: int) -> None:
        """Give one party all of the label holder's list before it gives any of it back."""
        ((at, owner),) = owners.items()
        if self._lists.num_done(owner, hop) == self._sizes[owner]:
            self._moved(self._sizes[owner])
            return
        for start in range(0, self._sizes[owner], CHUNK):
            counts = {at: min(CHUNK, self._sizes[owner] - start)}
            points = self._outgoing(owners, hop, {at: start}, counts)
            await self._everyone.ask("absorb", owner, hop, start, *points, among=counts)
            self._moved(counts[at])

    def _outgoing(
        self,
        owners: Mapping[str, str],
        hop: int,
        starts: Mapping[str, int],
        counts: Mapping[str, int],
    ) -> tuple[Each, Each]:
        points = {
            at: self._lists.read(owners[at], hop - 1, starts[at], count)
            for at, count in counts.items()
        }
        seals = {
            at: as_tensor(make_seal(self._run, self._round, owners[at], hop - 1, starts[at], item))
            for at, item in points.items()
        }
        return each({at: as_tensor(item) for at, item in points.items()}), each(seals)

    def _opened(
        self, at: str, reply: Mapping[str, Tensor], owner: str, hop: int, start: int, count: int
    ) -> Any:
        """What a participant sent, if it is whole."""
        content, seal = as_array(reply["content"]), as_array(reply["seal"])
        if len(content) != count:
            raise ProtocolError(
                f"party '{at}' sent {len(content)} of {count} ids of '{owner}' (from {start}, hop "
                f"{hop}): the reply was cut; run the alignment again"
            )
        if seal.tobytes() != make_seal(self._run, self._round, owner, hop, start, content):
            raise ProtocolError(
                f"party '{at}': what came of the list of '{owner}' (from {start}, hop {hop}) is "
                "not what was sent: permuted or changed on its way; run the alignment again"
            )
        return content

    def _moved(self, count: int) -> None:
        self._num_blinded += count
        if self._progress is not None:
            self._progress(self._num_blinded, sum(self._sizes.values()) * len(self._names))

    async def _checked_tags(self) -> dict[str, Bytes]:
        """The fully blinded lists' tags; the check points in them must meet."""
        tags = {name: self._tags(name) for name in self._names}
        replies = await self._everyone.ask("locate")
        met: dict[str, list[bytes]] = {}
        for name, reply in replies.items():
            places = self._opened(name, reply, name, -1, 0, NUM_CHECKS)
            if name == self._holder and self._shuffles:
                continue
            if len(places) and not (places.min() >= 0 and places.max() < self._sizes[name]):
                raise ProtocolError(f"party '{name}': its check points are outside its list")
            met[name] = [tags[name][place].tobytes() for place in places]
        first = next(iter(met))
        for name in self._names:
            expected = met[first]
            found = met.get(name)
            if found is None:
                hidden = as_rows(expected)
                is_there = np.isin(sortable(hidden), sortable(tags[name]))
                found = [tag for tag, there in zip(expected, is_there, strict=True) if there]
            if found != expected:
                raise ProtocolError(
                    f"the check points of '{first}' and '{name}' don't meet: a participant used "
                    "another key or changed an order on the way; run the alignment again"
                )
        self._checks = as_rows(met[first])
        self._lists.forget()
        return tags

    def _tags(self, name: str) -> Bytes:
        """The beginnings of a fully blinded list's points."""
        size = self._sizes[name]
        tags = np.empty((size, TAG_BYTES), np.uint8)
        for start in range(0, size, CHUNK):
            points = self._lists.read(name, len(self._ring), start, CHUNK)
            tags[start : start + CHUNK] = points[:, :TAG_BYTES]
        return tags

    def _joined(self, earlier: HolderRecord | None, tags: Mapping[str, Bytes]) -> HolderRecord:
        """The record so far with this round's lists; check points have no number and no tag."""
        record = HolderRecord(
            run=self._run,
            round=self._round,
            names=self._names,
            label_holder=self._holder,
            num_samples=0 if earlier is None else earlier.num_samples,
            tags={},
            numbers={},
            ends={},
        )
        for name, fresh in tags.items():
            numbers = np.full(len(fresh), -1, np.int64)
            is_check = np.isin(sortable(fresh), sortable(self._checks))
            numbers[is_check] = CHECK
            if earlier is not None:
                fresh = np.concatenate([earlier.tags[name], fresh])
                numbers = np.concatenate([earlier.numbers[name], numbers])
            record.tags[name], record.numbers[name] = fresh, numbers
            record.ends[name] = [*(earlier.ends[name] if earlier else ()), len(fresh)]
        return record

    async def _tell(
        self, earlier: HolderRecord | None, record: HolderRecord, presence: Indices
    ) -> None:
        """Everybody its own sample numbers, and the presence table."""
        for name in self._names:
            numbers = record.numbers[name]
            before = np.full(len(numbers), -1, np.int64)
            if earlier is not None:
                before[: len(earlier.numbers[name])] = earlier.numbers[name]
            positions = np.flatnonzero((numbers >= 0) & (numbers != before)).astype(np.int64)
            found = numbers[positions]
            if name == self._holder and self._shuffles:
                positions, found = await self._traced(record, positions)
            for start in range(0, len(positions), _NUMBERS_CHUNK):
                piece = positions[start : start + _NUMBERS_CHUNK]
                number = found[start : start + _NUMBERS_CHUNK]
                seal = make_seal(self._run, self._round, name, -30, 0, piece, number)
                await self._everyone.ask(
                    "assign", as_tensor(piece), as_tensor(number), as_tensor(seal), among={name: 0}
                )
        bits = presence.astype(np.int32)
        for start in range(0, len(bits), _NUMBERS_CHUNK):
            some = bits[start : start + _NUMBERS_CHUNK]
            seals = {
                name: as_tensor(make_seal(self._run, self._round, name, -31, start, some))
                for name in self._names
            }
            await self._everyone.ask("describe", start, as_tensor(some), each(seals))

    async def _traced(self, record: HolderRecord, positions: Indices) -> tuple[Indices, Indices]:
        """Where the label holder had these ids before the others shuffled its list."""
        begin = 0
        traced, numbers = [positions[:0]], [positions[:0]]
        for number, end in enumerate(record.ends[self._holder]):
            inside = positions[(positions >= begin) & (positions < end)]
            back = inside - begin
            for hop in range(len(self._ring), 0, -1):
                if not len(back):
                    break
                at = self._ring[hop - 1]
                seal = make_seal(self._run, self._round, self._holder, -2 - hop, number, back)
                reply = await self._everyone.ask(
                    "trace", number, hop, as_tensor(back), as_tensor(seal), among={at: 0}
                )
                back = self._back(at, reply[at], hop, number, len(back))
            traced.append(back + begin)
            numbers.append(record.numbers[self._holder][inside])
            begin = end
        return np.concatenate(traced), np.concatenate(numbers)

    def _back(
        self, at: str, reply: Mapping[str, Tensor], hop: int, round_number: int, count: int
    ) -> Indices:
        found: Indices = self._opened(at, reply, self._holder, -1 - hop, round_number, count)
        return found

    async def _agree(self, num_samples: int) -> str:
        """Have all compare the digest, and keep their alignments only if it is one."""
        digests = await self._everyone.ask("conclude", num_samples)
        mine: bytes = as_array(digests[self._holder]).tobytes()
        for name, digest in digests.items():
            if as_array(digest).tobytes() != mine:
                raise ProtocolError(
                    f"party '{name}' has another digest than '{self._holder}'; align again"
                )
        await self._everyone.ask("commit", digests[self._holder])
        return mine.hex()
