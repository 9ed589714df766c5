"""Messages as they should be, and what becomes of them on a bad day."""

from __future__ import annotations

import random
from functools import cache

import torch

from colonnade.core.messages import Batch, Failure, Summand
from colonnade.fabrics.grpc.frames import (
    CallBody,
    FrameKind,
    Hello,
    Notice,
    Opening,
    ReplyBody,
    encode_frame,
)


@cache
def sample_messages() -> tuple[bytes, ...]:
    """At least one of every kind, and of every value."""
    tensor = torch.arange(12.0).reshape(3, 4)
    call = CallBody("descend", (Batch("train", 3), tensor, 1, 2.5, "x", True, None), 4, False)
    part = CallBody("embed", (Batch("train", 3),), 4, True, Summand(7, ("bank", "fuzz")))
    table = CallBody("scores", ({"a": 1.0, "b": 2.0}, {"t": tensor.bfloat16()}), 0, True)
    frames = [
        encode_frame(FrameKind.HELLO, Hello("fuzz", 3, 0)),
        encode_frame(FrameKind.WELCOME, Opening(5, "train"), seen=2),
        encode_frame(FrameKind.OPEN, Opening(6, "train")),
        encode_frame(FrameKind.CLOSE, Opening(6, "train")),
        encode_frame(FrameKind.CALL, call, id=1),
        encode_frame(FrameKind.CALL, table, id=2),
        encode_frame(FrameKind.REPLY, ReplyBody(tensor, None, 0.1), id=1),
        encode_frame(FrameKind.REPLY, ReplyBody({"t": tensor}, None, 0.1), id=2),
        encode_frame(FrameKind.REPLY, ReplyBody(None, Failure("DataError", "no"), 0.0), id=3),
        encode_frame(FrameKind.BARRIER, id=3),
        encode_frame(FrameKind.ACKNOWLEDGE, seen=3),
        encode_frame(FrameKind.REFUSE, Notice("ProtocolError", "why")),
        encode_frame(FrameKind.CALL, part, id=3),
    ]
    return (*frames, frames[4] + frames[9], frames[10] + frames[6])


def corrupted(message: bytes, seed: int) -> bytes:
    """The message with something wrong: changed, cut, repeated, swapped, or all noise."""
    draw = random.Random(seed)
    changed = bytearray(message)
    for _ in range(draw.randint(1, 3)):
        how = draw.randrange(7)
        at = draw.randrange(len(changed)) if changed else 0
        if how == 0 and changed:
            changed[at] ^= 1 << draw.randrange(8)
        elif how == 1 and changed:
            changed[at] = draw.randrange(256)
        elif how == 2:
            del changed[at:]
        elif how == 3:
            changed[at:at] = draw.randbytes(draw.randint(1, 9))
        elif how == 4:
            changed += changed[at : at + 40]
        elif how == 5 and len(changed) > 8:
            # Lengths and counts live here: make one huge.
            changed[at : at + 4] = b"\xff" * 4
        elif how == 6:
            changed = bytearray(draw.randbytes(draw.randint(0, 60)))
    return bytes(changed)
