"""Respondent: whoever answers calls from the label holder, by a closed set of typed verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from colonnade.core.errors import ColonnadeError, ProtocolError, Refused
from colonnade.core.fabric import Clock, RealClock
from colonnade.core.messages import Call, Failure, Reply, Value, isolated
from colonnade.core.verbs import Verb, collect_verbs

__all__ = ["Respondent"]


class Respondent:
    """The far end of a link: it has a name, and answers its own verbs and nothing else."""

    verbs: ClassVar[Mapping[str, Verb]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.verbs = collect_verbs(cls)

    def __init__(self, *, name: str, clock: Clock | None = None) -> None:
        self.name = name
        self.clock: Clock = clock or RealClock()
        self.exchange = 0

    def keep(self, tag: str) -> None:
        """Write own state to own vault, where there is any."""

    def retain(self, newest: str, best: str) -> None:
        """Let go of every kept state but these two."""

    def fetch(self, tag: str) -> None:
        """Go back to a kept state."""

    def entering(self, call: Call) -> None:
        """A call whose arguments are in order is about to run."""
        if call.summand is not None:
            raise ProtocolError(f"'{self.name}' adds nothing up")

    def leaving(self, call: Call, value: Value) -> Value:
        """What leaves in place of an answer."""
        return value

    def refused(self, call: Call, error: Refused) -> None:
        """Note that own rules forbade a call."""

    def execute(self, call: Call) -> Reply:
        """Run one call of the closed set of verbs; a failure is an answer too."""
        known = self.verbs.get(call.verb)
        try:
            if known is None:
                raise ProtocolError(
                    f"unknown verb '{call.verb}'; party '{self.name}' has {sorted(self.verbs)}"
                )
            self.exchange = call.exchange
            known.check(call.arguments)
            self.entering(call)
            value = isolated(self.leaving(call, known.function(self, *call.arguments)))
        except ColonnadeError as error:
            if isinstance(error, Refused):
                self.refused(call, error)
            failure = Failure(type(error).__name__, str(error), error)
            return Reply(call.id, call.party, call.exchange, failure=failure)
        except Exception as error:
            # Another library's message may quote data; only its type may leave the party.
            failure = Failure(type(error).__name__, f"in verb '{call.verb}'; see its log", error)
            return Reply(call.id, call.party, call.exchange, failure=failure)
        return Reply(call.id, call.party, call.exchange, value)
