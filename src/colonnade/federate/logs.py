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
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from colonnade.core.errors import ColonnadeError, StorageError

__all__ = ["JsonLines", "log_to"]

_OWN = "colonnade"
_LONGEST = 500
# Of a log in a file: the size of each, and how many older ones are kept.
_FILE_BYTES = 10_000_000
_NUM_FILES = 5
_LOG = logging.getLogger("colonnade.process")
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


class _OwnFile(RotatingFileHandler):
    """Every file that it begins is for its owner only."""

    def _open(self) -> TextIOWrapper:
        handle = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return TextIOWrapper(os.fdopen(handle, "ab"), encoding="ascii", line_buffering=True)


def log_to(
    place: TextIO | Path | None = None, *, level: int = logging.INFO, **always: Any
) -> logging.Handler:
    """Write all logs of this process as JSON lines.

    Warnings of libraries are lines of the log too, and so are errors that nobody caught.

    Args:
        place: A stream, standard error if none is given; or a file, of which ten megabytes and
            five files before it are kept.
        level: The least level of own events.
        always: What stands in every line.

    Returns:
        The handler.

    Raises:
        StorageError: The file can't be written.
    """
    handler: logging.Handler
    if isinstance(place, Path):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            handler = _OwnFile(
                place, maxBytes=_FILE_BYTES, backupCount=_NUM_FILES, encoding="ascii"
            )
        except OSError as error:
            raise StorageError(f"{place}: can't be written: {error.strerror}") from error
    else:
        handler = logging.StreamHandler(place or sys.stderr)
    handler.setFormatter(JsonLines(always))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(_OWN).setLevel(level)
    # Not as text between the lines.
    logging.captureWarnings(True)
    # The text of an error in a log handler would quote the record.
    logging.raiseExceptions = False
    # Whoever put a hook of its own there keeps it.
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _log_uncaught
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = lambda found: _log_uncaught(
            found.exc_type, found.exc_value or found.exc_type(), found.exc_traceback
        )
    return handler


def _log_uncaught(
    kind: type[BaseException], error: BaseException, place: TracebackType | None
) -> None:
    """An error that nobody caught, by its type and place."""
    if not issubclass(kind, SystemExit | KeyboardInterrupt):
        _LOG.critical("an error that nobody caught", exc_info=(kind, error, place))


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
