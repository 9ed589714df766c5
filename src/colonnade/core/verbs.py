"""Verbs: the closed, typed set of things that a party does when asked.

``@verb`` marks a method of a Party. Its parameters must be annotated with types that may cross a
link; arguments are checked against them before anything runs. Names that are not verbs can't be
called from outside, whatever attribute they may match.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from colonnade.core.errors import ProtocolError
from colonnade.core.messages import Batch

__all__ = ["Verb", "collect_verbs", "verb"]

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "_colonnade_verb"

# What an annotation admits at run time.
_CHECKS: Mapping[Any, tuple[type, ...]] = {
    Tensor: (Tensor,),
    Batch: (Batch,),
    int: (int,),
    float: (float, int),
    str: (str,),
    bool: (bool,),
}


@dataclass(frozen=True)
class Verb:
    """One verb: its name, what runs it, and the types of its arguments."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[tuple[str, Any], ...]

    def check(self, arguments: tuple[Any, ...]) -> None:
        """Raise ProtocolError unless the arguments have the declared number and types."""
        if len(arguments) != len(self.parameters):
            raise ProtocolError(
                f"verb '{self.name}' takes {len(self.parameters)} arguments, got {len(arguments)}"
            )
        for (name, kind), value in zip(self.parameters, arguments, strict=True):
            if not _admits(kind, value):
                raise ProtocolError(
                    f"verb '{self.name}': argument '{name}' should be {kind}, "
                    f"got {type(value).__name__}"
                )


def verb(function: F) -> F:
    """Mark a method of a Party as callable from the label holder."""
    setattr(function, _MARK, True)
    return function


def collect_verbs(cls: type) -> dict[str, Verb]:
    """The verbs of a Party class, checked for annotations that may cross a link."""
    verbs = {}
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        if not getattr(function, _MARK, False):
            continue
        hints = typing.get_type_hints(function)
        parameters = []
        for parameter in list(inspect.signature(function).parameters)[1:]:
            kind = hints.get(parameter)
            if kind is None or not _is_allowed(kind):
                raise TypeError(
                    f"{cls.__name__}.{name}: parameter '{parameter}' needs an annotation that may "
                    f"cross a link (got {kind})"
                )
            parameters.append((parameter, kind))
        verbs[name] = Verb(name=name, function=function, parameters=tuple(parameters))
    return verbs


def _members(kind: Any) -> tuple[Any, ...]:
    """The members of a union (``int | None``), or the type itself."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def _is_allowed(kind: Any) -> bool:
    if typing.get_origin(kind) is Mapping or typing.get_origin(kind) is dict:
        key, item = typing.get_args(kind)
        return key is str and item in (Tensor, float)
    if kind is type(None):
        return True
    members = _members(kind)
    return kind in _CHECKS if members == (kind,) else all(map(_is_allowed, members))


def _admits(kind: Any, value: Any) -> bool:
    # Most are of these: first, since it is quick.
    if kind in _CHECKS:
        if isinstance(value, bool) and kind is not bool:
            return False
        return isinstance(value, _CHECKS[kind])
    origin = typing.get_origin(kind)
    if origin is Mapping or origin is dict:
        _, item = typing.get_args(kind)
        return isinstance(value, Mapping) and all(
            isinstance(key, str) and _admits(item, entry) for key, entry in value.items()
        )
    if kind is type(None):
        return value is None
    members = _members(kind)
    return members != (kind,) and any(_admits(member, value) for member in members)
