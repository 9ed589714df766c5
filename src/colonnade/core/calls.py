"""Calls of one verb to several parties, each with its own arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from colonnade.core.failures import no_value
from colonnade.core.messages import Call, Each, Summand

__all__ = ["calls_to"]


def calls_to(
    parties: Sequence[str],
    first: int,
    verb: str,
    arguments: tuple[Any, ...],
    exchange: int,
    wants_reply: bool,
    summand: Summand | None,
) -> list[Call]:
    """A call for each party, numbered from ``first`` on.

    Raises:
        ProtocolError: An argument that differs by party has no value for one of them.
    """
    differ = Each in map(type, arguments)
    return [
        Call(
            first + place,
            party,
            verb,
            _own(arguments, party, verb) if differ else arguments,
            exchange,
            wants_reply,
            summand,
        )
        for place, party in enumerate(parties)
    ]


def _own(arguments: tuple[Any, ...], party: str, verb: str) -> tuple[Any, ...]:
    try:
        return tuple(item.by_party[party] if type(item) is Each else item for item in arguments)
    except KeyError as error:
        raise no_value(party, verb) from error
