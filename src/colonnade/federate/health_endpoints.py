"""HTTP endpoints that tell whether a service is sound and ready, and its metrics."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from colonnade.core.errors import RunError

__all__ = ["HttpAnswer", "Telling", "answer_for", "listening_for_probes", "verdict"]

_SLOWEST_REQUEST_SECONDS = 5.0

# Status, kind of content, content.
HttpAnswer = tuple[HTTPStatus, str, bytes]


class Telling(Protocol):
    """Whatever has endpoints."""

    def answer(self, path: str) -> HttpAnswer:
        """An endpoint's answer."""


def answer_for(
    path: str, *, failure: str | None, unready: str | None, registry: CollectorRegistry
) -> HttpAnswer:
    """The answer of /healthz, /readyz or /metrics; None where nothing is wrong."""
    if path == "/healthz":
        return verdict("healthy", failure)
    if path == "/readyz":
        return verdict("ready", unready)
    if path == "/metrics":
        return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry)
    return HTTPStatus.NOT_FOUND, "text/plain", b"there are /healthz, /readyz and /metrics\n"


def verdict(name: str, because: str | None) -> HttpAnswer:
    """Yes, or no and why."""
    content: dict[str, Any] = {name: because is None}
    if because is not None:
        content["because"] = because
    status = HTTPStatus.OK if because is None else HTTPStatus.SERVICE_UNAVAILABLE
    return status, "application/json", json.dumps(content).encode() + b"\n"


@contextmanager
def listening_for_probes(service: Telling, address: str, where: str) -> Iterator[tuple[str, int]]:
    """Serve the endpoints at HOST:PORT; gives the host and port, which matters for port 0.

    ``where`` names the file in which the address stands.
    """
    host, _, port = address.rpartition(":")
    try:
        listener = _Listener((host.strip("[]"), int(port)), service)
    except OSError as error:
        raise RunError(
            f"health: can't listen at {address}: {error.strerror}; choose another address in "
            f"{where}"
        ) from error
    thread = threading.Thread(target=listener.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield str(listener.server_address[0]), int(listener.server_address[1])
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    # Two services must not share a port unnoticed.
    allow_reuse_port = False

    def __init__(self, address: tuple[str, int], service: Telling) -> None:
        self.service = service
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Endpoints)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The peer has gone: nothing to do, and nothing to print."""


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
        """Log no probes: they come every few seconds."""
