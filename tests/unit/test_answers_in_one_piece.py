"""An answer over HTTP leaves in one piece: its head alone would wake the caller for nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from colonnade.serve.listening import _InOnePiece


class Wire:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def sent_by(*steps: str) -> list[bytes]:
    async def act() -> list[bytes]:
        wire: Any = Wire()
        transport = _InOnePiece(wire)
        for step in steps:
            if step == "turn":
                await asyncio.sleep(0)
            elif step == "close":
                transport.close()
            else:
                transport.write(step.encode())
        found = list(wire.sent)
        assert transport.is_closing() == ("close" in steps)
        await asyncio.sleep(0)
        # Nothing that was sent is sent again when the turn is over.
        assert b"".join(wire.sent).startswith(b"".join(found))
        return found

    return asyncio.run(act())


def test_head_and_body_are_one_piece() -> None:
    assert sent_by("head", "body") == [b"headbody"]


def test_a_head_without_a_body_waits_for_the_end_of_the_turn_at_most() -> None:
    assert sent_by("head") == []
    assert sent_by("head", "turn") == [b"head"]


def test_a_body_in_pieces_keeps_its_order() -> None:
    assert b"".join(sent_by("head", "a", "b", "turn", "c", "turn")) == b"headabc"


def test_nothing_is_lost_at_the_end_of_a_connection() -> None:
    assert sent_by("head", "close") == [b"head"]


def test_an_empty_body_sends_the_head() -> None:
    assert sent_by("head", "") == [b"head"]
