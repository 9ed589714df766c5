"""What may cross a link: calls, replies, and the closed set of values that they carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

__all__ = [
    "Batch",
    "Call",
    "Each",
    "Failure",
    "Reply",
    "Summand",
    "Value",
    "pack_reply",
    "unpack_reply",
]


@dataclass(frozen=True)
class Batch:
    """A batch by name: which part of the data, and its number there.

    Every side derives the rows from the shared seed, so no row number crosses a link.
    """

    part: str
    number: int


Value: TypeAlias = (
    Tensor | Batch | int | float | str | bool | Mapping[str, Tensor] | Mapping[str, float] | None
)


@dataclass(frozen=True, slots=True)
class Each:
    """An argument that differs by party; ``by_party`` has everybody's value."""

    by_party: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Summand:
    """What an answer is part of: the sum of these parties' answers, under a serial used once."""

    serial: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One verb for one party; the reply carries the same id.

    With ``summand`` the answer is to leave as part of a sum, or not at all.
    """

    id: int
    party: str
    verb: str
    arguments: tuple[Value, ...]
    exchange: int
    wants_reply: bool
    summand: Summand | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a verb failed, in words that are safe to send; the cause stays in its process."""

    kind: str
    message: str
    cause: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """A party's answer to one call; ``tick`` is when it reached the label holder.

    ``at`` is the same in seconds, by the machine's performance counter; 0 where no link has it.
    """

    id: int
    party: str
    exchange: int
    value: Value = None
    failure: Failure | None = None
    tick: int = 0
    at: float = field(default=0.0, compare=False)


def pack_reply(reply: Reply) -> dict[str, Any]:
    """A reply as checkpoint state: tensors stay tensors, the rest becomes plain.

    A failure is packed too, without its cause, which can't outlive its process.
    """
    failure = reply.failure
    return {
        "id": reply.id,
        "party": reply.party,
        "exchange": reply.exchange,
        "tick": reply.tick,
        "content": _pack(reply.value),
        "failure": None if failure is None else [failure.kind, failure.message],
    }


def unpack_reply(state: Mapping[str, Any]) -> Reply:
    """The reply that ``pack_reply`` packed."""
    failure = state["failure"]
    return Reply(
        state["id"],
        state["party"],
        state["exchange"],
        _unpack(state["content"]),
        None if failure is None else Failure(*failure),
        state["tick"],
    )


def _pack(value: Value) -> dict[str, Any]:
    if isinstance(value, Batch):
        return {"batch": [value.part, value.number]}
    if isinstance(value, Mapping):
        return {"mapping": dict(value)}
    return {"value": value}


def _unpack(state: Mapping[str, Any]) -> Value:
    if "batch" in state:
        part, number = state["batch"]
        return Batch(part, number)
    packed: Value = state["mapping"] if "mapping" in state else state["value"]
    return packed
