"""What a value tells of samples: declared in the signature of every verb, in both directions.

A verb's return annotation says what leaves the party (``-> Embedding``); the annotations of its
parameters say what leaves the label holder (``gradient: Derivative``). Doors, protections and
ledgers go by these declarations, never by the identity of a tensor. A tensor without one is
undeclared, and does not pass a door where a protection stands.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, TypeAlias

from torch import Tensor

from colonnade.core.messages import Batch

__all__ = [
    "ABOUT_COLUMNS",
    "Average",
    "Bytes",
    "Columns",
    "Count",
    "Declared",
    "Derivative",
    "Embedding",
    "Kind",
    "Loss",
    "Output",
    "OwnOutput",
    "RollOfSamples",
    "Weights",
    "declared",
]


class Kind(Enum):
    """What a tensor that crosses a link was made of."""

    EMBEDDING = "embedding"
    """Made by an encoder of one party's own columns, a row per sample."""
    OWN_OUTPUT = "own output"
    """Outputs of a model over one party's columns alone. They tell what an embedding tells."""
    OUTPUT = "output"
    """Outputs made of what was shared before."""
    DERIVATIVE = "derivative"
    """The derivative of a loss by somebody's embeddings or outputs."""
    AVERAGE = "average"
    """The average of several parties' embeddings."""
    LOSS = "loss"
    """One number over a whole batch."""
    COLUMNS = "columns"
    """A party's columns in another form; never allowed between organisations."""
    ROLL = "roll"
    """Numbers of samples, and who has them; nothing of their columns or labels."""
    WEIGHTS = "weights"
    """Parameters of a network, or how much something counts."""
    COUNT = "count"
    """How many there are of something."""
    BYTES = "bytes"
    """Public keys, signatures and hashes; nothing about samples."""
    UNDECLARED = "undeclared"
    """A verb's author did not say."""

    # There is one of each. An enum's own hash is that of its name, computed anew at every look-up.
    __hash__ = object.__hash__


# Made of one party's own columns by its own network: what protections of columns cover.
ABOUT_COLUMNS = frozenset({Kind.EMBEDDING, Kind.OWN_OUTPUT})

Embedding: TypeAlias = Annotated[Tensor, Kind.EMBEDDING]
OwnOutput: TypeAlias = Annotated[Tensor, Kind.OWN_OUTPUT]
Output: TypeAlias = Annotated[Tensor, Kind.OUTPUT]
Derivative: TypeAlias = Annotated[Tensor, Kind.DERIVATIVE]
Average: TypeAlias = Annotated[Tensor, Kind.AVERAGE]
Loss: TypeAlias = Annotated[Tensor, Kind.LOSS]
Columns: TypeAlias = Annotated[Tensor, Kind.COLUMNS]
RollOfSamples: TypeAlias = Annotated[Tensor, Kind.ROLL]
Weights: TypeAlias = Annotated[Tensor, Kind.WEIGHTS]
Count: TypeAlias = Annotated[Tensor, Kind.COUNT]
Bytes: TypeAlias = Annotated[Tensor, Kind.BYTES]

# Of a tensor, or of every item of a table; None for values that are no tensors.
Declared: TypeAlias = Kind | Mapping[str, Kind] | None


def declared(annotation: Any) -> Declared:
    """What an annotation declares.

    Args:
        annotation: A resolved annotation with its extras: ``Embedding``, ``Mapping[str,
            Embedding]``, a ``TypedDict`` of such, a union with None, or a plain type.

    Returns:
        A kind for a tensor or for all items of a mapping; a mapping from item to kind for a
        ``TypedDict``; None where no tensor can be.
    """
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        _, *extras = typing.get_args(annotation)
        return next((item for item in extras if isinstance(item, Kind)), Kind.UNDECLARED)
    if origin in (typing.Union, types.UnionType):
        found = [declared(item) for item in typing.get_args(annotation)]
        return next((item for item in found if item is not None), None)
    if origin in (Mapping, dict):
        return declared(typing.get_args(annotation)[1])
    if typing.is_typeddict(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return {name: _kind(item) for name, item in hints.items()}
    # ``object`` and ``Any`` may hold a tensor too.
    is_plain = annotation in (int, float, str, bool, Batch, type(None))
    return None if is_plain else Kind.UNDECLARED


def _kind(annotation: Any) -> Kind:
    found = declared(annotation)
    return found if isinstance(found, Kind) else Kind.COUNT
