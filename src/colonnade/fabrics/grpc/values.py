"""Values in frames: a closed set of types as bytes; every length is checked before it is used.

A value is a tag of one byte and its content. Numbers are little-endian, tensors are dtype, shape
and raw bytes. Any deviation is a ProtocolError that names it.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping

import torch
from torch import Tensor

from colonnade.core.errors import ProtocolError
from colonnade.core.messages import Batch, Value
from colonnade.core.printable import printable

__all__ = [
    "F64",
    "I64",
    "MAX_NAME",
    "U8",
    "U32",
    "U64",
    "Reader",
    "put_text",
    "put_value",
    "read_value",
]

U8, U32, U64 = (struct.Struct(f"<{code}") for code in "BIQ")
I64, F64 = struct.Struct("<q"), struct.Struct("<d")

MAX_NAME = 1024
_MAX_TEXT = 4 * 1024 * 1024
_MAX_ENTRIES = 65_536
_MAX_DIMENSIONS = 8
# Counted with empty dimensions as one, so that no shape overflows.
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
# Python's views of memory know no bfloat16: its bytes go as those of another type of its size.
_VIEWED = {torch.bfloat16: torch.int16}

# The shape of a tensor, by its number of dimensions.
_SHAPES = tuple(struct.Struct(f"<{count}Q") for count in range(_MAX_DIMENSIONS + 1))

_TENSOR, _FLOAT, _WHOLE, _TEXT, _TRUE, _FALSE, _NOTHING, _BATCH, _TABLE = b"Tdistfnbm"

if sys.byteorder != "little":  # pragma: no cover - no such machine runs torch today
    raise ImportError(
        "frames carry little-endian numbers as they are in memory; this machine's are big-endian"
    )


# Writing


def put_text(parts: list[bytes | memoryview], text: str, most: int, what: str) -> None:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"{what}: not a valid text: {error.reason}") from error
    if len(raw) > most:
        raise ProtocolError(f"{what}: a text of {len(raw)} bytes; at most {most} may cross a link")
    parts += (U32.pack(len(raw)), raw)


def put_value(parts: list[bytes | memoryview], value: Value, *, nested: bool = False) -> None:
    if isinstance(value, Tensor):
        _put_tensor(parts, value)
    elif value is None:
        parts.append(b"n")
    elif isinstance(value, bool):
        parts.append(b"t" if value else b"f")
    elif isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ProtocolError("a whole number of more than 64 bits can't cross a link")
        parts.append(b"i" + I64.pack(value))
    elif isinstance(value, float):
        parts.append(b"d" + F64.pack(value))
    elif isinstance(value, str):
        parts.append(b"s")
        put_text(parts, value, _MAX_TEXT, "value")
    elif isinstance(value, Batch):
        parts.append(b"b" + I64.pack(value.number))
        put_text(parts, value.part, MAX_NAME, "part")
    elif isinstance(value, Mapping) and not nested and len(value) <= _MAX_ENTRIES:
        parts.append(b"m" + U32.pack(len(value)))
        for key, item in value.items():
            if not isinstance(key, str) or not isinstance(item, Tensor | float | int | str):
                raise _cannot_cross(value)
            put_text(parts, key, MAX_NAME, "key")
            put_value(parts, item, nested=True)
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
        parts.append(_bytes_of(tensor.detach().contiguous()))


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a tensor that has elements, and has them in order."""
    viewed = _VIEWED.get(tensor.dtype)
    if viewed is not None:
        tensor = tensor.view(viewed)
    return tensor.numpy().data.cast("B")


# Reading


class Reader:
    """Reads one field after the other, and never beyond the end.

    A field is named by what it belongs to and, if it is a part of that, by the part: the two are
    put together only for the message of an error.
    """

    __slots__ = ("_at", "_end", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at, self._end = 0, len(view)

    @property
    def left(self) -> int:
        return self._end - self._at

    def take(self, count: int, what: str, part: str = "") -> memoryview:
        at = self._at
        end = at + count
        if end > self._end:
            raise ProtocolError(
                f"{_named(what, part)}: {count} bytes announced, {self.left} are there"
            )
        self._at = end
        return self._view[at:end]

    def number(self, code: struct.Struct, what: str, part: str = "") -> int:
        # As ``numbers``, without a call of it: most of what is read is one number.
        at = self._at
        end = at + code.size
        if end > self._end:
            raise ProtocolError(f"{_named(what, part)}: the frame ends before it")
        self._at = end
        value: int = code.unpack_from(self._view, at)[0]
        return value

    def numbers(self, code: struct.Struct, what: str, part: str = "") -> tuple[int, ...]:
        at = self._at
        end = at + code.size
        if end > self._end:
            raise ProtocolError(f"{_named(what, part)}: the frame ends before it")
        self._at = end
        return code.unpack_from(self._view, at)

    def float(self, what: str) -> float:
        value: float = F64.unpack(self.take(8, what))[0]
        return value

    def tag(self, what: str) -> int:
        """The byte that says of which type a value is."""
        return self.take(1, what)[0]

    def flag(self, what: str) -> bool:
        value = self.number(U8, what)
        if value > 1:
            raise ProtocolError(f"{what}: 0 or 1, got {value}")
        return bool(value)

    def name(self, what: str, part: str = "") -> str:
        """A text that names something: it is refused if it could not be shown as it is."""
        text = self.text(MAX_NAME, what, part)
        if not text.isprintable():
            shown = printable(text, most=80)
            raise ProtocolError(f"{_named(what, part)}: {shown!r} can't be shown as it is")
        return text

    def text(self, most: int, what: str, part: str = "") -> str:
        length = self.number(U32, what, part)
        if length > most:
            raise ProtocolError(
                f"{_named(what, part)}: a text of {length} bytes; at most {most} may cross"
            )
        try:
            return str(self.take(length, what, part), "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{_named(what, part)}: not UTF-8") from error


def _named(what: str, part: str) -> str:
    return f"{what}, {part}" if part else what


def read_value(reader: Reader, what: str, *, nested: bool = False) -> Value:
    tag = reader.tag(what)
    if tag == _TENSOR:
        return _read_tensor(reader, what)
    if tag == _FLOAT:
        return reader.float(what)
    if tag == _WHOLE:
        return reader.number(I64, what)
    if tag == _TEXT:
        return reader.text(_MAX_TEXT, what)
    if tag in (_TRUE, _FALSE):
        return tag == _TRUE
    if not nested:
        if tag == _NOTHING:
            return None
        if tag == _BATCH:
            number = reader.number(I64, what, "batch number")
            return Batch(reader.name(what, "part"), number)
        if tag == _TABLE:
            return _read_table(reader, what)
    raise ProtocolError(f"{what}: unknown type {bytes((tag,))!r}")


def _read_table(reader: Reader, what: str) -> Value:
    count = reader.number(U32, what, "number of entries")
    if count > _MAX_ENTRIES:
        raise ProtocolError(f"{what}: a table of {count} entries; at most {_MAX_ENTRIES}")
    table: dict[str, Value] = {}
    for _ in range(count):
        key = reader.name(what, "key")
        if key in table:
            raise ProtocolError(f"{what}: key '{key}' stands twice")
        table[key] = read_value(reader, f"{what}, '{key}'", nested=True)
    return table  # type: ignore[return-value]


def _read_tensor(reader: Reader, what: str) -> Tensor:
    """A tensor in memory of its own: aligned as torch needs it, and free to be changed."""
    code = reader.number(U8, what, "dtype")
    if code >= len(_DTYPES):
        raise ProtocolError(f"{what}: unknown dtype {code}")
    dtype = _DTYPES[code]
    num_dimensions = reader.number(U8, what, "number of dimensions")
    if num_dimensions > _MAX_DIMENSIONS:
        raise ProtocolError(f"{what}: {num_dimensions} dimensions; at most {_MAX_DIMENSIONS}")
    shape = reader.numbers(_SHAPES[num_dimensions], what, "shape")
    counted = 1
    for size in shape:
        counted *= size or 1
    if counted > _MAX_ELEMENTS:
        raise ProtocolError(f"{what}: shape {shape} is too large")
    announced = reader.number(U64, what, "number of bytes")
    if announced != (0 if 0 in shape else counted * _SIZES[code]):
        raise ProtocolError(f"{what}: {announced} bytes for shape {shape} of {dtype}")
    raw = reader.take(announced, what)
    tensor = torch.empty(shape, dtype=dtype)
    if announced:
        if dtype is torch.bool and raw.tobytes().translate(None, b"\x00\x01"):
            raise ProtocolError(f"{what}: a truth value that is neither 0 nor 1")
        _bytes_of(tensor)[:] = raw
    return tensor
