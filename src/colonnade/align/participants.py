"""The participants as the label holder asks them, and the round that they are in."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from colonnade.align.participant import MAX_PARTICIPANTS, AlignParty
from colonnade.align.sealing import as_array, make_seal
from colonnade.core.errors import ConfigError, NoAnswer, PartyFailed, ProtocolError
from colonnade.core.messages import Call
from colonnade.core.parties import Each, Parties

__all__ = ["Participants", "Round"]


class Participants:
    """All participants: parties over their links, and the label holder's own list in a thread."""

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

    def __enter__(self) -> Participants:
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.shutdown()

    async def ask(
        self, name_of_verb: str, *arguments: Any, among: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Ask some or all participants; the answers are in the order of names."""
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


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of an alignment: participants, lengths, and seals of messages.

    With ``shuffles``, the others shuffle the label holder's list, so that it can't follow its ids.
    """

    everyone: Participants = field(repr=False)
    holder: str
    run: str
    number: int
    shuffles: bool
    sizes: Mapping[str, int]

    @property
    def names(self) -> tuple[str, ...]:
        """All participants, sorted."""
        return self.everyone.names

    @property
    def ring(self) -> tuple[str, ...]:
        """All but the label holder, in the order in which they pass lists on."""
        return tuple(name for name in self.names if name != self.holder)

    def seal(self, owner: str, hop: int, start: int, *content: Any) -> bytes:
        """A digest of a message and of its position."""
        return make_seal(self.run, self.number, owner, hop, start, *content)

    def opened(
        self, at: str, reply: Mapping[str, Tensor], owner: str, hop: int, start: int, count: int
    ) -> Any:
        """A reply's content; a wrong length or seal is a ProtocolError."""
        content, seal = as_array(reply["content"]), as_array(reply["seal"])
        if len(content) != count:
            raise ProtocolError(
                f"party '{at}' sent {len(content)} of {count} ids of '{owner}' (from {start}, hop "
                f"{hop}): the reply was cut; run the alignment again"
            )
        if seal.tobytes() != self.seal(owner, hop, start, content):
            raise ProtocolError(
                f"party '{at}': what came of the list of '{owner}' (from {start}, hop {hop}) is "
                "not what was sent: permuted or changed on its way; run the alignment again"
            )
        return content
