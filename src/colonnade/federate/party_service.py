"""An agent as a service: health endpoints, metrics, signals, renewal of its identity.

``/healthz`` answers as long as the process is sound. ``/readyz`` says whether the party can be
asked now, and why not. ``/metrics`` is Prometheus' text. The endpoints listen on loopback unless
the party's settings say otherwise. SIGTERM and SIGINT end the agent after the call in hand. SIGHUP
reads the policy again; a bad policy file leaves the old policy in force.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from colonnade.core.errors import ColonnadeError
from colonnade.fabrics.grpc.agent import Agent
from colonnade.fabrics.grpc.execution import AgentStatus
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.agent_lanes import AgentLanes
from colonnade.federate.certificates import load_certificate
from colonnade.federate.health_endpoints import HttpAnswer, answer_for, listening_for_probes
from colonnade.federate.party_enrolment import renew_if_due
from colonnade.federate.party_home import own_identity, read_party
from colonnade.federate.party_status import announced
from colonnade.federate.record_witness import exchange_witness
from colonnade.federate.served_rows import RowsWatched

__all__ = ["Service", "serve_agent"]

_LOG = logging.getLogger("colonnade.service")
# A certificate lasts for weeks when its renewal begins.
_RENEWAL_SECONDS = 3600.0

_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_COUNTED = (
    ("num_connects", "connects", "Links made to the hub"),
    ("num_cuts", "cuts", "Links that ended"),
    ("num_calls", "calls", "Calls taken up"),
    ("num_failures", "call_failures", "Calls that failed"),
    ("seconds_computing", "computing_seconds", "Time spent in calls"),
    ("wire_bytes_up", "sent_bytes", "Bytes that left for the hub"),
    ("wire_bytes_down", "received_bytes", "Bytes that came from the hub"),
)


def serve_agent(
    agent: Agent | AgentLanes,
    home: Path,
    *,
    reload: Callable[[], None] | None = None,
    watched: RowsWatched | None = None,
) -> None:
    """Run a party's agent in the foreground as a service, until it is stopped.

    ``reload`` reads the policy again and raises if it is bad. The identity is renewed in time.
    ``watched`` are the rows that it serves.
    """
    settings = read_party(home)
    service = Service(lambda: agent.status, stop=agent.stop, reload=reload)
    service.expiry = _expiry(own_identity(home))
    service.watched = watched
    with ExitStack() as around:
        host, port = around.enter_context(service.listening(settings.health))
        around.enter_context(announced(home, host, port))
        around.enter_context(service.signals())
        around.enter_context(_renewing(agent, home, service))
        fields = {"health": f"{host}:{port}", "hub": settings.hub}
        _LOG.info("the agent runs", extra={"fields": fields})
        try:
            agent.serve()
        except ColonnadeError as error:
            service.fail(str(error))
            _LOG.error("the agent ends: %s", error)
            raise
        _LOG.info("the agent has left")


class Service:
    """An agent's endpoints, and the signals that reach it."""

    def __init__(
        self,
        status: Callable[[], AgentStatus],
        *,
        stop: Callable[[], None],
        reload: Callable[[], None] | None = None,
    ) -> None:
        # When the identity expires, in seconds since 1970.
        self.expiry: float | None = None
        # The rows that it served, against those that it was trained on.
        self.watched: RowsWatched | None = None
        self.stopping = threading.Event()
        self._status = status
        self._stop = stop
        self._reload = reload
        self._failure: str | None = None
        self._num_reloads = {"done": 0, "refused": 0}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def fail(self, because: str) -> None:
        """From now on the agent is unhealthy and should be started anew."""
        self._failure = because

    def stop(self) -> None:
        """Ask the agent to end after the call in hand."""
        if not self.stopping.is_set():
            self.stopping.set()
            _LOG.info("asked to stop: the call in hand is finished first")
            self._stop()

    def reload(self) -> None:
        """Read the policy again; a bad one leaves the old one in force."""
        if self._reload is None:
            _LOG.info("asked to reload: there is no policy")
            return
        try:
            self._reload()
        except ColonnadeError as error:
            self._num_reloads["refused"] += 1
            _LOG.error("policy not reloaded, the old one stays in force: %s", error)
        else:
            self._num_reloads["done"] += 1
            _LOG.info("policy reloaded")

    # Endpoints

    def answer(self, path: str) -> HttpAnswer:
        """An endpoint's answer: status, kind of content, content."""
        return answer_for(
            path, failure=self._failure, unready=self._unready(), registry=self._registry
        )

    def collect(self) -> Iterator[Metric]:
        """Numbers for Prometheus, read when it asks; never data."""
        status = self._status()
        for attribute, name, about in _COUNTED:
            value = getattr(status, attribute)
            yield CounterMetricFamily(f"colonnade_{name}", about, value=value)
        ready = self._unready() is None
        yield GaugeMetricFamily("colonnade_ready", "1 if the party can be asked", value=ready)
        reloads = CounterMetricFamily(
            "colonnade_policy_reloads", "Reloads of the policy", labels=["outcome"]
        )
        for outcome, count in self._num_reloads.items():
            reloads.add_metric([outcome], count)
        yield reloads
        if self.watched is not None:
            yield from _of_rows(self.watched)
        if self.expiry is not None:
            yield GaugeMetricFamily(
                "colonnade_identity_expiry_timestamp_seconds",
                "When the certificate expires",
                value=self.expiry,
            )

    def _unready(self) -> str | None:
        if self.stopping.is_set():
            return "stopping"
        if self._failure is not None:
            return self._failure
        status = self._status()
        if status.is_connected:
            return None
        return f"not connected to the hub: {status.last_error or 'dialling'}"

    def listening(self, address: str) -> AbstractContextManager[tuple[str, int]]:
        """Serve the endpoints at HOST:PORT; gives the host and port, which matters for port 0."""
        return listening_for_probes(self, address, "party.toml")

    # Signals

    @contextmanager
    def signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the agent, SIGHUP reloads; for the main thread.

        Python runs handlers in the main thread, which may be deep in a computation or wait for
        a call. So the signals' numbers go through a pipe to a thread that acts on them at once.
        """
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)

        def act() -> None:
            while number := ours.recv(1)[0]:
                if number == signal.SIGHUP:
                    self.reload()
                elif number in _HANDLED:
                    self.stop()

        acting = threading.Thread(target=act, name="signals", daemon=True)
        with ours, theirs:
            acting.start()
            before = {number: signal.signal(number, _ignore) for number in _HANDLED}
            descriptor = signal.set_wakeup_fd(theirs.fileno())
            try:
                yield
            finally:
                signal.set_wakeup_fd(descriptor)
                for number, handler in before.items():
                    signal.signal(number, handler)
                theirs.send(b"\0")
                acting.join()


def _of_rows(watched: RowsWatched) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "colonnade_served_rows", "Rows of people served, in hundreds", value=watched.num_rows
    )
    yield CounterMetricFamily(
        "colonnade_far_rows", "Of these, far outside the training range", value=watched.num_far
    )
    drift = GaugeMetricFamily(
        "colonnade_drift", "How far served rows are from training, in deviations", labels=["of"]
    )
    for of, moved in watched.drift().items():
        drift.add_metric([of], moved)
    yield drift


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python has put the number into the pipe before."""


@contextmanager
def _renewing(agent: Agent | AgentLanes, home: Path, service: Service) -> Iterator[None]:
    """Look at every connection, and every hour, whether the identity is due; dial again with it.

    The hub's record is witnessed then too.

    A hub may run only while it trains: whenever it answers is the moment to ask it.
    """
    is_over, may_ask = threading.Event(), threading.Event()
    agent.on_connect = may_ask.set

    def look() -> None:
        while not is_over.is_set():
            try:
                if renew_if_due(home):
                    identity = own_identity(home)
                    service.expiry = _expiry(identity)
                    agent.renew(identity)
                    agent.reconnect()
                    _LOG.info("identity renewed")
                if agent.status.is_connected:
                    exchange_witness(home)
            except ColonnadeError as error:
                _LOG.error("membership not looked after: %s", error)
            may_ask.wait(_RENEWAL_SECONDS)
            may_ask.clear()

    thread = threading.Thread(target=look, name="renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        may_ask.set()


def _expiry(identity: Identity) -> float:
    certificate = load_certificate(identity.certificate, "own identity")
    return certificate.not_valid_after_utc.timestamp()
