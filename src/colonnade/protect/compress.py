"""Compressed embeddings: one tensor of bytes that describes itself, packed here, unpacked there.

Paper: C-VFL (Castiglia et al. 2022): top-k sparsification and scalar quantization of embeddings.
What crosses are the packed bits, so the fabric's meter counts the real bytes. Gradients come back
for the embedding as if it had not been compressed (straight through).

A packed embedding: 28 bytes of header (a mark, kind, size of a number, bits, form of the indices;
rows, width, values per row; a seed), then the payload.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import ConfigError, ProtocolError, Refused
from colonnade.core.protection import Leaving, Protection
from colonnade.core.seeds import derive_seed, shuffled
from colonnade.protect.protection_spec import Place, ProtectionSpec, check_share

__all__ = ["Compression", "Packing", "Quantize", "RandomK", "TopK", "pack", "unpack"]

_MAGIC = b"cpk1"
_HEADER = struct.Struct("<4sBBBBIIIQ")
_TOP_K, _RANDOM_K, _QUANTIZED = 1, 2, 3
# How top-k says which values they are: one bit per value, or the numbers of the kept ones.
_AS_BITS = 0
# A few bytes can stand for many zeros: so many values, and no more.
_MOST_VALUES = 2**26

Array = np.ndarray[Any, Any]


class _Header(NamedTuple):
    kind: int
    itemsize: int
    bits: int
    form: int
    num_rows: int
    width: int
    num_kept: int
    seed: int


class Compression(ProtectionSpec):
    """Fewer bytes: what crosses is packed, and unpacked at the label holder."""

    changes_form: ClassVar[bool] = True

    feedback: bool

    def stand_at(self, place: Place) -> Protection:
        return Packing(self, derive_seed(place.seed, "compress", place.owner))

    def read(self, value: Tensor) -> Tensor:
        """The embedding that packed bytes stand for."""
        return unpack(value)

    @abstractmethod
    def packed(self, values: Array, seed: int) -> tuple[_Header, bytes]:
        """Pack an embedding.

        Args:
            values: The embedding, a row per sample.
            seed: Decides what is drawn.

        Returns:
            Header and payload.
        """


@final
@dataclass(frozen=True, kw_only=True)
class TopK(Compression):
    """Only the share ``keep`` of each sample's values with the largest size; the rest is 0.

    With ``feedback`` what was left out is added the next time that the sample is sent.
    """

    kind: ClassVar[str] = "top_k"

    keep: float
    feedback: bool = False

    def __post_init__(self) -> None:
        check_share("keep", self.keep)

    def packed(self, values: Array, seed: int) -> tuple[_Header, bytes]:
        return _pack_top(values, self)


@final
@dataclass(frozen=True, kw_only=True)
class RandomK(Compression):
    """A random share of each batch's columns, scaled so that the mean is right.

    Args:
        keep: The share.
        feedback: Whether what was left out is added the next time that the sample is sent.
    """

    kind: ClassVar[str] = "random_k"

    keep: float
    feedback: bool = False

    def __post_init__(self) -> None:
        check_share("keep", self.keep)

    def packed(self, values: Array, seed: int) -> tuple[_Header, bytes]:
        return _pack_random(values, self, seed)


@final
@dataclass(frozen=True, kw_only=True)
class Quantize(Compression):
    """A few bits per value: 2^bits levels between a sample's least and largest value.

    Rounding is up or down at random, so that it is right on average.

    Args:
        bits: 1, 2, 4 or 8.
        feedback: Whether what was left out is added the next time that the sample is sent.

    Raises:
        ConfigError: If ``bits`` is another number.
    """

    kind: ClassVar[str] = "quantize"

    bits: int
    feedback: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (1, 2, 4, 8):
            raise ConfigError(f"bits: 1, 2, 4 or 8, got {self.bits}")

    def packed(self, values: Array, seed: int) -> tuple[_Header, bytes]:
        return _pack_quantized(values, self, seed)


@final
class Packing(Protection):
    """Packs embeddings as they leave; remembers what was left out of training samples."""

    def __init__(self, spec: Compression, seed: int) -> None:
        self.kind = spec.kind
        self._spec = spec
        self._seed = seed
        # What compression left out, by sample of the training part.
        self._left_out: Tensor | None = None

    def leaving(self, item: Leaving) -> Tensor:
        """The packed bytes of an embedding."""
        if item.encoding is None:
            raise Refused(
                f"rule '{self.kind}': '{item.call.verb}' sends an embedding, and it can't be told "
                "of which samples: make it for this call, one encoding each",
                party=item.call.party,
            )
        encoding, spec = item.encoding, self._spec
        seed = derive_seed(self._seed, encoding.purpose, encoding.number)
        embedding = item.value.detach()
        if not spec.feedback or encoding.purpose != "encode":
            return pack(embedding, spec, seed)
        if self._left_out is None:
            self._left_out = embedding.new_zeros(encoding.plan.num_samples, embedding.shape[1])
        positions = encoding.plan.positions(encoding.batch.number)
        wanted = embedding + self._left_out[positions]
        packed = pack(wanted, spec, seed)
        self._left_out[positions] = wanted - unpack(packed)
        return packed

    def state(self) -> dict[str, Any]:
        """What compression still owes."""
        return {"left_out": self._left_out}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave."""
        self._left_out = state["left_out"]


def pack(embedding: Tensor, spec: Compression, seed: int) -> Tensor:
    """The bytes that stand for an embedding; ``seed`` decides what is drawn."""
    if embedding.dim() != 2:
        raise ConfigError(
            f"protect: '{spec.kind}' packs embeddings of shape (samples, width), got "
            f"{tuple(embedding.shape)}"
        )
    header, payload = spec.packed(embedding.detach().numpy(), seed)
    return torch.frombuffer(bytearray(_HEADER.pack(_MAGIC, *header) + payload), dtype=torch.uint8)


def unpack(packed: Tensor) -> Tensor:
    """The embedding that packed bytes stand for."""
    raw = packed.contiguous().numpy().tobytes()
    if packed.dtype != torch.uint8 or len(raw) < _HEADER.size or raw[:4] != _MAGIC:
        raise ProtocolError("a packed embedding is a tensor of bytes with a header")
    header = _Header(*_HEADER.unpack_from(raw)[1:])
    if (
        header.itemsize not in (4, 8)
        or header.num_rows * header.width > _MOST_VALUES
        or not (header.kind == _QUANTIZED or 1 <= header.num_kept <= header.width)
    ):
        raise ProtocolError("a packed embedding has a header that can't be")
    payload = raw[_HEADER.size :]
    reader = {_TOP_K: _unpack_top, _RANDOM_K: _unpack_random, _QUANTIZED: _unpack_quantized}
    if header.kind not in reader or len(payload) != _num_payload_bytes(header):
        raise ProtocolError("a packed embedding is not as long as its header says")
    return torch.from_numpy(reader[header.kind](header, payload))


def _float_type(itemsize: int) -> Any:
    return np.float32 if itemsize == 4 else np.float64


def _num_kept(share: float, width: int) -> int:
    return max(1, round(share * width))


def _index_size(width: int) -> int:
    return 1 if width <= 256 else 2 if width <= 65536 else 4


def _num_payload_bytes(header: _Header) -> int:
    numbers = header.num_rows * header.num_kept * header.itemsize
    if header.kind == _TOP_K:
        marks = -(-header.width // 8) if header.form == _AS_BITS else header.num_kept * header.form
        return numbers + header.num_rows * marks
    if header.kind == _RANDOM_K:
        return numbers
    if header.bits not in (1, 2, 4, 8):
        return -1
    codes = -(-header.num_rows * header.width * header.bits // 8)
    return header.num_rows * 2 * header.itemsize + codes


def _pack_top(values: Array, spec: TopK) -> tuple[_Header, bytes]:
    num_rows, width = values.shape
    kept = _num_kept(spec.keep, width)
    chosen = np.argpartition(np.abs(values), width - kept, axis=1)[:, width - kept :]
    chosen.sort(axis=1)
    numbers = np.take_along_axis(values, chosen, axis=1)
    size = _index_size(width)
    if kept * size < -(-width // 8):
        form, marks = size, chosen.astype(f"<u{size}")
    else:
        present = np.zeros((num_rows, width), dtype=bool)
        np.put_along_axis(present, chosen, True, axis=1)
        form, marks = _AS_BITS, np.packbits(present, axis=1)
    header = _Header(_TOP_K, values.itemsize, 0, form, num_rows, width, kept, 0)
    return header, marks.tobytes() + numbers.tobytes()


def _unpack_top(header: _Header, payload: bytes) -> Array:
    rows, width, kept = header.num_rows, header.width, header.num_kept
    if header.form == _AS_BITS:
        num_marks = -(-width // 8)
        marks = np.frombuffer(payload, dtype=np.uint8, count=rows * num_marks)
        present = np.unpackbits(marks.reshape(rows, num_marks), axis=1, count=width).astype(bool)
        if rows and (present.sum(axis=1) != kept).any():
            raise ProtocolError("a packed embedding does not mark as many values as it has")
        chosen = np.nonzero(present)[1].reshape(rows, kept)
        offset = marks.nbytes
    elif header.form in (1, 2, 4):
        kind = f"<u{header.form}"
        chosen = np.frombuffer(payload, dtype=kind, count=rows * kept).reshape(rows, kept)
        chosen = chosen.astype(np.int64)
        if chosen.size and chosen.max() >= width:
            raise ProtocolError("a packed embedding names a value beyond its width")
        offset = rows * kept * header.form
    else:
        raise ProtocolError("a packed embedding marks its values in an unknown form")
    found = np.zeros((rows, width), dtype=_float_type(header.itemsize))
    numbers = np.frombuffer(payload, dtype=found.dtype, offset=offset).reshape(rows, kept)
    np.put_along_axis(found, chosen, numbers, axis=1)
    return found


def _pack_random(values: Array, spec: RandomK, seed: int) -> tuple[_Header, bytes]:
    num_rows, width = values.shape
    kept = _num_kept(spec.keep, width)
    columns = shuffled(width, seed)[:kept]
    # Feedback makes up for what was left out; without it, scaling keeps the mean right.
    scale = 1.0 if spec.feedback else width / kept
    numbers = values[:, columns] * values.dtype.type(scale)
    header = _Header(_RANDOM_K, values.itemsize, 0, 0, num_rows, width, kept, seed)
    return header, np.ascontiguousarray(numbers).tobytes()


def _unpack_random(header: _Header, payload: bytes) -> Array:
    found = np.zeros((header.num_rows, header.width), dtype=_float_type(header.itemsize))
    columns = shuffled(header.width, header.seed)[: header.num_kept]
    found[:, columns] = np.frombuffer(payload, dtype=found.dtype).reshape(
        header.num_rows, header.num_kept
    )
    return found


def _pack_quantized(values: Array, spec: Quantize, seed: int) -> tuple[_Header, bytes]:
    num_rows, width = values.shape
    steps = 2**spec.bits - 1
    least = values.min(axis=1, keepdims=True, initial=np.inf)
    most = values.max(axis=1, keepdims=True, initial=-np.inf)
    span = np.where(most > least, most - least, 1.0).astype(values.dtype)
    draw = np.random.Generator(np.random.Philox(key=seed)).random(values.shape, dtype=np.float32)
    codes = np.floor((values - least) / span * steps + draw)
    codes = np.clip(np.nan_to_num(codes), 0, steps).astype(np.uint8).reshape(-1)
    header = _Header(_QUANTIZED, values.itemsize, spec.bits, 0, num_rows, width, 0, 0)
    return header, least.tobytes() + most.tobytes() + _pack_codes(codes, spec.bits).tobytes()


def _unpack_quantized(header: _Header, payload: bytes) -> Array:
    rows, width = header.num_rows, header.width
    kind = np.dtype(_float_type(header.itemsize))
    least, most = np.frombuffer(payload, dtype=kind, count=2 * rows).reshape(2, rows, 1)
    raw = np.frombuffer(payload, dtype=np.uint8, offset=2 * rows * kind.itemsize)
    codes = _unpack_codes(raw, header.bits, rows * width).reshape(rows, width)
    share = codes.astype(kind) / kind.type(2**header.bits - 1)
    found: Array = least + share * (most - least)
    return found


def _pack_codes(codes: Array, bits: int) -> Array:
    per_byte = 8 // bits
    padded = np.zeros(-(-len(codes) // per_byte) * per_byte, dtype=np.uint8)
    padded[: len(codes)] = codes
    packed = np.zeros(len(padded) // per_byte, dtype=np.uint8)
    for place in range(per_byte):
        packed |= padded[place::per_byte] << (bits * place)
    return packed


def _unpack_codes(raw: Array, bits: int, count: int) -> Array:
    per_byte = 8 // bits
    codes = np.empty(len(raw) * per_byte, dtype=np.uint8)
    for place in range(per_byte):
        codes[place::per_byte] = (raw >> (bits * place)) & (2**bits - 1)
    return codes[:count]
