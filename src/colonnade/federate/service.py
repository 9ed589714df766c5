"""What surrounds an agent that runs as a service: endpoints, metrics, signals, renewal.

``/healthz`` answers as long as the process is sound, ``/readyz`` tells whether the party can be
asked now and why not, ``/metrics`` is Prometheus' text. They are told on loopback unless the
party's settings say otherwise. SIGTERM and SIGINT end the agent after the call in hand; SIGHUP
reads the policy again, and a bad policy file leaves the old one in force.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from colonnade.core.errors import ColonnadeError, RunError
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.certificates import load_certificate
from colonnade.federate.home import own_identity, read_party
from colonnade.federate.joining import renew_if_due

__all__ = ["Service", "serve_agent"]

_LOG = logging.getLogger("colonnade.service")
_SLOWEST_REQUEST_SECONDS = 5.0
# A certificate lasts for weeks when its renewal begins.
_RENEWAL_SECONDS = 3600.0

_HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_COUNTED = (
    ("num_connects", "connects", "Links made to the hub"),
    ("num_cuts", "cuts", "Links that ended"),
    ("num_calls", "calls", "Calls taken up"),
    ("num_failures", "call_failures", "Calls that failed"),
    ("seconds_computing", "computing_seconds", "Time spent in calls"),
    ("wire_bytes_up", "sent_bytes", "Bytes that left for the hub"),
    ("wire_bytes_down", "received_bytes", "Bytes that came from the hub"),
)


class Status(Protocol):
    """What an agent tells about itself."""

    is_connected: bool
    num_connects: int
    num_cuts: int
    num_calls: int
    num_failures: int
    seconds_computing: float
    wire_bytes_up: int
    wire_bytes_down: int
    last_error: str


class Serving(Protocol):
    """An agent: ``serve`` answers calls in this thread until ``stop``."""

    @property
    def status(self) -> Status:
        """What it has been doing."""

    def serve(self) -> None:
        """Answer calls."""

    def stop(self) -> None:
        """End after the call in hand; from any thread."""

    def renew(self, identity: Identity) -> None:
        """Use another certificate from the next dial on."""

    def reconnect(self) -> None:
        """Dial again."""


def serve_agent(agent: Serving, home: Path, *, reload: Callable[[], None] | None = None) -> None:
    """Run a party's agent in the foreground with all that a service needs, until it is stopped.

    ``reload`` reads the policy again and raises if it is bad. The identity is renewed in time.
    """
    settings = read_party(home)
    service = Service(agent.status, stop=agent.stop, reload=reload)
    service.expiry = _expiry(own_identity(home))
    with ExitStack() as around:
        host, port = around.enter_context(service.listening(settings.health))
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
    """An agent as the outside sees it, and the signals that reach it."""

    def __init__(
        self,
        status: Status,
        *,
        stop: Callable[[], None],
        reload: Callable[[], None] | None = None,
    ) -> None:
        # When the identity expires, in seconds since 1970.
        self.expiry: float | None = None
        self.stopping = threading.Event()
        self._status = status
        self._stop = stop
        self._reload = reload
        self._failure: str | None = None
        self._num_reloads = {"done": 0, "refused": 0}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def fail(self, because: str) -> None:
        """The agent is broken, and should be started anew."""
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

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """What an endpoint tells: status, kind of content, content."""
        if path == "/healthz":
            return _told("healthy", self._failure)
        if path == "/readyz":
            return _told("ready", self._unready())
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)
        return HTTPStatus.NOT_FOUND, "text/plain", b"there are /healthz, /readyz and /metrics\n"

    def collect(self) -> Iterator[Metric]:
        """Numbers for Prometheus, read when it asks; never data."""
        for attribute, name, about in _COUNTED:
            value = getattr(self._status, attribute)
            yield CounterMetricFamily(f"colonnade_{name}", about, value=value)
        ready = self._unready() is None
        yield GaugeMetricFamily("colonnade_ready", "1 if the party can be asked", value=ready)
        reloads = CounterMetricFamily(
            "colonnade_policy_reloads", "Reloads of the policy", labels=["outcome"]
        )
        for outcome, count in self._num_reloads.items():
            reloads.add_metric([outcome], count)
        yield reloads
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
        if self._status.is_connected:
            return None
        return f"not connected to the hub: {self._status.last_error or 'dialling'}"

    @contextmanager
    def listening(self, address: str) -> Iterator[tuple[str, int]]:
        """Tell the endpoints at HOST:PORT; gives the address at which that is."""
        host, _, port = address.rpartition(":")
        try:
            listener = _Listener((host.strip("[]"), int(port)), self)
        except OSError as error:
            raise RunError(
                f"health: can't listen at {address}: {error.strerror}; choose another address in "
                "party.toml"
            ) from error
        thread = threading.Thread(target=listener.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield str(listener.server_address[0]), int(listener.server_address[1])
        finally:
            listener.shutdown()
            thread.join()
            listener.server_close()

    # Signals

    @contextmanager
    def signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the agent, SIGHUP reloads; to be entered in the main thread.

        Python runs handlers in the main thread, which may be deep in a computation or wait for
        a call. So the signals' numbers go through a pipe to a thread that acts on them at once.
        """
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)

        def act() -> None:
            while number := ours.recv(1)[0]:
                if number == signal.SIGHUP:
                    self.reload()
                elif number in _HEEDED:
                    self.stop()

        acting = threading.Thread(target=act, name="signals", daemon=True)
        with ours, theirs:
            acting.start()
            before = {number: signal.signal(number, _to_the_pipe) for number in _HEEDED}
            descriptor = signal.set_wakeup_fd(theirs.fileno())
            try:
                yield
            finally:
                signal.set_wakeup_fd(descriptor)
                for number, handler in before.items():
                    signal.signal(number, handler)
                theirs.send(b"\0")
                acting.join()


def _to_the_pipe(number: int, frame: FrameType | None) -> None:
    """The number is in the pipe before this is called."""


@contextmanager
def _renewing(agent: Serving, home: Path, service: Service) -> Iterator[None]:
    """Look every hour whether the identity is to be renewed; the link is made anew with it."""
    is_over = threading.Event()

    def look() -> None:
        while True:
            try:
                if renew_if_due(home):
                    identity = own_identity(home)
                    service.expiry = _expiry(identity)
                    agent.renew(identity)
                    agent.reconnect()
                    _LOG.info("identity renewed")
            except ColonnadeError as error:
                _LOG.error("identity not renewed: %s", error)
            if is_over.wait(_RENEWAL_SECONDS):
                return

    thread = threading.Thread(target=look, name="renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()


def _expiry(identity: Identity) -> float:
    certificate = load_certificate(identity.certificate, "own identity")
    return certificate.not_valid_after_utc.timestamp()


def _told(name: str, because: str | None) -> tuple[HTTPStatus, str, bytes]:
    content: dict[str, Any] = {name: because is None}
    if because is not None:
        content["because"] = because
    status = HTTPStatus.OK if because is None else HTTPStatus.SERVICE_UNAVAILABLE
    return status, "application/json", json.dumps(content).encode() + b"\n"


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    # Two agents must not share a port unnoticed.
    allow_reuse_port = False

    def __init__(self, address: tuple[str, int], service: Service) -> None:
        self.service = service
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Endpoints)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has gone: nothing to do, and nothing to print."""


class _Endpoints(BaseHTTPRequestHandler):
    timeout = _SLOWEST_REQUEST_SECONDS
    server: _Listener
    server_version = "colonnade"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one question."""
        status, kind, content = self.server.service.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Probes come every few seconds; they are no news."""
