"""The label holder sends everybody the outcome: sample numbers and the presence table."""

from __future__ import annotations

import numpy as np

from colonnade.align.group import Indices, Numbers
from colonnade.align.participants import Round
from colonnade.align.record import HolderRecord
from colonnade.align.sealing import as_array, as_tensor, position_in_rounds
from colonnade.core.errors import ProtocolError
from colonnade.core.parties import each

__all__ = ["compare_digests", "send_numbers", "send_presence"]

# Numbers per message.
_NUMBERS_CHUNK = 65536


async def send_numbers(this: Round, record: HolderRecord, earlier: HolderRecord | None) -> None:
    """Send everybody the new numbers of its own samples."""
    for name in this.names:
        numbers = record.numbers[name]
        is_new = numbers >= 0
        if earlier is not None:
            before = earlier.numbers[name]
            is_new[: len(before)] &= numbers[: len(before)] != before
        positions = np.flatnonzero(is_new)
        found = numbers[positions]
        if name == this.holder and this.shuffles:
            positions, found = await _traced(this, record, positions)
        for start in range(0, len(positions), _NUMBERS_CHUNK):
            piece = positions[start : start + _NUMBERS_CHUNK]
            number = found[start : start + _NUMBERS_CHUNK]
            seal = this.seal(name, -30, 0, piece, number)
            await this.everyone.ask(
                "assign", as_tensor(piece), as_tensor(number), as_tensor(seal), among={name: 0}
            )


async def send_presence(this: Round, presence: Numbers) -> None:
    """Send everybody the presence table: a bit per participant for every sample."""
    for start in range(0, len(presence), _NUMBERS_CHUNK):
        some = presence[start : start + _NUMBERS_CHUNK]
        seals = {name: as_tensor(this.seal(name, -31, start, some)) for name in this.names}
        await this.everyone.ask("describe", start, as_tensor(some), each(seals))


async def compare_digests(this: Round, num_samples: int) -> str:
    """Have all keep their alignments if all digests are equal; returns the digest."""
    digests = await this.everyone.ask("conclude", num_samples)
    mine: bytes = as_array(digests[this.holder]).tobytes()
    for name, digest in digests.items():
        if as_array(digest).tobytes() != mine:
            raise ProtocolError(
                f"party '{name}' has another digest than '{this.holder}'; align again"
            )
    await this.everyone.ask("commit", digests[this.holder])
    return mine.hex()


async def _traced(this: Round, record: HolderRecord, positions: Indices) -> tuple[Indices, Numbers]:
    """The positions that these ids had before the others shuffled the label holder's list."""
    begin = 0
    traced, numbers = [positions[:0]], [np.zeros(0, np.int32)]
    for number, end in enumerate(record.ends[this.holder]):
        inside = positions[(positions >= begin) & (positions < end)]
        for start in range(0, len(inside), _NUMBERS_CHUNK):
            piece = inside[start : start + _NUMBERS_CHUNK]
            traced.append(begin + await _traced_back(this, piece - begin, number, start))
            numbers.append(record.numbers[this.holder][piece])
        begin = end
    return np.concatenate(traced), np.concatenate(numbers)


async def _traced_back(this: Round, places: Indices, round_number: int, start: int) -> Indices:
    """Positions of some samples in one round's list, with every shuffle undone."""
    where = position_in_rounds(round_number, start)
    for hop in range(len(this.ring), 0, -1):
        at = this.ring[hop - 1]
        seal = this.seal(this.holder, -2 - hop, where, places)
        replies = await this.everyone.ask(
            "trace", round_number, hop, start, as_tensor(places), as_tensor(seal), among={at: 0}
        )
        places = this.opened(at, replies[at], this.holder, -1 - hop, where, len(places))
    return places
