"""The service itself, without HTTP: requests in, answers out; versions, limits and drain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError
from colonnade.serve.breaker import Breakers
from colonnade.serve.gathering import Found, Gathering
from colonnade.serve.predictor import Outcome, Predictor, ServedModel, Unanswered
from colonnade.serve.repeated_requests import RepeatedRequests
from colonnade.serve.versions import Versions
from colonnade.serve.watching import Watching

__all__ = ["PredictionService", "Row", "ServiceLimits"]


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Bounds on what callers may ask.

    Attributes:
        most_ids: Ids of one request.
        most_waiting: Ids that wait for an exchange; more are turned away with 429.
        most_together: Ids of one exchange.
        longest_deadline: Milliseconds.
        largest_body: Bytes of one request.
        slowest_body: Seconds for a request to arrive in full.
        most_connections: Requests and connections at a time.
    """

    most_ids: int = 1024
    most_waiting: int = 16384
    most_together: int = 4096
    longest_deadline: int = 60_000
    largest_body: int = 1 << 20
    slowest_body: float = 10.0
    most_connections: int = 1000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"{name}: above 0, got {value}")
        if self.most_waiting < self.most_ids:
            raise ConfigError("most_waiting: at least most_ids, so that every request may wait")

    @property
    def drain_seconds(self) -> float:
        """How long a request may be in hand at most: to arrive, and until its deadline."""
        return self.slowest_body + self.longest_deadline / 1000


@dataclass(frozen=True, kw_only=True)
class Row:
    """One id's outcome, and the version that it came from."""

    model: ServedModel
    found: Found


class PredictionService:
    """Answers requests with the version whose turn it is.

    Args:
        load: Loads a version by the name of its run; it may take long and is called in a thread.
        limits: Bounds on what callers may ask.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        load: Callable[[str], Predictor],
        *,
        limits: ServiceLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or ServiceLimits()
        self.is_draining = False
        self.repeated = RepeatedRequests(clock)
        self._load = load
        self._clock = clock
        self._loading = asyncio.Lock()
        self._num_inside = 0
        self._nobody_inside = asyncio.Event()
        self._nobody_inside.set()
        self.versions: Versions
        self.watching: Watching
        self.breakers: Breakers

    def begin(self, first: Predictor) -> None:
        """Take the first version, which is loaded."""
        first.warm_up()
        parties = first.model.parties
        self.breakers = Breakers(parties, self._clock)
        self.watching = Watching(parties)
        self.versions = Versions(self._gathering(first))
        self.watching.versions, self.watching.breakers = self.versions, self.breakers

    def _gathering(self, predictor: Predictor) -> Gathering:
        return Gathering(
            predictor,
            self.breakers,
            most_waiting=self.limits.most_waiting,
            most_together=self.limits.most_together,
            watch=self.watching.exchange,
        )

    @property
    def model(self) -> ServedModel:
        """The version that answers."""
        return self.versions.current.predictor.model

    def unready(self) -> str | None:
        """Why nobody should ask now; None if all is well.

        A model that can answer without some parties is ready as long as one is there.
        """
        if self.is_draining:
            return "draining"
        model, away = self.model, self.versions.current.predictor.away()
        gone = [name for name in model.parties if name in away]
        if gone and (not model.tolerates_missing or len(gone) == len(model.parties)):
            return f"away: {', '.join(gone)}"
        return None

    async def predict(self, ids: Sequence[str], *, arrived: float, deadline_ms: int) -> list[Row]:
        """Answer for ids, in their order.

        Args:
            ids: Text; the same id may come twice.
            arrived: When the request arrived, on the monotonic clock.
            deadline_ms: Milliseconds from then on.

        Returns:
            A row per id.

        Raises:
            Busy: Too many ids are waiting.
            TooLate: The deadline passed first.
        """
        self._num_inside += 1
        self._nobody_inside.clear()
        try:
            patience = deadline_ms / 1000
            if len(ids) == 1:
                one = self.versions.of(ids[0])
                (found,) = await one.ask(tuple(ids), arrived=arrived, patience=patience)
                return [Row(model=one.predictor.model, found=found)]
            by_version: dict[str, list[str]] = {}
            chosen: dict[str, Gathering] = {}
            for name in dict.fromkeys(ids):
                gathering = self.versions.of(name)
                version = gathering.predictor.model.version
                chosen[version] = gathering
                by_version.setdefault(version, []).append(name)
            asked = [
                chosen[version].ask(tuple(own), arrived=arrived, patience=patience)
                for version, own in by_version.items()
            ]
            # One version, as nearly always, needs no task of its own.
            answers = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
            rows: dict[str, Row] = {}
            for (version, own), several in zip(by_version.items(), answers, strict=True):
                model = chosen[version].predictor.model
                rows.update(
                    (name, Row(model=model, found=item))
                    for name, item in zip(own, several, strict=True)
                )
            return [rows[name] for name in ids]
        finally:
            self._num_inside -= 1
            if not self._num_inside:
                self._nobody_inside.set()

    # Versions

    async def load(self, run: str) -> ServedModel:
        """Load and warm a version beside the others.

        Raises:
            ConfigError: It is not a version of the same model.
        """
        async with self._loading:
            predictor = await asyncio.to_thread(self._load_warm, run)
            model = predictor.model
            if model.version in self.versions.loaded:
                await asyncio.to_thread(predictor.close)
                return model
            if set(model.parties) - set(self.watching.parties):
                await asyncio.to_thread(predictor.close)
                raise ConfigError(
                    f"version '{model.version}': has parties that this service does not know; "
                    "start a service for it"
                )
            self.versions.add(self._gathering(predictor))
            return model

    def _load_warm(self, run: str) -> Predictor:
        predictor = self._load(run)
        predictor.warm_up()
        return predictor

    async def unload(self, version: str) -> None:
        """Drain a version that answers for nobody, and let go of it."""
        await self.versions.unlist(version).drain()

    def named(self, name: str, version: str | None = None) -> ServedModel:
        """The model of a name, for paths.

        Raises:
            ConfigError: There is none.
        """
        if name != self.model.name:
            raise ConfigError(f"model '{name[:60]}': unknown{nearest(name, [self.model.name])}")
        if version is None:
            return self.model
        if version not in self.versions.loaded:
            raise ConfigError(f"version '{version[:80]}': not loaded")
        return self.versions.loaded[version].predictor.model

    async def drain(self) -> None:
        """Answer everybody who is waiting, then let go of everything."""
        self.is_draining = True
        await self._nobody_inside.wait()
        for gathering in self.versions.loaded.values():
            await gathering.drain()


def answered(rows: Sequence[Row]) -> bool:
    """Whether at least one row has an answer."""
    return any(isinstance(row.found, Outcome) for row in rows)


def absent_parties(rows: Sequence[Row]) -> tuple[str, ...]:
    """The parties for want of which rows have no answer."""
    return _parties(rows, "away")


def refusing_parties(rows: Sequence[Row]) -> tuple[str, ...]:
    """The parties whose own rules leave rows without an answer."""
    return _parties(rows, "refused")


def _parties(rows: Sequence[Row], reason: str) -> tuple[str, ...]:
    without = [row.found for row in rows if isinstance(row.found, Unanswered)]
    named = {name for item in without if item.reason == reason for name in item.parties}
    return tuple(sorted(named))


def told(given: Any, row: Row) -> Mapping[str, Any]:
    """A row as JSON, under the id as the caller wrote it."""
    model, found = row.model, row.found
    if isinstance(found, Unanswered):
        error = {"reason": found.reason, "parties": list(found.parties)}
        return {"id": given, "version": model.version, "error": error}
    content: dict[str, Any] = {
        "id": given,
        "version": model.version,
        "value": found.value,
        "parties": {
            name: {"age_ms": round(item.age * 1000, 3), "cached": item.is_cached}
            for name, item in found.parties.items()
        },
    }
    if found.probabilities is None:
        content["spread"] = found.spread
    else:
        names = [str(item) for item in model.classes]
        content["probabilities"] = dict(zip(names, found.probabilities, strict=True))
        content["confidence"] = found.confidence
    return content
