"""A frame that is cut short is refused by the name of the field that is missing."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from colonnade.core.errors import ProtocolError
from colonnade.core.messages import Batch, Failure, Summand
from colonnade.fabrics.grpc.frames import (
    HEADER_BYTES,
    CallBody,
    FrameKind,
    Hello,
    Notice,
    Opening,
    ReplyBody,
    decode_frames,
    encode_frame,
)
from messages import says

TENSOR = ("dtype", "number of dimensions", "shape", "number of bytes")
VALUES = (Batch("train", 3), torch.ones(2, 3), {"a": 1.5}, "text", 7, 2.5, True, None)
FRAMES = {
    "call": (
        FrameKind.CALL,
        CallBody("embed", VALUES, 4, True, Summand(1, ("a", "b"))),
        {
            *("exchange", "wants reply", "verb", "number of arguments", "part of a sum"),
            *("serial", "parties of a sum", "party of a sum"),
            *(f"argument {at}" for at in range(len(VALUES))),
            *("argument 0, part", "argument 0, batch number"),
            *(f"argument 1, {field}" for field in TENSOR),
            *("argument 2, number of entries", "argument 2, key", "argument 2, 'a'"),
        },
    ),
    "reply": (
        FrameKind.REPLY,
        ReplyBody(torch.ones(3), None, 0.5),
        {"seconds", "failed", "value", *(f"value, {field}" for field in TENSOR)},
    ),
    "failure": (
        FrameKind.REPLY,
        ReplyBody(None, Failure("DataError", "no column"), 0.5),
        {"seconds", "failed", "kind of failure", "failure"},
    ),
    "hello": (FrameKind.HELLO, Hello("telco", 5, 6), {"incarnation", "session", "name", "release"}),
    "opening": (FrameKind.OPEN, Opening(5, "train"), {"session", "purpose", "release"}),
    "notice": (FrameKind.REFUSE, Notice("RunError", "too late"), {"kind", "message"}),
}


def cut(frame: bytes, length: int) -> bytes:
    """The first bytes of a frame, with a header that says no more than these are to come."""
    header = bytearray(frame[:HEADER_BYTES])
    struct.pack_into("<I", header, 8, length)
    return bytes(header) + frame[HEADER_BYTES : HEADER_BYTES + length]


@pytest.mark.parametrize("name", FRAMES)
def test_every_field_is_named(name: str) -> None:
    kind, body, fields = FRAMES[name]
    frame = encode_frame(kind, body, id=1)
    whole = len(frame) - HEADER_BYTES
    assert next(iter(decode_frames(cut(frame, whole)))).kind is kind
    named = set()
    for length in range(whole):
        with pytest.raises(ProtocolError) as refused:
            list(decode_frames(cut(frame, length)))
        named.add(str(refused.value).partition(":")[0])
    assert named == fields


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (FrameKind.CALL, CallBody("v" * 5000, (), 0, True), "verb"),
        (FrameKind.HELLO, Hello("n" * 5000, 1, 1), "name"),
        (FrameKind.OPEN, Opening(1, "p" * 5000), "purpose"),
    ],
)
def test_a_text_that_is_too_long_is_named(kind: FrameKind, body: object, field: str) -> None:
    with pytest.raises(ProtocolError, match=f"^{field}: a text of 5000 bytes"):
        encode_frame(kind, body)


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    content = encode_frame(FrameKind.REPLY, ReplyBody(torch.ones(3), None, seconds))
    with pytest.raises(ProtocolError, match=says("seconds", seconds)):
        list(decode_frames(content))


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (FrameKind.REPLY, ReplyBody(None, Failure("\ud800", "x"), 0.0), "kind of failure"),
        (FrameKind.REPLY, ReplyBody(None, Failure("x", "\ud800"), 0.0), "failure"),
        (FrameKind.REFUSE, Notice("\ud800", "x"), "kind"),
        (FrameKind.REFUSE, Notice("x", "\ud800"), "message"),
    ],
)
def test_what_is_no_text_is_named(kind: FrameKind, body: object, field: str) -> None:
    with pytest.raises(ProtocolError, match=f"^{field}: not a valid text"):
        encode_frame(kind, body)
