"""Frames: what is written is read back; whatever else comes is a ProtocolError that says what."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from colonnade.core.errors import ProtocolError
from colonnade.core.messages import Batch, Failure, Summand
from colonnade.fabrics.grpc.frames import (
    HEADER_BYTES,
    VERSION,
    CallBody,
    Frame,
    FrameKind,
    Hello,
    Notice,
    Opening,
    ReplyBody,
    decode_frames,
    encode_frame,
)
from fault.fuzzing import corrupted, sample_messages
from messages import says

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32),
    *(torch.int16, torch.int8, torch.uint8, torch.bool),
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTS = st.integers(-(2**63), 2**63 - 1)
U64 = st.integers(0, 2**64 - 1)

# Names that can't be shown as they are don't arrive, and reasons arrive printable
# (tests/attack/test_control_characters.py).
NAMES = TEXTS.filter(str.isprintable)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    size = 1
    for length in shape:
        size *= length
    if dtype is torch.bool:
        flat = torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
        return flat.reshape(shape).to(torch.bool)
    raw = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


FLOATS = st.floats(allow_nan=False)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    INTS,
    FLOATS,
    TEXTS,
    st.builds(Batch, NAMES, INTS),
    tensors(),
    st.dictionaries(NAMES, tensors(), max_size=3),
    st.dictionaries(NAMES, FLOATS, max_size=3),
)
SECONDS = st.floats(0, 1e9)
BODIES: dict[FrameKind, st.SearchStrategy[Any]] = {
    FrameKind.HELLO: st.builds(Hello, NAMES, U64, U64),
    FrameKind.WELCOME: st.builds(Opening, U64, NAMES),
    FrameKind.OPEN: st.builds(Opening, U64, NAMES),
    FrameKind.CLOSE: st.builds(Opening, U64, NAMES),
    FrameKind.CALL: st.builds(
        CallBody,
        NAMES,
        st.lists(VALUES, max_size=3).map(tuple),
        INTS,
        st.booleans(),
        st.none() | st.builds(Summand, INTS, st.lists(NAMES, max_size=3).map(tuple)),
    ),
    FrameKind.REPLY: st.one_of(
        st.builds(ReplyBody, VALUES, st.none(), SECONDS),
        st.builds(ReplyBody, st.none(), st.builds(Failure, NAMES, NAMES), SECONDS),
    ),
    FrameKind.BARRIER: st.none(),
    FrameKind.ACKNOWLEDGE: st.none(),
    FrameKind.REFUSE: st.builds(Notice, NAMES, NAMES),
}


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    kind = draw(st.sampled_from(FrameKind))
    return Frame(kind, draw(U64), draw(U64), draw(BODIES[kind]))


def encoded(frame: Frame) -> bytes:
    return encode_frame(frame.kind, frame.body, id=frame.id, seen=frame.seen)


def same(left: Any, right: Any) -> bool:
    """Equal, tensors bit by bit (a NaN is the same NaN)."""
    if isinstance(left, Tensor):
        if not isinstance(right, Tensor) or (left.dtype, left.shape) != (right.dtype, right.shape):
            return False
        flat = [item.contiguous().reshape(-1).view(torch.uint8) for item in (left, right)]
        return not left.numel() or torch.equal(*flat)
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and list(left) == list(right)
            and all(same(left[key], right[key]) for key in left)
        )
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Frame | CallBody | ReplyBody):
        names = type(left).__slots__
        return type(left) is type(right) and all(
            same(getattr(left, name), getattr(right, name)) for name in names
        )
    return type(left) is type(right) and left == right


@settings(max_examples=200)
@given(sent=st.lists(frames(), min_size=1, max_size=3))
def test_what_is_written_is_read_back(sent: list[Frame]) -> None:
    received = list(decode_frames(b"".join(map(encoded, sent))))
    assert same(tuple(received), tuple(sent))


@settings(max_examples=100)
@given(frame=frames(), data=st.data())
def test_every_beginning_of_a_message_is_refused(frame: Frame, data: st.DataObject) -> None:
    message = encoded(frame)
    length = data.draw(st.integers(0, len(message) - 1))
    with pytest.raises(ProtocolError):
        list(decode_frames(message[:length]))


@pytest.mark.attack(
    what="Bad frames on a link",
    has="a link, and any bytes",
    before="nothing (held)",
    now="refused before anything is allocated",
)
@settings(max_examples=300)
@given(message=st.binary(max_size=200))
def test_noise_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(decode_frames(message))


@settings(max_examples=500)
@given(frame=frames(), seed=st.integers(0, 2**32))
def test_a_corrupted_frame_is_refused_or_still_one_of_the_closed_set(
    frame: Frame, seed: int
) -> None:
    try:
        received = list(decode_frames(corrupted(encoded(frame), seed)))
    except ProtocolError:
        return
    for item in received:
        assert isinstance(item, Frame)
        encoded(item)  # nothing came in that could not have been sent


def test_messages_for_the_long_fuzz_are_all_valid() -> None:
    for message in sample_messages():
        assert list(decode_frames(message))


class TestTensors:
    def test_no_memory_is_shared_and_it_is_the_receivers_to_change(self) -> None:
        sent = torch.arange(5.0)
        message = encode_frame(FrameKind.REPLY, ReplyBody(sent, None, 0.0))
        sent.fill_(9.0)
        first, second = (next(iter(decode_frames(message))).body.value for _ in range(2))
        first.fill_(7.0)
        assert torch.equal(second, torch.arange(5.0))

    def test_views_and_graphs_cross_as_plain_numbers(self) -> None:
        base = torch.arange(12.0, requires_grad=True)
        for view in (base.reshape(3, 4).T, base[::2], base.expand(2, 12)):
            message = encode_frame(FrameKind.REPLY, ReplyBody(view, None, 0.0))
            (frame,) = decode_frames(message)
            assert torch.equal(frame.body.value, view.detach())
            assert not frame.body.value.requires_grad

    def test_other_dtypes_do_not_cross(self) -> None:
        with pytest.raises(ProtocolError, match=says("torch.complex64", "torch.float32")):
            encode_frame(
                FrameKind.REPLY, ReplyBody(torch.ones(2, dtype=torch.complex64), None, 0.0)
            )

    def test_sparse_tensors_do_not_cross(self) -> None:
        with pytest.raises(ProtocolError, match="dense"):
            encode_frame(FrameKind.REPLY, ReplyBody(torch.eye(3).to_sparse(), None, 0.0))

    @pytest.mark.parametrize(
        ("shape", "num_bytes", "complaint"),
        [
            ((3,), 8, says("8 bytes", "(3,)", "torch.float32")),
            ((2**63, 2**63), 4, says((2**63, 2**63))),
            ((0, 2**62), 0, says((0, 2**62))),
            ((2**20, 2**20), 2**42, says(2**42, 0)),
        ],
    )
    def test_shapes_that_lie_are_refused_before_anything_is_allocated(
        self, shape: tuple[int, ...], num_bytes: int, complaint: str
    ) -> None:
        body = struct.pack(f"<dBcBB{len(shape)}QQ", 0.0, 0, b"T", 0, len(shape), *shape, num_bytes)
        header = struct.pack("<4sBBHIQQ", b"CLND", VERSION, FrameKind.REPLY, 0, len(body), 1, 0)
        with pytest.raises(ProtocolError, match=complaint):
            list(decode_frames(header + body))


@pytest.mark.parametrize(
    "value",
    [object(), [1.0], {7: 1.0}, {"x": {"y": 1.0}}, {"x": None}, 2**63, b"raw", "\ud800"],
    ids=lambda value: "an object" if type(value) is object else repr(value),
)
def test_what_may_not_cross_a_link_is_refused_by_the_sender(value: Any) -> None:
    with pytest.raises(ProtocolError):
        encode_frame(FrameKind.CALL, CallBody("echo", (value,), 0, True))


def test_whoever_sends_what_may_not_cross_is_told_what_it_was() -> None:
    for value, name in ((object(), "object"), ([1.0], "list"), (dict.fromkeys("x"), "dict")):
        with pytest.raises(ProtocolError, match=says(f"a {name} ", 65536)):
            encode_frame(FrameKind.CALL, CallBody("echo", (value,), 0, True))


def test_a_value_of_a_type_that_nobody_knows_is_named() -> None:
    message = encode_frame(FrameKind.CALL, CallBody("echo", (True,), 0, True))
    assert message.count(b"t") == 1
    with pytest.raises(ProtocolError, match=says("argument", "b'?'")):
        list(decode_frames(message.replace(b"t", b"?")))


def test_a_sum_of_too_many_parties_is_refused_on_both_sides() -> None:
    def of(count: int) -> CallBody:
        return CallBody("embed", (), 0, True, Summand(1, ("p",) * count))

    with pytest.raises(ProtocolError, match=says("more than 1024")):
        encode_frame(FrameKind.CALL, of(1025))
    message = bytearray(encode_frame(FrameKind.CALL, of(1024)))
    (frame,) = decode_frames(bytes(message))
    assert frame.body == of(1024)
    at = bytes(message).index(struct.pack("<qI", 1, 1024)) + 8
    message[at : at + 4] = struct.pack("<I", 1025)
    with pytest.raises(ProtocolError, match=says(1025, 1024)):
        list(decode_frames(bytes(message)))


class TestHeader:
    def changed(self, at: int, value: int) -> bytes:
        message = bytearray(encode_frame(FrameKind.ACKNOWLEDGE, seen=1))
        message[at] = value
        return bytes(message)

    @pytest.mark.parametrize(
        ("at", "value", "complaint"),
        [
            (0, 0, says(r"b'\x00LND'", "b'CLND'")),
            (4, 1, says("version 1", VERSION)),
            (5, 0, says("kind 0")),
            (5, 77, says("kind 77")),
            (6, 1, "reserved"),
            (8, 9, says("ACKNOWLEDGE", "9 bytes", 0)),
        ],
    )
    def test_every_field_is_checked(self, at: int, value: int, complaint: str) -> None:
        with pytest.raises(ProtocolError, match=complaint):
            list(decode_frames(self.changed(at, value)))

    def test_a_body_may_not_be_longer_than_what_it_holds(self) -> None:
        message = bytearray(encode_frame(FrameKind.ACKNOWLEDGE, seen=1) + b"\0")
        message[8] = 1
        with pytest.raises(ProtocolError, match=says("ACKNOWLEDGE", "1 bytes")):
            list(decode_frames(bytes(message)))

    def test_header_is_as_documented(self) -> None:
        message = encode_frame(FrameKind.ACKNOWLEDGE, id=5, seen=7)
        expected = b"CLND\x07\x08" + bytes(6) + (5).to_bytes(8, "little") + b"\7" + bytes(7)
        assert message == expected
        assert len(message) == HEADER_BYTES
