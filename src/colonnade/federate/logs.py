"""Structured logs without data: one JSON object a line.

A line has a time, a level, the logger's name, an event in fixed words, and fields. Fields are
numbers, truth values and short texts. Of any other value only the type is written, so that no
tensor or table ends up in a log by mistake. Messages of other libraries are left out, and of their
errors the type and the place are written only: their texts may quote data.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Any, TextIO

from colonnade.core.errors import ColonnadeError

__all__ = ["JsonLines", "log_to"]

_OWN = "colonnade"
_LONGEST = 500
_RESERVED = ("time", "level", "where", "event")


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON; ``always`` is in every line (the party's name, say)."""

    def __init__(self, always: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._always = {key: _plain(value) for key, value in (always or {}).items()}

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        is_own = record.name == _OWN or record.name.startswith(f"{_OWN}.")
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "where": record.name,
            "event": _event(record) if is_own else "a library's message, not shown",
            **self._always,
        }
        fields = getattr(record, "fields", None)
        if is_own and isinstance(fields, Mapping):
            line |= {
                str(key): _plain(value) for key, value in fields.items() if key not in _RESERVED
            }
        if record.exc_info and record.exc_info[1] is not None:
            line |= _error(record.exc_info[1])
        return json.dumps(line, ensure_ascii=True, allow_nan=False)


def log_to(
    stream: TextIO | None = None, *, level: int = logging.INFO, **always: Any
) -> logging.Handler:
    """Write all logs of this process to a stream (standard error) as JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(always))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(_OWN).setLevel(level)
    return handler


def _event(record: logging.LogRecord) -> str:
    if not record.args:
        return str(record.msg)[:_LONGEST]
    arguments = record.args
    if isinstance(arguments, Mapping):
        safe: Any = {key: _argument(value) for key, value in arguments.items()}
    else:
        safe = tuple(_argument(value) for value in arguments)
    try:
        return str(record.msg % safe)[:_LONGEST]
    except (TypeError, ValueError):
        return str(record.msg)[:_LONGEST]


def _argument(value: Any) -> Any:
    return str(value) if isinstance(value, ColonnadeError) else _plain(value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        # JSON has no NaN and no infinity.
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
    return f"<{type(value).__name__}>"


def _error(error: BaseException) -> dict[str, Any]:
    """An error's type and place, and its message if it is our own: ours quote no data."""
    line: dict[str, Any] = {"error": type(error).__name__}
    if isinstance(error, ColonnadeError):
        line["message"] = str(error)[:_LONGEST]
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        name = frames[-1].filename.replace("\\", "/").rpartition("/")[2]
        line["place"] = f"{name}:{frames[-1].lineno}"
    return line
