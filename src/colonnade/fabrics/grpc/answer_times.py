"""What the arrival of an answer says of its party's time: on the way, and at work."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from colonnade.core.timeline import State

__all__ = ["AnswerTimes"]


class AnswerTimes:
    """When calls left for each party, and what its answers say it did since.

    An answer says for how long its party computed since its last one, not when. A party that was
    told something and is asked only later may have been done long before the question came: then
    the way there and back lasts from the question on, not from the order.

    All moments are seconds on the fabric's clock.

    Args:
        names: The parties.
    """

    def __init__(self, names: Iterable[str]) -> None:
        # When each question left that has no answer yet.
        self._asked: dict[str, deque[float]] = {name: deque() for name in names}
        # Since when anything is on its way, unanswered.
        self._since: dict[str, float] = {}
        # Of the calls that have not left: by party, how many are questions.
        self._unwritten: dict[str, int] = {}
        # Who was told something since its last answer; what it said elsewhere of having done so.
        self._told: set[str] = set()
        self._claimed = dict.fromkeys(self._asked, 0.0)

    def call(self, party: str, *, wants_reply: bool) -> None:
        """A call waits to be written out."""
        self._unwritten[party] = self._unwritten.get(party, 0) + wants_reply
        if not wants_reply:
            self._told.add(party)

    def leave(self, now: float) -> None:
        """All calls that wait are written out."""
        for party, num_questions in self._unwritten.items():
            self._since.setdefault(party, now)
            self._asked[party].extend([now] * num_questions)
        self._unwritten.clear()

    def claim(self, party: str, seconds: float) -> bool:
        """Whether seconds that a party told another fabric were spent on what it was told here."""
        if party not in self._told:
            return False
        self._told.discard(party)
        self._claimed[party] += seconds
        return True

    def done(self, party: str) -> None:
        """All calls to a party so far are known to be done."""
        self._told.discard(party)
        self._since.pop(party, None)

    def answer(
        self, party: str, came: float, now: float, seconds: float, *, was_awaited: bool
    ) -> tuple[tuple[State, float, float], ...]:
        """What a party did until its answer came, which says for how long it computed.

        Args:
            party: Whose answer.
            came: When it came, as far as ticks can tell.
            now: A moment after that.
            seconds: For how long it computed since its last answer.
            was_awaited: Whether the answer is one to a question.

        Returns:
            States, and from when to when: it travelled, the party computed, it travelled back.
        """
        asked = self._asked[party]
        left = asked.popleft() if was_awaited and asked else None
        self._told.discard(party)
        seconds += self._claimed[party]
        self._claimed[party] = 0.0
        since = self._since.pop(party, came)
        # Ticks are coarse, and what a party says of itself may be anything.
        came = min(now, max(came, since + seconds))
        seconds = min(seconds, came - since)
        way = came - since - seconds
        if left is not None:
            way = min(way, came - left)
        if asked:
            self._since[party] = came
        there = since + way / 2
        return (
            ("sending", since, there),
            ("computing", there, there + seconds),
            ("sending", came - way / 2, came),
        )
