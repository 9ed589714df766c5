"""The frames of a link: a versioned binary format with a closed set of kinds, values and dtypes.

One message on the wire holds one or more frames, one after the other::

    magic "CLND" | version u8 | kind u8 | reserved u16 | length u32 | id u64 | seen u64 | body

All numbers are little-endian. ``id`` is the call's number on this link (a reply carries its
call's, a HELLO the number of its lane), ``seen`` acknowledges what came the other way. Tensors are
dtype, shape and raw bytes. Nothing is ever unpickled. Every length is checked before anything is
read or allocated. A faulty frame is a ProtocolError that names the fault. A name that a terminal
can't show as it is, is refused; reasons are made printable when they arrive (``core.printable``).
``values`` has the encoding of arguments and results.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from importlib.metadata import version

from colonnade.core.errors import ProtocolError
from colonnade.core.messages import Failure, Summand, Value
from colonnade.core.printable import printable
from colonnade.fabrics.grpc.values import (
    F64,
    I64,
    MAX_NAME,
    U8,
    U32,
    U64,
    Reader,
    put_text,
    put_value,
    read_value,
)

__all__ = [
    "HEADER_BYTES",
    "RELEASE",
    "VERSION",
    "CallBody",
    "Frame",
    "FrameKind",
    "Hello",
    "Notice",
    "Opening",
    "ReplyBody",
    "decode_frames",
    "encode_frame",
]

# Two sides of different versions don't work together (docs/compatibility.md). It also rises when
# both sides derive something in a new way, such as batches (version 2).
VERSION = 7
MAGIC = b"CLND"
# The Colonnade that runs here, told to the other side for its log.
RELEASE = version("colonnade")
_HEADER = struct.Struct("<4sBBHIQQ")
HEADER_BYTES = _HEADER.size

_MAX_REASON = 16 * 1024
_MAX_ARGUMENTS = 64
_MAX_SUMMANDS = 1024


class FrameKind(IntEnum):
    """The kinds of frames."""

    HELLO = 1  # party to hub: its name, process and session; the last call it received
    WELCOME = 2  # hub to party: the session; the last reply it received
    OPEN = 3  # hub to party: a session begins, and for what
    CLOSE = 4  # hub to party: the session is over
    CALL = 5
    REPLY = 6
    BARRIER = 7  # hub to party: answer when everything before is done
    ACKNOWLEDGE = 8
    REFUSE = 9  # either way: why this stream ends


_KINDS: Mapping[int, FrameKind] = {int(kind): kind for kind in FrameKind}
# In words, for messages: made once, since every frame and every argument would make its own.
_FRAMES: Mapping[FrameKind, str] = {kind: f"{kind.name} frame" for kind in FrameKind}
_ARGUMENTS = tuple(f"argument {at}" for at in range(_MAX_ARGUMENTS))


@dataclass(frozen=True, slots=True)
class Hello:
    """The party's name, its process, the session that it is in, and the Colonnade it runs."""

    name: str
    incarnation: int
    session: int
    release: str = ""


@dataclass(frozen=True, slots=True)
class Opening:
    """A session (0 for none) and what it is for; a WELCOME also tells the hub's Colonnade."""

    session: int
    purpose: str
    release: str = ""


@dataclass(frozen=True, slots=True)
class CallBody:
    """One verb with its arguments, and the sum that its answer is part of."""

    verb: str
    arguments: tuple[Value, ...]
    exchange: int
    wants_reply: bool
    summand: Summand | None = None


@dataclass(frozen=True, slots=True)
class ReplyBody:
    """A value or a failure, and the seconds that the party computed since its last reply."""

    value: Value
    failure: Failure | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Why a stream ends: the name of an error and what it says."""

    kind: str
    message: str


Body = Hello | Opening | CallBody | ReplyBody | Notice | None


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as received."""

    kind: FrameKind
    id: int
    seen: int
    body: Body


# Writing


def encode_frame(kind: FrameKind, body: Body = None, *, id: int = 0, seen: int = 0) -> bytes:  # noqa: A002
    """One frame as bytes; tensors are copied once, so that later changes don't reach them."""
    parts: list[bytes | memoryview] = [b""]
    if isinstance(body, CallBody):
        parts.append(I64.pack(body.exchange) + U8.pack(body.wants_reply))
        put_text(parts, body.verb, MAX_NAME, "verb")
        if len(body.arguments) > _MAX_ARGUMENTS:
            raise ProtocolError(f"verb '{body.verb}': more than {_MAX_ARGUMENTS} arguments")
        parts.append(U8.pack(len(body.arguments)))
        for item in body.arguments:
            put_value(parts, item)
        parts.append(U8.pack(body.summand is not None))
        if body.summand is not None:
            _put_summand(parts, body.summand)
    elif isinstance(body, ReplyBody):
        parts.append(F64.pack(body.seconds) + U8.pack(body.failure is not None))
        if body.failure is None:
            put_value(parts, body.value)
        else:
            put_text(parts, _cut(body.failure.kind, MAX_NAME), MAX_NAME, "kind of failure")
            put_text(parts, _cut(body.failure.message, _MAX_REASON), _MAX_REASON, "failure")
    elif isinstance(body, Hello):
        parts.append(U64.pack(body.incarnation) + U64.pack(body.session))
        put_text(parts, body.name, MAX_NAME, "name")
        put_text(parts, body.release, MAX_NAME, "release")
    elif isinstance(body, Opening):
        parts.append(U64.pack(body.session))
        put_text(parts, body.purpose, MAX_NAME, "purpose")
        put_text(parts, body.release, MAX_NAME, "release")
    elif isinstance(body, Notice):
        put_text(parts, _cut(body.kind, MAX_NAME), MAX_NAME, "kind")
        put_text(parts, _cut(body.message, _MAX_REASON), _MAX_REASON, "message")
    length = sum(map(len, parts))
    if length > 0xFFFF_FFFF:
        raise ProtocolError(f"a {kind.name} frame of {length} bytes; at most {0xFFFF_FFFF} fit")
    parts[0] = _HEADER.pack(MAGIC, VERSION, kind, 0, length, id, seen)
    return b"".join(parts)


def _put_summand(parts: list[bytes | memoryview], summand: Summand) -> None:
    if len(summand.names) > _MAX_SUMMANDS:
        raise ProtocolError(f"a sum of more than {_MAX_SUMMANDS} parties")
    parts.append(I64.pack(summand.serial) + U32.pack(len(summand.names)))
    for name in summand.names:
        put_text(parts, name, MAX_NAME, "party of a sum")


def _cut(text: str, most: int) -> str:
    """A text shortened to fit: a cut message is better than none."""
    return text if len(text) * 4 <= most else text[: most // 4]


# Reading


def decode_frames(message: bytes) -> Iterator[Frame]:
    """Every frame of a message; any deviation from the format is a ProtocolError."""
    reader = Reader(memoryview(message))
    if not message:
        raise ProtocolError("an empty message; it should hold at least one frame")
    while reader.left:
        yield _read_frame(reader)


def _read_frame(reader: Reader) -> Frame:
    magic, spoken, code, reserved, length, number, seen = _HEADER.unpack(
        reader.take(HEADER_BYTES, "frame header")
    )
    if magic != MAGIC:
        raise ProtocolError(f"frame header: begins with {magic!r}, not {MAGIC!r}")
    if spoken != VERSION:
        raise ProtocolError(
            f"frame header: version {spoken}, and this side speaks {VERSION} (colonnade "
            f"{RELEASE}); install the same version of colonnade on both sides"
        )
    if reserved:
        raise ProtocolError(f"frame header: reserved bits {reserved:#06x} are set")
    kind = _KINDS.get(code)
    if kind is None:
        raise ProtocolError(f"frame header: unknown kind {code}")
    inner = Reader(reader.take(length, _FRAMES[kind]))
    body = _read_body(kind, inner)
    if inner.left:
        raise ProtocolError(f"{_FRAMES[kind]}: {inner.left} bytes too many at its end")
    return Frame(kind, number, seen, body)


def _read_body(kind: FrameKind, reader: Reader) -> Body:
    if kind is FrameKind.CALL:
        exchange, wants = reader.number(I64, "exchange"), reader.flag("wants reply")
        verb = reader.name("verb")
        count = reader.number(U8, "number of arguments")
        if count > _MAX_ARGUMENTS:
            raise ProtocolError(f"{count} arguments; at most {_MAX_ARGUMENTS}")
        arguments = tuple([read_value(reader, what) for what in _ARGUMENTS[:count]])
        summand = _read_summand(reader) if reader.flag("part of a sum") else None
        return CallBody(verb, arguments, exchange, wants, summand)
    if kind is FrameKind.REPLY:
        seconds = reader.float("seconds")
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise ProtocolError(f"seconds: a time span, got {seconds}")
        if reader.flag("failed"):
            kind_of = reader.name("kind of failure")
            return ReplyBody(
                None, Failure(kind_of, printable(reader.text(_MAX_REASON, "failure"))), seconds
            )
        return ReplyBody(read_value(reader, "value"), None, seconds)
    if kind is FrameKind.HELLO:
        incarnation, session = reader.number(U64, "incarnation"), reader.number(U64, "session")
        return Hello(reader.name("name"), incarnation, session, reader.name("release"))
    if kind in (FrameKind.WELCOME, FrameKind.OPEN, FrameKind.CLOSE):
        session = reader.number(U64, "session")
        return Opening(session, reader.name("purpose"), reader.name("release"))
    if kind is FrameKind.REFUSE:
        return Notice(reader.name("kind"), printable(reader.text(_MAX_REASON, "message")))
    return None


def _read_summand(reader: Reader) -> Summand:
    serial = reader.number(I64, "serial")
    count = reader.number(U32, "parties of a sum")
    if count > _MAX_SUMMANDS:
        raise ProtocolError(f"a sum of {count} parties; at most {_MAX_SUMMANDS}")
    return Summand(serial, tuple(reader.name("party of a sum") for _ in range(count)))
