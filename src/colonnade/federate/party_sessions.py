"""What every session at a party has: the agreed terms come as text, the table is the party's own.

A session takes the agreed settings and makes the respondent that answers from then on. From the
network come text for the strict parser, numbers of samples, and tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from colonnade.align.ids import PreparedIds
from colonnade.align.terms import AlignSpec
from colonnade.core.config import dump, parse
from colonnade.core.errors import ConfigError, ProtocolError
from colonnade.core.messages import Call, Reply
from colonnade.core.respondent import Respondent
from colonnade.federate.party_home import PartySettings
from colonnade.federate.party_limits import RunTime
from colonnade.federate.party_policy import PartyPolicy
from colonnade.files import write_atomically
from colonnade.run.alignment_files import read_keyed_table
from colonnade.run.storage import read_json

__all__ = ["SessionAtParty", "keyed_table", "parsed_table", "read_terms", "write_terms"]


# Settings name parties, columns and sizes: a few kilobytes.
_MOST_CHARACTERS = 1_000_000


class SessionAtParty(Respondent):
    """Answers its own verb; once that has made a successor, all other verbs are the successor's.

    ``lane`` is the party's link that it is on: sessions on two lanes are at work at once.
    """

    def __init__(
        self, *, home: Path, settings: PartySettings, policy: PartyPolicy, lane: int = 0
    ) -> None:
        super().__init__(name=settings.name)
        self._home, self._settings, self._policy = home, settings, policy
        self._lane = lane
        self._successor: Respondent | None = None
        # Of a run whose time is limited.
        self._time: RunTime | None = None

    def execute(self, call: Call) -> Reply:
        """Run one call, here or at the successor."""
        if self._successor is None or call.verb in self.verbs:
            return super().execute(call)
        return self._watched_successor().execute(call)

    def _watched_successor(self) -> Respondent:
        """Give the successor, whose work ends when the session's has to."""
        assert self._successor is not None
        self._successor.watch = self._look
        return self._successor

    def _look(self) -> None:
        """Before rows are read and between two steps: whether the work may go on."""
        self.watch()
        if self._time is not None:
            self._time.check()


def write_terms(place: Path, spec: AlignSpec) -> None:
    """Keep the terms beside the alignment: the ids are to be read the same way later."""
    text = json.dumps(dump(spec), indent=2)
    write_atomically(place / "terms.json", text.encode(), owner_only=True)


def read_terms(place: Path) -> AlignSpec:
    """The terms of the alignment that is there."""
    if not (place / "terms.json").exists():
        raise ConfigError("no alignment here yet; the label holder aligns first")
    return parse(AlignSpec, read_json(place / "terms.json"), path="align")


def keyed_table(
    settings: PartySettings, policy: PartyPolicy, spec: AlignSpec
) -> tuple[PreparedIds, Any]:
    """The party's ids and its table, read under the terms of an alignment."""
    columns = policy.key or (settings.id,)
    return read_keyed_table(settings.data, columns, spec, f"ids of '{settings.name}'")


def parsed_table(text: str, what: str) -> dict[str, Any]:
    """A table from JSON text; anything else is a ProtocolError."""
    if len(text) > _MOST_CHARACTERS:
        raise ProtocolError(f"{what}: {len(text)} characters; at most {_MOST_CHARACTERS}")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{what}: not JSON, or not of a sensible depth and size") from error
    if not isinstance(values, dict):
        raise ProtocolError(f"{what}: a table, not a {type(values).__name__}")
    return values
