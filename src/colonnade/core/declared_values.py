"""Looks at a value beside what it is declared to be: its tensors, their shapes and kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from colonnade.core.fabric import num_payload_bytes
from colonnade.core.messages import Value
from colonnade.core.releases import Declared, Kind

__all__ = ["has_tensors", "is_empty", "kind_of", "named_kinds", "shapes_of", "size_of"]


def kind_of(kinds: Declared, key: str) -> Declared:
    """The kind of one item of a table."""
    return kinds.get(key, Kind.UNDECLARED) if isinstance(kinds, Mapping) else kinds


def has_tensors(value: Value, kinds: Declared) -> bool:
    """Whether a value holds tensors that may tell of samples."""
    if isinstance(value, Tensor):
        return kinds not in (Kind.COUNT, Kind.BYTES)
    return isinstance(value, Mapping) and any(
        has_tensors(item, kind_of(kinds, key)) for key, item in value.items()
    )


def shapes_of(value: Any) -> Any:
    """The shapes of all tensors, arranged as they are."""
    if isinstance(value, Tensor):
        return list(value.shape)
    if isinstance(value, Mapping):
        return {key: shapes_of(item) for key, item in value.items() if isinstance(item, Tensor)}
    if isinstance(value, tuple):
        return [shapes_of(item) for item in value if isinstance(item, Tensor | Mapping)]
    return None


def size_of(arguments: tuple[Value, ...]) -> tuple[Any, int]:
    """The shapes of all tensors, and the bytes of everything."""
    return shapes_of(arguments), sum(map(num_payload_bytes, arguments))


def named_kinds(kinds: Declared) -> Any:
    """Kinds in words, for a ledger."""
    if isinstance(kinds, Mapping):
        return {key: kind.value for key, kind in kinds.items()}
    return None if kinds is None else kinds.value


def is_empty(value: Value) -> bool:
    """Whether it is a table without anything."""
    return isinstance(value, Mapping) and not value
