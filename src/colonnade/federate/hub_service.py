"""A hub's health and metrics: who is connected, what crossed, whom the front turned away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from colonnade.fabrics.grpc.front import FrontStatus
from colonnade.fabrics.grpc.hub import Hub
from colonnade.federate.certificates import load_certificate
from colonnade.federate.health_endpoints import HttpAnswer, answer_for
from colonnade.federate.hub_waits import HubWaits

__all__ = ["HubService"]

_COUNTED = (
    ("num_connects", "connects", "Links that a party made"),
    ("num_restarts", "restarts", "Times that a party came back as another process"),
    ("num_refused", "refusals", "Streams of a party that were refused"),
    ("wire_bytes_up", "received_bytes", "Bytes that came from a party"),
    ("wire_bytes_down", "sent_bytes", "Bytes that left for a party"),
)


class HubService:
    """Answers /healthz, /readyz and /metrics of a hub; ``fronts`` by what they are for."""

    def __init__(self, hub: Hub, fronts: Mapping[str, FrontStatus]) -> None:
        self._hub = hub
        self._fronts = fronts
        # Why the register can't be read; none as long as it can.
        self.failure: str | None = None
        self.waits = HubWaits()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def answer(self, path: str) -> HttpAnswer:
        """An endpoint's answer."""
        absent = [name for name, link in self._hub.status().items() if not link.is_connected]
        unready = f"not connected: {', '.join(absent)}" if absent else None
        return answer_for(
            path,
            failure=self.failure,
            unready=self.failure or unready,
            registry=self._registry,
        )

    def collect(self) -> Iterator[Metric]:
        """Numbers for Prometheus, read when it asks; never data."""
        links = self._hub.status()
        for attribute, name, about in _COUNTED:
            counted = CounterMetricFamily(f"colonnade_hub_{name}", about, labels=["party"])
            for party, link in links.items():
                counted.add_metric([party], getattr(link, attribute))
            yield counted
        connected = GaugeMetricFamily(
            "colonnade_hub_connected", "1 if the party is connected", labels=["party"]
        )
        for party, link in links.items():
            connected.add_metric([party], link.is_connected)
        yield connected
        yield from self._of_waits()
        yield from self._of_fronts()
        certificate = load_certificate(self._hub.identity.certificate, "the hub's certificate")
        yield GaugeMetricFamily(
            "colonnade_hub_identity_expiry_timestamp_seconds",
            "When the hub's certificate expires",
            value=certificate.not_valid_after_utc.timestamp(),
        )

    def _of_waits(self) -> Iterator[Metric]:
        counts = CounterMetricFamily(
            "colonnade_hub_waits", "Waits of at least ten seconds", labels=["party"]
        )
        totals = CounterMetricFamily(
            "colonnade_hub_waited_seconds", "How long they lasted together", labels=["party"]
        )
        present = GaugeMetricFamily(
            "colonnade_hub_waiting_seconds", "How long it is waited for now", labels=["party"]
        )
        for party in self._hub.status():
            counts.add_metric([party], self.waits.counts.get(party, 0))
            totals.add_metric([party], self.waits.totals.get(party, 0.0))
            present.add_metric([party], self.waits.present.get(party, 0.0))
        yield from (counts, totals, present)

    def _of_fronts(self) -> Iterator[Metric]:
        open_now = GaugeMetricFamily(
            "colonnade_hub_open_connections", "Connections now", labels=["listener"]
        )
        accepted = CounterMetricFamily(
            "colonnade_hub_connections", "Connections accepted", labels=["listener"]
        )
        turned_away = CounterMetricFamily(
            "colonnade_hub_turned_away",
            "Connections turned away, by why",
            labels=["listener", "because"],
        )
        for listener, status in self._fronts.items():
            open_now.add_metric([listener], status.num_open)
            accepted.add_metric([listener], status.num_accepted)
            turned_away.add_metric([listener, "silent"], status.num_silent)
            for because, count in sorted(status.num_turned_away.items()):
                turned_away.add_metric([listener, because], count)
        yield from (open_now, accepted, turned_away)
