"""Numbers of a service for Prometheus and for its page; never an id or a value."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as Count
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from colonnade.serve.predictor import ObservedRows, ServedExchange, Unanswered
from colonnade.serve.versions import Versions

__all__ = ["PartyNumbers", "Watching"]

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
# Sets of blocks beyond these are counted together: labels must not grow without end.
_MOST_SETS = 64
# Answers that the slowest are looked for in.
_NUM_RECENT = 1000


@dataclass(frozen=True, kw_only=True)
class PartyNumbers:
    """One party's numbers, as the page shows them.

    Ninety-nine of the last hundred answers took at most ``slow_seconds``.
    """

    name: str
    breaker: str
    num_answers: int
    num_silences: int
    mean_seconds: float | None
    slow_seconds: float | None
    observed: ObservedRows | None
    away: str | None


class Watching:
    """Counts everything; read by ``/metrics`` and the page.

    Args:
        parties: The parties.
    """

    def __init__(self, parties: Sequence[str]) -> None:
        self.parties = tuple(parties)
        self.registry = CollectorRegistry()
        self.versions: Versions | None = None
        self.breakers: Any = None
        named: Any = {"registry": self.registry, "namespace": "colonnade_serve"}
        self._requests = Count("requests", "Requests", ["path", "status"], **named)
        self._seconds = Histogram(
            "request_seconds", "Time per request", ["path"], buckets=_SECONDS, **named
        )
        self._answered = Count("answered", "Samples answered, by blocks", ["blocks"], **named)
        self._unanswered = Count("unanswered", "Samples not answered", ["reason"], **named)
        self._exchanges = Count("exchanges", "Exchanges with the parties", **named)
        self._gathered = Count("gathered_samples", "Samples in exchanges", **named)
        self._party_seconds = Histogram(
            "party_seconds", "Time per answer of a party", ["party"], buckets=_SECONDS, **named
        )
        # Looked up once, as below.
        self._seconds_of = {name: self._party_seconds.labels(name) for name in self.parties}
        self._silences = Count("party_silences", "Times without an answer", ["party"], **named)
        # What counts requests, by path and status: looking it up costs more than counting.
        self._by_request: dict[tuple[str, int], tuple[Count, Histogram]] = {}
        self._sets: set[str] = set()
        self._by_set: dict[str, int] = {}
        self._by_party: dict[str, list[float]] = {name: [0, 0.0, 0] for name in parties}
        self._recent = {name: deque[float](maxlen=_NUM_RECENT) for name in parties}
        self.registry.register(self)

    def request(self, path: str, status: int, seconds: float) -> None:
        """One request was answered."""
        known = self._by_request.get((path, status))
        if known is None:
            known = self._requests.labels(path, str(status)), self._seconds.labels(path)
            self._by_request[path, status] = known
        known[0].inc()
        known[1].observe(seconds)

    def exchange(self, seconds: float, exchange: ServedExchange) -> None:
        """One exchange is done."""
        self._exchanges.inc()
        self._gathered.inc(len(exchange.outcomes))
        for name, taken in exchange.seconds.items():
            self._seconds_of[name].observe(taken)
            self._by_party[name][0] += 1
            self._by_party[name][1] += taken
            self._recent[name].append(taken)
        for name in exchange.silent:
            self._silences.labels(name).inc()
            self._by_party[name][2] += 1
        counts = Counter(
            outcome.reason if isinstance(outcome, Unanswered) else tuple(outcome.parties)
            for outcome in exchange.outcomes
        )
        for what, count in counts.items():
            if isinstance(what, str):
                self._unanswered.labels(what).inc(count)
            else:
                self._count("+".join(sorted(what)) or "none", count)

    def _count(self, blocks: str, count: int) -> None:
        if blocks not in self._sets and len(self._sets) >= _MOST_SETS:
            blocks = "other"
        self._sets.add(blocks)
        self._answered.labels(blocks).inc(count)
        self._by_set[blocks] = self._by_set.get(blocks, 0) + count

    def shares(self) -> dict[str, float]:
        """The share of the answers by the set of blocks that they were made from."""
        total = sum(self._by_set.values())
        return {name: count / total for name, count in sorted(self._by_set.items())}

    def party_numbers(self) -> list[PartyNumbers]:
        """Every party's numbers, in party order."""
        assert self.versions is not None
        predictor = self.versions.current.predictor
        observed, away = predictor.observed(), predictor.away()
        states = self.breakers.states()
        return [
            PartyNumbers(
                name=name,
                breaker=states[name],
                num_answers=int(count),
                num_silences=int(silences),
                mean_seconds=seconds / count if count else None,
                slow_seconds=_slow(self._recent[name]),
                observed=observed.get(name),
                away=away.get(name),
            )
            for name, (count, seconds, silences) in self._by_party.items()
        ]

    def collect(self) -> Iterator[Metric]:
        """What is read when Prometheus asks."""
        if self.versions is None:
            return
        drift = GaugeMetricFamily(
            "colonnade_serve_drift", "Distance from training, in deviations", labels=["party", "of"]
        )
        rows = CounterMetricFamily(
            "colonnade_serve_observed_rows", "Rows that a party has told of", labels=["party"]
        )
        far = CounterMetricFamily(
            "colonnade_serve_far_rows", "Of these, far outside training", labels=["party"]
        )
        is_open = GaugeMetricFamily(
            "colonnade_serve_party_left_out", "1 while nobody waits for it", labels=["party"]
        )
        for item in self.party_numbers():
            seen = item.observed
            if seen is not None:
                rows.add_metric([item.name], seen.rows)
                if seen.far is not None:
                    far.add_metric([item.name], seen.far)
                for of, moved in (
                    ("inputs", seen.input_drift),
                    ("embeddings", seen.embedding_drift),
                ):
                    if moved is not None:
                        drift.add_metric([item.name, of], moved)
            is_left_out = item.breaker != "closed" or item.away is not None
            is_open.add_metric([item.name], float(is_left_out))
        yield from (drift, rows, far)
        yield is_open
        routing = self.versions.routing
        info = {"current": routing.current, "canary": routing.canary or ""}
        yield InfoMetricFamily("colonnade_serve_version", "Versions that answer", value=info)

    def text(self) -> bytes:
        """Prometheus' text."""
        return generate_latest(self.registry)


def _slow(recent: Collection[float]) -> float | None:
    """The time that ninety-nine of a hundred took at most."""
    ranked = sorted(recent)
    return ranked[math.ceil(0.99 * len(ranked)) - 1] if ranked else None
