"""Configuration: plain mappings into frozen dataclasses, with every mistake named by its path.

A class that is configured *is* its configuration: a frozen, keyword-only dataclass. ``parse`` fills
one from a mapping (a TOML file, say), ``dump`` turns it back. Unknown keys are refused with the
nearest valid key; types are checked, never coerced, except that a whole number may stand for a
float. Where one of several classes may stand (``encoder = {kind = "mlp", ...}``) a ``Choice`` says
which tag selects it, and the bare tag (``encoder = "mlp"``) means that class with its defaults.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from colonnade.core.errors import ConfigError
from colonnade.core.own_code import OwnCode

__all__ = ["Choice", "dump", "nearest", "parse"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The classes that may stand for an abstract one, by the value of a tag.

    ``number`` names an option and its key that a bare whole number stands for.
    """

    tag: str
    options: Mapping[str, type]
    number: tuple[str, str] | None = None


Choices = Mapping[type, Choice]


def nearest(name: str, valid: Sequence[str]) -> str:
    """A hint such as ``; did you mean 'mlp'? (valid: cnn, mlp)``."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ";"
    return f"{hint} (valid: {', '.join(sorted(valid))})"


def parse(cls: type[T], values: Any, *, choices: Choices | None = None, path: str = "") -> T:
    """Fill ``cls`` from a mapping; raise ConfigError with the key's path for anything wrong."""
    parsed: T = _parse(cls, values, choices or {}, path)
    return parsed


def dump(value: Any, *, choices: Choices | None = None) -> Any:
    """Turn a configuration back into plain mappings, lists and scalars (JSON's types).

    StorageError if a function of the caller's own is in it.
    """
    if isinstance(value, OwnCode):
        value.refuse_writing()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {
            field.name: dump(getattr(value, field.name), choices=choices)
            for field in dataclasses.fields(value)
            if field.init
        }
        for choice in (choices or {}).values():
            for tag, option in choice.options.items():
                if type(value) is option:
                    return {choice.tag: tag, **plain}
        return plain
    if isinstance(value, Mapping):
        return {str(key): dump(item, choices=choices) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [dump(item, choices=choices) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def _parse(kind: Any, value: Any, choices: Choices, path: str) -> Any:
    if kind is Any:
        return value
    if isinstance(kind, type) and kind in choices:
        return _parse_choice(choices[kind], value, choices, path)
    if dataclasses.is_dataclass(kind):
        return _parse_dataclass(kind, value, choices, path)
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return _parse_union(kind, value, choices, path)
    if origin is Literal:
        allowed = typing.get_args(kind)
        if value not in allowed:
            texts = [str(item) for item in allowed]
            raise ConfigError(f"{_at(path)}unknown value {value!r}{nearest(str(value), texts)}")
        return value
    if origin in (tuple, list, Sequence):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise _wrong(path, "a list", value)
        item_kind = typing.get_args(kind)[0]
        return tuple(
            _parse(item_kind, item, choices, f"{path}[{number}]")
            for number, item in enumerate(value)
        )
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(path, "a table", value)
        item_kind = typing.get_args(kind)[1]
        return {
            str(key): _parse(item_kind, item, choices, _join(path, str(key)))
            for key, item in value.items()
        }
    return _parse_scalar(kind, value, path)


def _parse_scalar(kind: Any, value: Any, path: str) -> Any:
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not value.shape:
        value = value.item()  # numpy's numbers are numbers
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if kind is type(None) and value is None:
        return None
    if isinstance(value, bool) and kind is not bool:
        raise _wrong(path, _noun(kind), value)
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise _wrong(path, _noun(kind), value)


def _parse_union(kind: Any, value: Any, choices: Choices, path: str) -> Any:
    """The first member that fits; if none does, the complaint of the last that takes such values.

    A table is judged by the last member that is one, anything else by the last member of all.
    """
    members = [member for member in typing.get_args(kind) if member is not type(None)]
    if value is None and len(members) < len(typing.get_args(kind)):
        return None
    complaint: ConfigError | None = None
    for member in members:
        try:
            return _parse(member, value, choices, path)
        except ConfigError as error:
            is_table = typing.get_origin(member) in (dict, Mapping)
            if complaint is None or not isinstance(value, Mapping) or is_table:
                complaint = error
    raise complaint or _wrong(path, "a value", value)


def _parse_choice(choice: Choice, value: Any, choices: Choices, path: str) -> Any:
    if isinstance(value, str):
        value = {choice.tag: value}
    if choice.number is not None and type(value) is int:
        value = {choice.tag: choice.number[0], choice.number[1]: value}
    if type(value) in choice.options.values():
        return value
    if not isinstance(value, Mapping):
        raise _wrong(path, f"a name or a table with '{choice.tag}'", value)
    rest = dict(value)
    tag = rest.pop(choice.tag, None)
    if tag is None:
        options = ", ".join(sorted(choice.options))
        raise ConfigError(f"{_at(_join(path, choice.tag))}missing; one of: {options}")
    if not isinstance(tag, str) or tag not in choice.options:
        hint = nearest(str(tag), list(choice.options))
        raise ConfigError(f"{_at(_join(path, choice.tag))}unknown value {tag!r}{hint}")
    return _parse_dataclass(choice.options[tag], rest, choices, path)


def _parse_dataclass(cls: Any, value: Any, choices: Choices, path: str) -> Any:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise _wrong(path, "a table", value)
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for key in value:
        if key not in fields:
            hint = nearest(str(key), list(fields)) if fields else " (it takes no keys)"
            places = [_join(path, place) for place in _places_of(str(key), cls)]
            goes = f"; it goes to {' or '.join(places)}" if places else hint
            raise ConfigError(f"{_at(_join(path, str(key)))}unknown key{goes}")
    for name, field in fields.items():
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if required and name not in value:
            raise ConfigError(f"{_at(_join(path, name))}missing; it has no default")
    arguments = {
        name: _parse(hints[name], value[name], choices, _join(path, name))
        for name in fields
        if name in value
    }
    try:
        return cls(**arguments)
    except ConfigError as error:
        message = str(error)
        # "lr: must be above 0" becomes "party.bank.optimizer.lr: must be above 0".
        about_key = message.partition(":")[0].partition(".")[0] in fields
        raise ConfigError(_join(path, message) if about_key else f"{_at(path)}{message}") from error


def _places_of(key: str, cls: Any, depth: int = 3) -> list[str]:
    """Where below a class there is such a key; NAME stands for a name of the user's own."""
    found = []
    for name, hint in typing.get_type_hints(cls).items() if depth else ():
        members = [hint, *typing.get_args(hint)]
        # Tables by name, such as that of parties.
        below = f"{name}.NAME" if typing.get_origin(hint) in (dict, Mapping) else name
        for member in members:
            if isinstance(member, type) and dataclasses.is_dataclass(member):
                fields = [field.name for field in dataclasses.fields(member) if field.init]
                inner = [key] if key in fields else _places_of(key, member, depth - 1)
                found += [f"{below}.{place}" for place in inner]
    return found


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _at(path: str) -> str:
    return f"{path}: " if path else ""


_NOUNS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _noun(kind: Any) -> str:
    return _NOUNS.get(kind, getattr(kind, "__name__", str(kind)))


def _wrong(path: str, wanted: str, value: Any) -> ConfigError:
    return ConfigError(f"{_at(path)}expected {wanted}, got {value!r} ({type(value).__name__})")
