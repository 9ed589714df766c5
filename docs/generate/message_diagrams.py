"""A diagram of the messages of every method, drawn from a recording.

A small run is trained and its calls are written down, so a diagram shows what crosses and not what
somebody remembers. The kinds of tensors are those that the verbs declare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from colonnade.core.messages import Call
from colonnade.fabrics.in_process import InProcess
from colonnade.methods import METHODS
from colonnade.run.engine import train
from colonnade.run.spec import parse_spec
from drawing import AMBER, BLUE, GREY, PURPLE, Drawing

__all__ = ["Message", "draw_messages", "record"]

_LEFT, _RIGHT = "laboratory", "spectrometry"


@dataclass(frozen=True, kw_only=True)
class Message:
    """One verb, asked of one or both parties."""

    verb: str
    parties: frozenset[str]
    down: str
    up: str | None


def record(method: str) -> tuple[list[Message], list[Message]]:
    """The messages of the beginning and of one exchange, between label holder and two parties."""
    calls: list[Call] = []
    first: list[object] = []
    send = InProcess.send

    def note(fabric: InProcess, call: Call) -> None:
        # Evaluations go over a fabric of their own.
        first.append(fabric)
        if fabric is first[0] and call.party in (_LEFT, _RIGHT):
            calls.append(call)
        send(fabric, call)

    small = {"method": {"name": method}, "data": {"dataset": "wine"}, "stop": {"exchanges": 4}}
    with patch.object(InProcess, "send", note):
        train(parse_spec(small))
    usual = max((1, 2, 3), key=lambda number: sum(call.exchange == number for call in calls))
    one = [call for call in calls if call.exchange == usual]
    verbs = {call.verb for call in calls if call.exchange > 0}
    start = [call for call in calls if call.exchange < 0 and call.verb not in verbs]
    return _gathered(method, start), _gathered(method, one)


def _gathered(method: str, calls: list[Call]) -> list[Message]:
    """Calls of one verb to several parties as one message; repeated ones once."""
    found: list[Message] = []
    for call in calls:
        verb = METHODS[method].party.verbs[call.verb]
        kinds = [text for text in map(_kinds, verb.takes) if text]
        # Every call names its batch; said only where nothing else goes down.
        if not kinds and any(name == "batch" for name, _ in verb.parameters):
            kinds = ["batch number"]
        up = (
            (_kinds(verb.releases) or ("done" if verb.returns is type(None) else "number"))
            if call.wants_reply
            else None
        )
        same = [place for place, item in enumerate(found) if item.verb == call.verb]
        parties = frozenset({call.party})
        if same:
            parties |= found[same[0]].parties
        message = Message(verb=call.verb, parties=parties, down=", ".join(kinds), up=up)
        if same:
            found[same[0]] = message
        else:
            found.append(message)
    return found


def _kinds(declared: Any) -> str:
    if declared is None:
        return ""
    if isinstance(declared, Mapping):
        return ", ".join(kind.value for kind in declared.values() if kind is not None)
    return str(declared.value)


def draw_messages(method: str) -> Drawing:
    """The diagram of one method."""
    start, one = record(method)
    rows: list[Message | str] = []
    if start:
        rows += ["once, at the beginning", *start, "every exchange"]
    rows += one
    if not one:
        rows = ["nothing crosses between organisations"]
    height = 62 + sum(
        30 if isinstance(row, str) else (38 if row.up is None else 72) for row in rows
    )
    told = "; ".join(
        row
        if isinstance(row, str)
        else f"{row.verb}({row.down})" + (f" → {row.up}" if row.up else "")
        for row in rows
    )
    d = Drawing(640, height, title=f"Messages of {method}", about=told)
    lanes = ((80, "a party", BLUE), (320, "label holder", PURPLE), (560, "another party", AMBER))
    for x, name, color in lanes:
        d.box(x - 66, 12, 132, 28, name, color=color, bold=True)
        d.line((x, 42), (x, height - 6), color=GREY, dashed=True, width=1)
    y = 66
    for row in rows:
        if isinstance(row, str):
            width = 8 * len(row) + 16
            d.box(320 - width / 2, y - 11, width, 22, row, color=GREY, fill="#ffffff", size=13)
            y += 30
            continue
        for x, party in ((80, _LEFT), (560, _RIGHT)):
            if party in row.parties:
                side = 1 if x > 320 else -1
                near, far, middle = 320 + side * 3, x - side * 3, (320 + x) / 2
                asked = f"{row.verb}: {row.down}" if row.down else row.verb
                d.words(middle, y - 2, asked, size=12, room=238)
                d.line((near, y + 10), (far, y + 10), color=PURPLE, arrow=True)
                if row.up is not None:
                    color = BLUE if x < 320 else AMBER
                    d.words(middle, y + 32, row.up, size=12, color=color, room=230)
                    d.line((far, y + 44), (near, y + 44), color=color, arrow=True)
        y += 38 if row.up is None else 72
    return d
