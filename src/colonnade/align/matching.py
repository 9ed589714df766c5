"""Private matching of ids (PSI): which participant has which sample, without showing ids.

Every participant has a secret scalar of the group. A list of ids, hashed to the group, travels
through all participants, and each multiplies it by its own scalar. In the end every id is
H(id)·(a₁···a_K): equal ids are equal points, and nobody can make such a point alone.

The label holder drives the matching (``list_blinding``). A party shuffles its list before it sends
it, so that the label holder does not learn the order of its rows. In mode ``intersection`` the
others shuffle the label holder's list as well, so that it can't follow its own ids. The samples
that all have are traced back afterwards.

Faults that are found:

- a message that was cut, permuted, repeated or changed on its way: by a seal over its content and
  its position;
- a participant that answered with another key or in another order: by check points, known to all
  and hidden at random positions of every list, which must be equal in the end;
- a list that holds a sample twice;
- alignments that differ in the end: by a digest.

docs/alignment.md says who learns what.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from colonnade.align.announcement import compare_digests, send_numbers, send_presence
from colonnade.align.freed_memory import give_back_memory
from colonnade.align.group import CHUNK, MOST_IDS, Bytes
from colonnade.align.list_blinding import Progress, blind_everything
from colonnade.align.numbering import CHECK, number_samples
from colonnade.align.participant import AlignParty
from colonnade.align.participant_round import NUM_CHECKS
from colonnade.align.participants import Participants, Round
from colonnade.align.point_lists import PointLists
from colonnade.align.record import HolderRecord
from colonnade.align.sealing import TAG_BYTES, as_rows, sortable
from colonnade.align.terms import AlignSpec
from colonnade.core.errors import ConfigError, ProtocolError
from colonnade.core.parties import Parties

__all__ = ["Overlap", "match"]


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The label holder's outcome: sizes, and how many samples each combination of parties has.

    ``combinations`` counts all samples, also those left out of the alignment's ``num_samples``.
    ``record`` is for extending the alignment later.
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

    ``own`` is the label holder's list of labelled ids, in this process; without it,
    ``label_holder`` names the party that has the labels. ``extend`` is the record of an earlier
    alignment. With ``resume``, ``lists`` has the lists of an interrupted one.
    """
    with Participants(parties, own) as everyone:
        names = everyone.names
        holder = own.name if own is not None else label_holder
        if holder is None or holder not in names:
            raise ConfigError(f"label_holder: '{holder}' is none of the participants {list(names)}")
        if extend is not None and (extend.names, extend.label_holder) != (names, holder):
            raise ConfigError(
                f"the earlier alignment was between {list(extend.names)}, this one is between "
                f"{list(names)}; align anew"
            )
        lists = lists or PointLists()
        this = await _begin(everyone, spec, holder, extend, lists, resume=resume)
        await blind_everything(this, lists, progress)
        record = await _compared(this, lists, extend)
        labelled = {holder} if spec.labelled_only else set()
        complete = set(parties.names) | labelled
        needed = complete if spec.mode == "intersection" else labelled
        presence, combinations = number_samples(record, frozenset(needed))
        give_back_memory()
        await send_numbers(this, record, extend)
        await send_presence(this, presence)
        bits = sum(1 << names.index(name) for name in complete)
        return Overlap(
            names=names,
            label_holder=holder,
            mode=spec.mode,
            sizes={name: ends[-1] - NUM_CHECKS * len(ends) for name, ends in record.ends.items()},
            combinations=combinations,
            num_samples=record.num_samples,
            num_complete=int(np.count_nonzero(presence & bits == bits)),
            digest=await compare_digests(this, record.num_samples),
            record=record,
        )


async def _begin(
    everyone: Participants,
    spec: AlignSpec,
    holder: str,
    earlier: HolderRecord | None,
    lists: PointLists,
    *,
    resume: bool,
) -> Round:
    """Have all participants enter one round, on the same terms."""
    number = 0 if earlier is None else earlier.round + 1
    run = secrets.token_hex(16) if earlier is None else earlier.run
    if resume:
        left = lists.unfinished()
        if left is None:
            raise ConfigError("resume: no alignment was interrupted here; leave it out")
        if left["round"] != number:
            raise ConfigError("resume: the last alignment here is finished; leave it out")
        run = left["run"]
    terms = (await everyone.ask("terms", run, number, among={holder: 0}))[holder]
    sizes: dict[str, int] = await everyone.ask("enter", run, number, terms, resume)
    before = sum(len(item) for item in earlier.tags.values()) if earlier is not None else 0
    if before + sum(sizes.values()) > MOST_IDS:
        raise ProtocolError(
            f"{before + sum(sizes.values())} ids in all lists; {MOST_IDS} can be aligned"
        )
    await everyone.ask("admit", {name: float(size) for name, size in sizes.items()}, holder)
    lists.begin(run, number, sizes, resume=resume)
    return Round(
        everyone=everyone,
        holder=holder,
        run=run,
        number=number,
        shuffles=spec.mode == "intersection",
        sizes=sizes,
    )


async def _compared(this: Round, lists: PointLists, earlier: HolderRecord | None) -> HolderRecord:
    """The earlier record with this round's lists added; check points are compared and marked."""
    tags = {name: _tags(lists, name, len(this.ring), this.sizes[name]) for name in this.names}
    lists.forget()
    checks = await _met(this, tags)
    record = HolderRecord(
        run=this.run,
        round=this.number,
        names=this.names,
        label_holder=this.holder,
        num_samples=0 if earlier is None else earlier.num_samples,
        tags={},
        numbers={},
        ends={},
    )
    for name in this.names:
        fresh = tags.pop(name)
        numbers = np.full(len(fresh), -1, np.int32)
        numbers[np.isin(sortable(fresh), sortable(checks))] = CHECK
        if earlier is not None:
            fresh = np.concatenate([earlier.tags[name], fresh])
            numbers = np.concatenate([earlier.numbers[name], numbers])
        record.tags[name], record.numbers[name] = fresh, numbers
        record.ends[name] = [*(earlier.ends[name] if earlier else ()), len(fresh)]
    return record


async def _met(this: Round, tags: Mapping[str, Bytes]) -> Bytes:
    """The tags of the check points, which must be the same in all lists."""
    replies = await this.everyone.ask("locate")
    met: dict[str, list[bytes]] = {}
    for name, reply in replies.items():
        places = this.opened(name, reply, name, -1, 0, NUM_CHECKS)
        if name == this.holder and this.shuffles:
            continue
        if len(places) and not (places.min() >= 0 and places.max() < this.sizes[name]):
            raise ProtocolError(f"party '{name}': its check points are outside its list")
        met[name] = [tags[name][place].tobytes() for place in places]
    first = next(iter(met))
    expected = met[first]
    for name in this.names:
        found = met.get(name)
        if found is None:
            known = sortable(tags[name])
            found = [tag for tag in expected if (known == sortable(as_rows([tag]))).any()]
        if found != expected:
            raise ProtocolError(
                f"the check points of '{first}' and '{name}' don't meet: a participant used "
                "another key or changed an order on the way; run the alignment again"
            )
    return as_rows(expected)


def _tags(lists: PointLists, name: str, hop: int, size: int) -> Bytes:
    """The first bytes of every point of a fully blinded list."""
    tags = np.empty((size, TAG_BYTES), np.uint8)
    for start in range(0, size, CHUNK):
        tags[start : start + CHUNK] = lists.read(name, hop, start, CHUNK)[:, :TAG_BYTES]
    return tags
