"""Local steps that a party lets itself be asked for: how many in a call, and paid for by releases.

A step carries the samples of its batch into the weights, and so into embeddings of other samples,
whose accounts say nothing of it. So a call that takes steps on a batch must follow a release of
that batch, which was charged; the next such call needs another release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from colonnade.core.errors import Refused
from colonnade.core.messages import Batch, Call

__all__ = ["StepRules"]

# Of so many released batches a party remembers that their steps are still to come.
_MOST_AWAITED = 4096


class StepRules:
    """A party's rules for local steps.

    Args:
        party: The party's name.
        most_in_call: The most steps in one call.
    """

    def __init__(self, party: str, most_in_call: int) -> None:
        self._party = party
        self._most_in_call = most_in_call
        self._num_in_call = 0
        self._asked: tuple[Batch, ...] = ()
        # Released, and not stepped on since; the oldest first.
        self._paid: dict[Batch, None] = {}

    def begin(self, call: Call) -> None:
        """A call begins."""
        self._num_in_call = 0
        self._asked = tuple(item for item in call.arguments if type(item) is Batch)

    def take_step(self) -> None:
        """Raise Refused unless one more step may be taken in this call."""
        self._num_in_call += 1
        if self._num_in_call > self._most_in_call:
            raise self._refusal(
                "limits.max_local_steps", f"more than {self._most_in_call} local steps in one call"
            )
        if self._num_in_call == 1:
            unpaid = [batch for batch in self._asked if batch not in self._paid]
            if unpaid or not self._asked:
                raise self._refusal(
                    "steps_per_release",
                    "local steps on samples that were not released, and charged, since the last "
                    "steps on them",
                )
            for batch in self._asked:
                del self._paid[batch]

    def release(self) -> None:
        """Something that was made for the call has left."""
        for batch in self._asked:
            self._paid.pop(batch, None)
            self._paid[batch] = None
        while len(self._paid) > _MOST_AWAITED:
            del self._paid[next(iter(self._paid))]

    def state(self) -> list[list[Any]]:
        """Which batches are paid for, for a checkpoint."""
        return [[batch.part, batch.number] for batch in self._paid]

    def restore(self, paid: Sequence[Sequence[Any]]) -> None:
        """Put back what ``state`` gave."""
        self._paid = {Batch(part, number): None for part, number in paid}

    def _refusal(self, rule: str, what: str) -> Refused:
        return Refused(f"party '{self._party}' refuses, rule '{rule}': {what}", party=self._party)
