"""Verbs: the closed, typed set of calls that a participant answers.

``@verb`` marks a method. Its parameters must be annotated with types that may cross a link;
arguments are checked against them before anything runs. The annotations also declare what every
tensor tells of samples (``core.releases``). Names that are not verbs can't be called from outside,
whatever attribute they may match.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from torch import Tensor

from colonnade.core.messages import Batch
from colonnade.core.releases import Declared, Kind, declared

__all__ = ["RUNTIME_TYPES", "Verb", "VerbSet", "collect_verbs", "members_of", "verb"]

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "_colonnade_verb"

# What an annotation admits at run time.
RUNTIME_TYPES: Mapping[Any, tuple[type, ...]] = {
    Tensor: (Tensor,),
    Batch: (Batch,),
    int: (int,),
    float: (float, int),
    str: (str,),
    bool: (bool,),
}


@dataclass(frozen=True)
class Verb:
    """One verb: its name, what runs it, the types of its arguments, and what it declares."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[tuple[str, Any], ...]
    # What the label holder releases with each argument, and what the answer releases.
    takes: tuple[Declared, ...] = ()
    releases: Declared = Kind.UNDECLARED
    # The type of the answer, without declarations.
    returns: Any = Any

    @property
    def undeclared(self) -> tuple[str, ...]:
        """The tensors, by parameter name or as "its answer", whose kind nobody declared."""
        names = [name for name, _ in self.parameters]
        found = [
            name
            for name, item in zip((*names, "its answer"), (*self.takes, self.releases), strict=True)
            if item is Kind.UNDECLARED
            or (isinstance(item, Mapping) and Kind.UNDECLARED in item.values())
        ]
        return tuple(found)


class VerbSet:
    """Whatever has verbs: a participant, its door, its place for checkpoints."""

    verbs: ClassVar[Mapping[str, Verb]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.verbs = collect_verbs(cls)


def verb(function: F) -> F:
    """Mark a method as callable from the label holder.

    Args:
        function: A method whose parameters have annotations that may cross a link. Tensors are
            annotated with what they tell: ``Embedding``, ``Derivative``, ...

    Returns:
        The same method.

    Raises:
        TypeError: When the class is made, if an annotation may not cross a link.
    """
    setattr(function, _MARK, True)
    return function


def collect_verbs(cls: type) -> dict[str, Verb]:
    """The verbs of a class, checked for annotations that may cross a link."""
    verbs = {}
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        if not getattr(function, _MARK, False):
            continue
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = []
        takes = []
        for parameter in list(inspect.signature(function).parameters)[1:]:
            kind = _plain(hints.get(parameter))
            if kind is None or not _is_allowed(kind):
                raise TypeError(
                    f"{cls.__name__}.{name}: parameter '{parameter}' needs an annotation that may "
                    f"cross a link (got {kind})"
                )
            parameters.append((parameter, kind))
            takes.append(declared(hints[parameter]))
        verbs[name] = Verb(
            name=name,
            function=function,
            parameters=tuple(parameters),
            takes=tuple(takes),
            releases=declared(hints.get("return", Any)),
            returns=_plain(hints.get("return", Any)),
        )
    return verbs


def _plain(kind: Any) -> Any:
    """An annotation without its declarations."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return typing.get_args(kind)[0]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_plain, typing.get_args(kind)))]  # noqa: UP007
    if origin in (Mapping, dict):
        key, item = typing.get_args(kind)
        plain: Any = Mapping
        return plain[key, _plain(item)]
    return kind


def members_of(kind: Any) -> tuple[Any, ...]:
    """The members of a union (``int | None``), or the type itself."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def _is_allowed(kind: Any) -> bool:
    if typing.get_origin(kind) is Mapping:
        key, item = typing.get_args(kind)
        return key is str and item in (Tensor, float)
    if kind is type(None):
        return True
    members = members_of(kind)
    return kind in RUNTIME_TYPES if members == (kind,) else all(map(_is_allowed, members))
