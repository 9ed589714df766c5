"""The predictor of one process: a run's result over parties' live tables."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import (
    ConfigError,
    DataError,
    NoAnswer,
    PartyFailed,
    Refused,
)
from colonnade.core.fabric import Fabric
from colonnade.data.blocks import Block
from colonnade.quality.drift import Drift
from colonnade.run.result import Result
from colonnade.run.storage import RunInUse
from colonnade.serve.kept_embeddings import KeptEmbeddings
from colonnade.serve.live_tables import LiveTables
from colonnade.serve.outcomes import outcomes_of
from colonnade.serve.predictor import (
    ObservedRows,
    Outcome,
    ServedExchange,
    ServedModel,
    Unanswered,
)
from colonnade.serve.watched_fabric import WatchedFabric

__all__ = ["InProcessPredictor"]

# As many as evaluation takes: one batch of a method's ``predict``.
_MOST_TOGETHER = 1024


class _Table(NamedTuple):
    features: Tensor
    row_of: Mapping[str, int]


class _Group(NamedTuple):
    """Ids that the same parties have, with the same parties' embeddings kept."""

    present: tuple[str, ...]
    kept: tuple[str, ...]


class InProcessPredictor:
    """One version of a model, with every party's columns in this process.

    Args:
        result: The run's result.
        model: What callers may know of it.
        tables: The parties' tables.
        kept: The cache of embeddings.
        in_use: What keeps the run from being deleted.
    """

    def __init__(
        self,
        result: Result,
        model: ServedModel,
        tables: LiveTables,
        kept: KeptEmbeddings,
        in_use: RunInUse,
    ) -> None:
        if result.is_pooled:
            raise ConfigError(
                "serve: this run pooled all columns in one place, a baseline for comparison; "
                "serve a run whose columns stay with their parties"
            )
        self._result = result
        self._model = model
        self._tables = tables
        self._kept = kept
        self._in_use = in_use
        self._own: dict[str, _Table] = {}
        self._away: dict[str, str] = {}
        self._drift = {name: Drift() for name in model.parties}
        self._lock = threading.Lock()
        tables.listen(self._adopt)

    @property
    def model(self) -> ServedModel:
        """What it is."""
        return self._model

    def away(self) -> Mapping[str, str]:
        """Parties without a table that can be used."""
        no_file = dict.fromkeys(self._model.parties, "no table was given")
        return {
            name: self._away.get(name, no_file[name]) for name in no_file if name not in self._own
        }

    def observed(self) -> Mapping[str, ObservedRows]:
        """By party, how far its served rows are from its training rows."""
        return {
            name: ObservedRows(rows=item.num_seen, input_drift=distance)
            for name, item in self._drift.items()
            if (distance := item.distance()) is not None
        }

    def close(self) -> None:
        """Hear of no more changes of tables."""
        self._tables.stop_telling(self._adopt)
        self._in_use.close()

    def warm_up(self) -> None:
        """Answer once for a row that every party has, if there is one; nobody hears of it."""
        if len(self._own) < len(self._model.parties):
            return
        own = dict(self._own)
        tables = list(own.values())
        shared = set(tables[0].row_of).intersection(*(item.row_of for item in tables[1:]))
        common = next(iter(shared), None)
        if common is not None:
            group = _Group(present=tuple(sorted(own)), kept=())
            self._answer([common], group, own, {})

    def _adopt(self, party: str, block: Block | str) -> None:
        if party not in self._model.parties:
            return
        table = None
        if isinstance(block, Block):
            try:
                row_of = {name: row for row, name in enumerate(block.ids.tolist())}
                table = _Table(self._result.features(block), row_of)
            except DataError:
                block = "its table does not fit the model"
        with self._lock:
            self._kept.forget(party)
            if table is None:
                self._own.pop(party, None)
                self._away[party] = str(block)
            else:
                self._own[party] = table
                self._away.pop(party, None)

    def predict_here(
        self, ids: Sequence[str], *, deadline: float, without: Collection[str]
    ) -> None:
        """Nothing: networks compute in a thread."""

    def predict(
        self, ids: Sequence[str], *, deadline: float, without: Collection[str]
    ) -> ServedExchange:
        """Answer for these ids: in one process everybody answers at once, or is away."""
        with self._lock:
            own = dict(self._own)
        seconds: dict[str, float] = {}
        silent: set[str] = set()
        outcomes: dict[str, Outcome | Unanswered] = {}
        here = {name: table for name, table in own.items() if name not in without}
        while True:
            groups: dict[_Group, list[str]] = defaultdict(list)
            for name in ids:
                if name not in outcomes:
                    group = self._group(name, here)
                    if isinstance(group, Unanswered):
                        outcomes[name] = group
                    else:
                        groups[group].append(name)
            try:
                for group, members in groups.items():
                    for begin in range(0, len(members), _MOST_TOGETHER):
                        some = members[begin : begin + _MOST_TOGETHER]
                        found = self._answer(some, group, own, seconds)
                        outcomes.update(zip(some, found, strict=True))
            except (PartyFailed, Refused) as error:
                # It counts as away: whoever can answer without it does.
                silent.add(error.party)
                here.pop(error.party)
                self._kept.forget(error.party)
            except NoAnswer as error:
                silent.update(error.parties)
                here = {name: item for name, item in here.items() if name not in error.parties}
            else:
                break
        return ServedExchange(
            outcomes=[outcomes[name] for name in ids],
            seconds={name: taken for name, taken in seconds.items() if name not in silent},
            silent=tuple(sorted(silent)),
        )

    def _group(self, name: str, here: Mapping[str, _Table]) -> _Group | Unanswered:
        """Whom to ask for an id, and whose embedding is kept; or why nobody can."""
        kept = (
            ()
            if self._model.is_blinded
            else tuple(
                party for party in self._model.parties if self._kept.find(party, name) is not None
            )
        )
        present = tuple(
            party
            for party in self._model.parties
            if party in kept or (party in here and name in here[party].row_of)
        )
        if not present:
            away = tuple(party for party in self._model.parties if party not in here)
            return Unanswered(reason="away" if away else "unknown", parties=away)
        lacking = [party for party in self._model.parties if party not in present]
        if lacking and not self._model.tolerates_missing:
            away = tuple(party for party in lacking if party not in here)
            return Unanswered(reason="away" if away else "missing", parties=away or tuple(lacking))
        return _Group(present=present, kept=kept)

    def _answer(
        self,
        ids: Sequence[str],
        group: _Group,
        own: Mapping[str, _Table],
        seconds: dict[str, float],
    ) -> list[Outcome]:
        """One batch: ids that the same parties have."""
        now = time.monotonic()
        features, rows = {}, {}
        ages = {party: [0.0] * len(ids) for party in group.present}
        kept: dict[str, Tensor] = {}
        for party in group.present:
            if party in group.kept:
                entries = [self._kept.find(party, name) for name in ids]
                known = [entry for entry in entries if entry is not None]
                kept[party] = torch.stack([entry.value for entry in known])
                ages[party] = [now - entry.released for entry in known]
                # The party is not asked: any row stands for the sample.
                features[party] = kept[party]
                rows[party] = np.arange(len(ids))
                continue
            table = own[party]
            features[party] = table.features
            rows[party] = np.array([table.row_of[name] for name in ids])
            self._drift[party].see(table.features[torch.from_numpy(rows[party])])
        watched: list[WatchedFabric] = []

        def through(fabric: Fabric) -> Fabric:
            watched.append(WatchedFabric(fabric, kept, is_direct=True))
            return watched[0]

        answered = self._result.answer_rows(features, rows, ids=ids, through=through)
        for party, taken in watched[0].seconds.items():
            seconds[party] = seconds.get(party, 0.0) + taken
        if not self._model.is_blinded:
            for party, embeddings in watched[0].released.items():
                if len(embeddings) == len(ids):
                    self._kept.keep(party, ids, embeddings, now)
        return outcomes_of(answered, ages, kept)
