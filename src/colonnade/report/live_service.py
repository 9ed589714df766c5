"""The live page's small HTTP service: one run, for this machine only.

The page's address holds a secret, so that other users of the machine can't look on. Requests that
name another host are refused: a page in a browser whose own name points here would send them.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from socket import socket
from typing import Any

from colonnade.core.errors import RunError
from colonnade.report.run_feed import RunFeed

__all__ = ["LiveService"]

_LOOK_EVERY = 0.3
_SIGN_EVERY = 10.0
_MOST_CONNECTIONS = 32
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_ASSETS = {
    "": ("live.html", "text/html; charset=utf-8"),
    "live.css": ("live.css", "text/css; charset=utf-8"),
    "live.js": ("live.js", "text/javascript; charset=utf-8"),
    "live_charts.js": ("live_charts.js", "text/javascript; charset=utf-8"),
}


class LiveService:
    """Serves the live page of one run directory, in threads of its own.

    Args:
        run: The run's directory; it may not be there yet.
        port: The port; 0 for any that is free.
        key: The secret in the address; drawn if not given.

    Raises:
        RunError: The port can't be used.
    """

    def __init__(self, run: Path, *, port: int = 0, key: str | None = None) -> None:
        self._key = key or secrets.token_urlsafe(12)
        self._ending = threading.Event()
        try:
            self._http = _Http(run, self._key, self._ending, port)
        except OSError as error:
            raise RunError(
                f"can't listen at 127.0.0.1:{port}: {error.strerror}; choose another port"
            ) from error
        self._thread = threading.Thread(
            target=self._http.serve_forever, name="colonnade live page", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/{self._key}/"

    def close(self) -> None:
        """Send those who look on what is new, then end."""
        self._ending.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def __init__(self, run: Path, key: str, ending: threading.Event, port: int) -> None:
        self.run = run
        self.key = key
        self.ending = ending
        self.places = threading.Semaphore(_MOST_CONNECTIONS)
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, unless there are too many already."""
        if self.places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: socket | Any, client_address: Any) -> None:
        """Nothing: whoever looked on is gone."""


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    # A caller who sends nothing, or takes nothing, gives its place back.
    timeout = 10
    server_version = "colonnade"
    sys_version = ""

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST)
            return
        _, key, *rest = self.path.split("/")
        name = "/".join(rest)
        if not rest or not secrets.compare_digest(key.encode(), self.server.key.encode()):
            self._refuse(HTTPStatus.NOT_FOUND)
        elif name == "events":
            self._events()
        elif name in _ASSETS:
            file, kind = _ASSETS[name]
            content = (files("colonnade.report") / "assets" / file).read_bytes()
            self._begin(HTTPStatus.OK, kind, len(content))
            self.wfile.write(content)
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def _events(self) -> None:
        self._begin(HTTPStatus.OK, "text/event-stream; charset=utf-8", None)
        feed, last_sign = RunFeed(self.server.run), 0.0
        while True:
            is_last = self.server.ending.is_set()
            for name, content in feed.news():
                self._send(name, content)
                last_sign = time.monotonic()
            if is_last:
                self._send("closed", None)
                return
            if time.monotonic() - last_sign > _SIGN_EVERY:
                self._send("alive", None)
                last_sign = time.monotonic()
            self.server.ending.wait(_LOOK_EVERY)

    def _send(self, name: str, content: Any) -> None:
        # JSON has no line ends of its own, so a text can't end the event and begin another.
        self.wfile.write(f"event: {name}\ndata: {json.dumps(content)}\n\n".encode())
        self.wfile.flush()

    def _begin(self, status: HTTPStatus, kind: str, length: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def _refuse(self, status: HTTPStatus) -> None:
        content = f"{status.phrase}\n".encode()
        self._begin(status, "text/plain; charset=utf-8", len(content))
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Nothing: a path holds the secret."""
