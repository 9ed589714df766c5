"""The frames of a link: a versioned binary format with a closed set of kinds, values and dtypes.

One message on the wire holds one or more frames, one after the other::

    magic "CLND" | version u8 | kind u8 | reserved u16 | length u32 | id u64 | seen u64 | body

All numbers are little-endian. ``id`` is the call's number on this link (a reply carries its
call's), ``seen`` acknowledges what came the other way. Tensors are dtype, shape and raw bytes.
Nothing is ever unpickled, every length is checked before anything is read or allocated, and
whatever is wrong with a frame is a ProtocolError that says what.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import ProtocolError
from colonnade.core.messages import Batch, Failure, Value

__all__ = [
    "HEADER_BYTES",
    "VERSION",
    "CallBody",
    "Frame",
    "Hello",
    "Kind",
    "Notice",
    "Opening",
    "ReplyBody",
    "decode_frames",
    "encode_frame",
]

VERSION = 1
MAGIC = b"CLND"
_HEADER = struct.Struct("<4sBBHIQQ")
HEADER_BYTES = _HEADER.size

_U8, _U16, _U32, _U64 = (struct.Struct(f"<{code}") for code in "BHIQ")
_I64, _F64 = struct.Struct("<q"), struct.Struct("<d")

_MAX_NAME = 1024
_MAX_TEXT = 64 * 1024 * 1024
_MAX_REASON = 16 * 1024
_MAX_ARGUMENTS = 64
_MAX_ENTRIES = 65_536
_MAX_DIMENSIONS = 8
# So many elements at most, counting empty dimensions as one: no shape overflows anything.
_MAX_ELEMENTS = 1 << 40

_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
_CODE_OF = {dtype: code for code, dtype in enumerate(_DTYPES)}
_SIZES = tuple(dtype.itemsize for dtype in _DTYPES)

if sys.byteorder != "little":  # pragma: no cover - no such machine runs torch today
    raise ImportError(
        "frames carry little-endian numbers as they are in memory; this machine's are big-endian"
    )


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1  # party to hub: who I am and how far I got
    WELCOME = 2  # hub to party: how far I got
    OPEN = 3  # hub to party: a session begins, and for what
    CLOSE = 4  # hub to party: the session is over
    CALL = 5
    REPLY = 6
    BARRIER = 7  # hub to party: answer when everything before is done
    ACKNOWLEDGE = 8
    REFUSE = 9  # either way: why this stream ends here


@dataclass(frozen=True, slots=True)
class Hello:
    """Who dials, which process of it, in which session it is and what it received there."""

    name: str
    incarnation: int
    session: int


@dataclass(frozen=True, slots=True)
class Opening:
    """A session (0 for none) and what it is for."""

    session: int
    purpose: str


@dataclass(frozen=True, slots=True)
class CallBody:
    """One verb with its arguments."""

    verb: str
    arguments: tuple[Value, ...]
    exchange: int
    wants_reply: bool


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
    """One frame as it came."""

    kind: Kind
    id: int
    seen: int
    body: Body


# Writing


def encode_frame(kind: Kind, body: Body = None, *, id: int = 0, seen: int = 0) -> bytes:  # noqa: A002
    """One frame as bytes; tensors are copied once, so that later changes don't reach them."""
    parts: list[bytes | memoryview] = [b""]
    if isinstance(body, CallBody):
        parts.append(_I64.pack(body.exchange) + _U8.pack(body.wants_reply))
        _put_text(parts, body.verb, _MAX_NAME, "verb")
        if len(body.arguments) > _MAX_ARGUMENTS:
            raise ProtocolError(f"verb '{body.verb}': more than {_MAX_ARGUMENTS} arguments")
        parts.append(_U8.pack(len(body.arguments)))
        for item in body.arguments:
            _put_value(parts, item)
    elif isinstance(body, ReplyBody):
        parts.append(_F64.pack(body.seconds) + _U8.pack(body.failure is not None))
        if body.failure is None:
            _put_value(parts, body.value)
        else:
            _put_text(parts, _cut(body.failure.kind, _MAX_NAME), _MAX_NAME, "kind of failure")
            _put_text(parts, _cut(body.failure.message, _MAX_REASON), _MAX_REASON, "failure")
    elif isinstance(body, Hello):
        parts.append(_U64.pack(body.incarnation) + _U64.pack(body.session))
        _put_text(parts, body.name, _MAX_NAME, "name")
    elif isinstance(body, Opening):
        parts.append(_U64.pack(body.session))
        _put_text(parts, body.purpose, _MAX_NAME, "purpose")
    elif isinstance(body, Notice):
        _put_text(parts, _cut(body.kind, _MAX_NAME), _MAX_NAME, "kind")
        _put_text(parts, _cut(body.message, _MAX_REASON), _MAX_REASON, "message")
    length = sum(map(len, parts))
    if length > 0xFFFF_FFFF:
        raise ProtocolError(f"a {kind.name} frame of {length} bytes; at most {0xFFFF_FFFF} fit")
    parts[0] = _HEADER.pack(MAGIC, VERSION, kind, 0, length, id, seen)
    return b"".join(parts)


def _cut(text: str, most: int) -> str:
    """A text that fits: what went wrong is worth less than that it is told at all."""
    return text if len(text) * 4 <= most else text[: most // 4]


def _put_text(parts: list[bytes | memoryview], text: str, most: int, what: str) -> None:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"{what}: not a valid text: {error.reason}") from error
    if len(raw) > most:
        raise ProtocolError(f"{what}: a text of {len(raw)} bytes; at most {most} may cross a link")
    parts += (_U32.pack(len(raw)), raw)


def _put_value(parts: list[bytes | memoryview], value: Value, *, nested: bool = False) -> None:
    if isinstance(value, Tensor):
        _put_tensor(parts, value)
    elif value is None:
        parts.append(b"n")
    elif isinstance(value, bool):
        parts.append(b"t" if value else b"f")
    elif isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ProtocolError("a whole number of more than 64 bits can't cross a link")
        parts.append(b"i" + _I64.pack(value))
    elif isinstance(value, float):
        parts.append(b"d" + _F64.pack(value))
    elif isinstance(value, str):
        parts.append(b"s")
        _put_text(parts, value, _MAX_TEXT, "value")
    elif isinstance(value, Batch):
        parts.append(b"b" + _I64.pack(value.number))
        _put_text(parts, value.part, _MAX_NAME, "part")
    elif isinstance(value, Mapping) and not nested and len(value) <= _MAX_ENTRIES:
        parts.append(b"m" + _U32.pack(len(value)))
        for key, item in value.items():
            if not isinstance(key, str) or not isinstance(item, Tensor | float | int | str):
                raise _cannot_cross(value)
            _put_text(parts, key, _MAX_NAME, "key")
            _put_value(parts, item, nested=True)
    else:
        raise _cannot_cross(value)


def _cannot_cross(value: object) -> ProtocolError:
    return ProtocolError(
        f"a {type(value).__name__} can't cross a link; tensors, batches, numbers, texts and "
        f"tables of tensors or numbers can (a table has at most {_MAX_ENTRIES} entries)"
    )


def _put_tensor(parts: list[bytes | memoryview], tensor: Tensor) -> None:
    code = _CODE_OF.get(tensor.dtype)
    if code is None or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ProtocolError(
            f"a tensor of {tensor.dtype} on {tensor.device} can't cross a link; dense ones on the "
            f"CPU can, of {', '.join(map(str, _DTYPES))}"
        )
    if tensor.dim() > _MAX_DIMENSIONS:
        raise ProtocolError(f"a tensor of {tensor.dim()} dimensions; at most {_MAX_DIMENSIONS}")
    shape = tensor.shape
    parts.append(struct.pack(f"<cBB{len(shape)}QQ", b"T", code, len(shape), *shape, tensor.nbytes))
    if tensor.numel():
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        parts.append(flat.numpy().data)


# Reading


def decode_frames(message: bytes) -> Iterator[Frame]:
    """Every frame of a message; whatever is not exactly as written above is a ProtocolError."""
    reader = _Reader(memoryview(message))
    if not message:
        raise ProtocolError("an empty message; it should hold at least one frame")
    while reader.left:
        yield _read_frame(reader)


class _Reader:
    """Takes one field after the other, and never more than there is."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._view) - self._at

    def take(self, count: int, what: str) -> memoryview:
        end = self._at + count
        if end > len(self._view):
            raise ProtocolError(f"{what}: {count} bytes announced, {self.left} are there")
        view = self._view[self._at : end]
        self._at = end
        return view

    def number(self, code: struct.Struct, what: str) -> int:
        if self.left < code.size:
            raise ProtocolError(f"{what}: the frame ends before it")
        (value,) = code.unpack_from(self._view, self._at)
        self._at += code.size
        found: int = value
        return found

    def float(self, what: str) -> float:
        (value,) = _F64.unpack(self.take(8, what))
        found: float = value
        return found

    def flag(self, what: str) -> bool:
        value = self.number(_U8, what)
        if value > 1:
            raise ProtocolError(f"{what}: 0 or 1, got {value}")
        return bool(value)

    def text(self, most: int, what: str) -> str:
        length = self.number(_U32, what)
        if length > most:
            raise ProtocolError(f"{what}: a text of {length} bytes; at most {most} may cross")
        try:
            return str(self.take(length, what), "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{what}: not UTF-8") from error


def _read_frame(reader: _Reader) -> Frame:
    magic, version, code, reserved, length, number, seen = _HEADER.unpack(
        reader.take(HEADER_BYTES, "frame header")
    )
    if magic != MAGIC:
        raise ProtocolError(f"frame header: begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise ProtocolError(
            f"frame header: version {version}, and this side speaks {VERSION}; install the same "
            "version of colonnade on both sides"
        )
    if reserved:
        raise ProtocolError(f"frame header: reserved bits {reserved:#06x} are set")
    try:
        kind = Kind(code)
    except ValueError as error:
        raise ProtocolError(f"frame header: unknown kind {code}") from error
    inner = _Reader(reader.take(length, f"{kind.name} frame"))
    body = _read_body(kind, inner)
    if inner.left:
        raise ProtocolError(f"{kind.name} frame: {inner.left} bytes too many at its end")
    return Frame(kind, number, seen, body)


def _read_body(kind: Kind, reader: _Reader) -> Body:
    if kind is Kind.CALL:
        exchange, wants = reader.number(_I64, "exchange"), reader.flag("wants reply")
        verb = reader.text(_MAX_NAME, "verb")
        count = reader.number(_U8, "number of arguments")
        if count > _MAX_ARGUMENTS:
            raise ProtocolError(f"{count} arguments; at most {_MAX_ARGUMENTS}")
        arguments = tuple(_read_value(reader, f"argument {at}") for at in range(count))
        return CallBody(verb, arguments, exchange, wants)
    if kind is Kind.REPLY:
        seconds = reader.float("seconds")
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise ProtocolError(f"seconds: a time span, got {seconds}")
        if reader.flag("failed"):
            kind_of = reader.text(_MAX_NAME, "kind of failure")
            return ReplyBody(None, Failure(kind_of, reader.text(_MAX_REASON, "failure")), seconds)
        return ReplyBody(_read_value(reader, "value"), None, seconds)
    if kind is Kind.HELLO:
        incarnation, session = reader.number(_U64, "incarnation"), reader.number(_U64, "session")
        return Hello(reader.text(_MAX_NAME, "name"), incarnation, session)
    if kind in (Kind.WELCOME, Kind.OPEN, Kind.CLOSE):
        return Opening(reader.number(_U64, "session"), reader.text(_MAX_NAME, "purpose"))
    if kind is Kind.REFUSE:
        return Notice(reader.text(_MAX_NAME, "kind"), reader.text(_MAX_REASON, "message"))
    return None


def _read_value(reader: _Reader, what: str, *, nested: bool = False) -> Value:
    tag = bytes(reader.take(1, what))
    if tag == b"T":
        return _read_tensor(reader, what)
    if tag == b"d":
        return reader.float(what)
    if tag == b"i":
        return reader.number(_I64, what)
    if tag == b"s":
        return reader.text(_MAX_TEXT, what)
    if tag in (b"t", b"f"):
        return tag == b"t"
    if not nested:
        if tag == b"n":
            return None
        if tag == b"b":
            number = reader.number(_I64, f"{what}, batch number")
            return Batch(reader.text(_MAX_NAME, f"{what}, part"), number)
        if tag == b"m":
            return _read_table(reader, what)
    raise ProtocolError(f"{what}: unknown type {tag!r}")


def _read_table(reader: _Reader, what: str) -> Value:
    count = reader.number(_U32, f"{what}, number of entries")
    if count > _MAX_ENTRIES:
        raise ProtocolError(f"{what}: a table of {count} entries; at most {_MAX_ENTRIES}")
    table: dict[str, Value] = {}
    for _ in range(count):
        key = reader.text(_MAX_NAME, f"{what}, key")
        if key in table:
            raise ProtocolError(f"{what}: key '{key}' stands twice")
        table[key] = _read_value(reader, f"{what}, '{key}'", nested=True)
    return table  # type: ignore[return-value]


def _read_tensor(reader: _Reader, what: str) -> Tensor:
    """A tensor in memory of its own: aligned as torch's are, and the receiver's to change."""
    code = reader.number(_U8, f"{what}, dtype")
    if code >= len(_DTYPES):
        raise ProtocolError(f"{what}: unknown dtype {code}")
    num_dimensions = reader.number(_U8, f"{what}, number of dimensions")
    if num_dimensions > _MAX_DIMENSIONS:
        raise ProtocolError(f"{what}: {num_dimensions} dimensions; at most {_MAX_DIMENSIONS}")
    shape = [reader.number(_U64, f"{what}, shape") for _ in range(num_dimensions)]
    if math.prod(max(size, 1) for size in shape) > _MAX_ELEMENTS:
        raise ProtocolError(f"{what}: shape {tuple(shape)} is too large")
    announced = reader.number(_U64, f"{what}, number of bytes")
    if announced != math.prod(shape) * _SIZES[code]:
        raise ProtocolError(
            f"{what}: {announced} bytes for shape {tuple(shape)} of {_DTYPES[code]}"
        )
    raw = reader.take(announced, what)
    tensor = torch.empty(shape, dtype=_DTYPES[code])
    if announced:
        received = np.frombuffer(raw, dtype=np.uint8)
        if _DTYPES[code] is torch.bool and received.max() > 1:
            raise ProtocolError(f"{what}: a truth value that is neither 0 nor 1")
        np.copyto(tensor.view(-1).view(torch.uint8).numpy(), received)
    return tensor
