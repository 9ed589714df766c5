"""Passing every list through every participant, each of which multiplies it by its scalar.

The label holder's own list visits all other participants. Their lists visit one another in a ring,
and the label holder last. So only the label holder sees two lists that can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from colonnade.align.group import CHUNK
from colonnade.align.participants import Round
from colonnade.align.point_lists import PointLists
from colonnade.align.sealing import as_tensor
from colonnade.core.parties import Each, each

__all__ = ["Progress", "blind_everything"]

Progress = Callable[[int, int], None]


async def blind_everything(
    this: Round, lists: PointLists, progress: Progress | None = None
) -> None:
    """Pass every list through everybody; chunks from before an interruption are not asked again."""
    await _Blinding(this, lists, progress).run()


class _Blinding:
    """One round's lists and hops."""

    def __init__(self, this: Round, lists: PointLists, progress: Progress | None) -> None:
        self._this = this
        self._lists = lists
        self._progress = progress
        self._num_blinded = 0

    async def run(self) -> None:
        """Pass all lists through all hops."""
        ring, holder = self._this.ring, self._this.holder
        await self._pass({name: name for name in self._this.names}, 0, "offer")
        for hop in range(1, len(ring)):
            await self._pass(
                {ring[(place + hop) % len(ring)]: owner for place, owner in enumerate(ring)}, hop
            )
        for hop, at in enumerate(ring, start=1):
            await self._pass({at: holder}, hop, "shuffle" if self._this.shuffles else "blind")
        for owner in ring:
            await self._pass({holder: owner}, len(ring))

    async def _pass(self, owners: Mapping[str, str], hop: int, how: str = "blind") -> None:
        """Pass lists through one hop, in chunks; ``owners`` gives the list's owner by party."""
        this = self._this
        if how == "shuffle":
            await self._absorb(owners, hop)
        starts = {at: self._lists.num_done(owner, hop) for at, owner in owners.items()}
        self._moved(sum(starts.values()) if how != "shuffle" else 0)
        while starts := {at: n for at, n in starts.items() if n < this.sizes[owners[at]]}:
            counts = {at: min(CHUNK, this.sizes[owners[at]] - n) for at, n in starts.items()}
            if how == "offer":
                replies = await this.everyone.ask("offer", each(starts), each(counts), among=counts)
            elif how == "shuffle":
                replies = await this.everyone.ask(
                    "release", each(owners), hop, each(starts), each(counts), among=counts
                )
            else:
                points = self._outgoing(owners, hop, starts, counts)
                replies = await this.everyone.ask(
                    "blind", each(owners), hop, each(starts), *points, among=counts
                )
            for at, reply in replies.items():
                owner, start = owners[at], starts[at]
                points_back = this.opened(at, reply, owner, hop, start, counts[at])
                self._lists.append(owner, hop, points_back)
                starts[at] = start + counts[at]
                self._moved(counts[at] if how != "shuffle" else 0)

    async def _absorb(self, owners: Mapping[str, str], hop: int) -> None:
        """Give one party all of the label holder's list before it gives any of it back."""
        ((at, owner),) = owners.items()
        size = self._this.sizes[owner]
        if self._lists.num_done(owner, hop) == size:
            self._moved(size)
            return
        for start in range(0, size, CHUNK):
            counts = {at: min(CHUNK, size - start)}
            points = self._outgoing(owners, hop, {at: start}, counts)
            await self._this.everyone.ask("absorb", owner, hop, start, *points, among=counts)
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
            at: as_tensor(self._this.seal(owners[at], hop - 1, starts[at], item))
            for at, item in points.items()
        }
        return each({at: as_tensor(item) for at, item in points.items()}), each(seals)

    def _moved(self, count: int) -> None:
        self._num_blinded += count
        if self._progress is not None:
            total = sum(self._this.sizes.values()) * len(self._this.names)
            self._progress(self._num_blinded, total)
