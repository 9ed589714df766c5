"""Features of a prediction at a party: from its table, a live file, or a function of its own.

A file is looked at once a second and read again when it has changed. A file that is gone or can't
be read has no features until it is whole again; old rows are not given in its place. A function is
imported by the path in the party's own ``party.toml``, never by anything from the network.
"""

from __future__ import annotations

import importlib
import logging
import re
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from colonnade.core.errors import ColonnadeError, ConfigError, DataError, Refused
from colonnade.data.blocks import Block, make_block
from colonnade.files import file_mark
from colonnade.run.samples import Rows, bounds_of

__all__ = ["CalledFeatures", "FeatureSource", "Features", "FeaturesSpec", "LiveFeatures"]

_LOG = logging.getLogger("colonnade.agent")
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class FeaturesSpec:
    """The table ``[features]`` of party.toml: where predictions take features from.

    Attributes:
        file: A table with the id column and the columns of training; the party's table if neither.
        function: An import path, such as ``shop_store:lookup``. It is called with a list of ids as
            they stand in the party's table, and gives a pandas table with a row per id, in order.
    """

    file: Path | None = None
    function: str | None = None

    def __post_init__(self) -> None:
        if self.file is not None and self.function is not None:
            raise ConfigError("features: either a file or a function")
        if self.function is not None and not _PATH.fullmatch(self.function):
            raise ConfigError(
                f"features.function: expected 'package.module:function', got '{self.function}'"
            )


class FeatureSource(Protocol):
    """Where the features of samples come from."""

    @property
    def edition(self) -> str:
        """Text that changes when the features may have."""

    def take(self, rows: Rows) -> Features:
        """The prepared features of rows of the aligned table; Refused if some have none now."""

    def lacks(self, rows: Rows) -> Lacking:
        """For each of these rows, whether it is known to have no features now."""


Features = np.ndarray[Any, Any]
Lacking = np.ndarray[Any, np.dtype[np.bool_]]
Prepare = Callable[[Block], Features]


class _Read(NamedTuple):
    block: Block
    # All rows, so that a request need not wait for it; None if some rows can't be prepared.
    prepared: Features | None
    # The row of the block for every row of the aligned table; -1 where there is none.
    places: Rows


class LiveFeatures:
    """Rows of a file, by id.

    Args:
        party: Whose they are.
        path: The file.
        read: Reads it.
        prepare: Makes features of rows.
        ids: The ids of the aligned table's rows, as ``read`` gives ids.

    Raises:
        DataError: It can't be used now: better told when a session begins than later.
    """

    def __init__(
        self,
        party: str,
        path: Path,
        read: Callable[[], Block],
        prepare: Prepare,
        ids: Sequence[str],
        *,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._party, self._path = party, path
        self._read_file, self._prepare = read, prepare
        self._ids = pd.Index(ids)
        self._mark = file_mark(path)
        self._now: _Read | None = self._read()
        self._edition = secrets.token_hex(8)
        threading.Thread(
            target=_watch, args=(weakref.ref(self), look_seconds), name="features", daemon=True
        ).start()

    @property
    def edition(self) -> str:
        """Text that changes when the file has."""
        return self._edition

    def take(self, rows: Rows) -> Features:
        """The prepared features of rows of the aligned table.

        Raises:
            Refused: Some of them have none now.
        """
        now = self._now
        if now is None:
            raise Refused(f"party '{self._party}': its features can't be read", party=self._party)
        places = now.places[rows]
        if len(places) and bounds_of(places)[0] < 0:
            raise Refused(
                f"party '{self._party}': {int((places < 0).sum())} of {len(rows)} samples have no "
                "features now",
                party=self._party,
            )
        if now.prepared is not None:
            return now.prepared[places]
        return self._prepare(now.block.take(places))

    def lacks(self, rows: Rows) -> Lacking:
        """For each of these rows, whether it has no features now."""
        now = self._now
        lacking: Lacking = np.ones(len(rows), bool) if now is None else now.places[rows] < 0
        return lacking

    def look(self) -> None:
        """Read the file again if it has changed."""
        mark = file_mark(self._path)
        if mark == self._mark:
            return
        self._mark = mark
        try:
            self._now = self._read()
        except ColonnadeError as error:
            self._now = None
            _LOG.error("features can't be read: %s", error.told())
        else:
            _LOG.info("features were read again: %d rows", len(self._now.block.ids))
        self._edition = secrets.token_hex(8)

    def _read(self) -> _Read:
        block = self._read_file()
        places = pd.Index(block.ids).get_indexer(self._ids)
        try:
            prepared = self._prepare(block)
        except DataError:
            prepared = None
        return _Read(block, prepared, np.asarray(places, dtype=np.int64))


def _watch(features: weakref.ref[LiveFeatures], look_seconds: float) -> None:
    """Look at the file for as long as somebody uses it."""
    pause = threading.Event()
    while not pause.wait(look_seconds):
        found = features()
        if found is None:
            return
        found.look()
        del found


class CalledFeatures:
    """Rows that a function of the party gives.

    Args:
        party: Whose they are.
        path: The function's import path.
        ids: The ids of the aligned table's rows, as they stand in the table.
        columns: The columns that are needed.
        prepare: Makes features of rows.
    """

    def __init__(
        self,
        party: str,
        path: str,
        ids: Sequence[Any],
        columns: tuple[str, ...],
        prepare: Prepare,
    ) -> None:
        self._party, self._ids, self._columns = party, ids, columns
        self._prepare = prepare
        module, _, name = path.partition(":")
        try:
            self._function: Callable[[list[Any]], Any] = getattr(
                importlib.import_module(module), name
            )
        except Exception as error:  # an imported module may raise anything at all
            raise ConfigError(
                f"features.function: '{path}' can't be imported ({type(error).__name__}); put its "
                "directory on PYTHONPATH where the agent runs"
            ) from error
        self.edition = secrets.token_hex(8)

    def take(self, rows: Rows) -> Features:
        """The prepared features of what the function gives for rows of the aligned table.

        Raises:
            Refused: It failed, or gave something else than a row per id.
        """
        wanted = [self._ids[row] for row in rows.tolist()]
        try:
            table = self._function(list(wanted))
            if not isinstance(table, pd.DataFrame) or len(table) != len(wanted):
                raise TypeError("a table with a row per id, in order")
            block = make_block(
                self._party,
                table.reset_index(drop=True),
                ids=[str(row) for row in rows.tolist()],
                columns=self._columns,
            )
            return self._prepare(block)
        except Exception as error:
            # Its message may quote data.
            _LOG.error("features.function failed: %s", type(error).__name__)
            raise Refused(
                f"party '{self._party}': its features can't be had now", party=self._party
            ) from None

    def lacks(self, rows: Rows) -> Lacking:
        """Nothing is known before the function is called."""
        return np.zeros(len(rows), dtype=bool)
