"""Listening with uvicorn: TLS, bounds on connections and slow callers, drain on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from colonnade.core.errors import ConfigError, RunError
from colonnade.serve.guard import Application
from colonnade.serve.prediction_service import ServiceLimits

__all__ = ["Listening", "TlsFiles", "loopback_hosts", "stopped_by_signals"]

_LOG = logging.getLogger("colonnade.serve")
_SLOWEST_HEADERS_SECONDS = 10.0
_IDLE_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """A certificate and its key; with an authority, callers need a certificate of it."""

    certificate: Path
    key: Path
    authority: Path | None = None


def loopback_hosts(host: str) -> frozenset[str] | None:
    """Names that requests to a loopback address may name; None for any other address.

    A page in a browser that has its own name point at this machine names that one.
    """
    if host in ("127.0.0.1", "::1", "localhost"):
        return frozenset({"127.0.0.1", "[::1]", "localhost"})
    return None


class _InOnePiece:
    """A transport that holds an answer's head back until its body comes, or this turn is over.

    Sent by itself, the head would wake the caller for nothing.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it with what is held back; hold it back if it is the first."""
        if self._held:
            self._send(self._held + data)
        elif data:
            self._held = data
            asyncio.get_running_loop().call_soon(self._send_held)

    def close(self) -> None:
        """End the connection after what is held back."""
        self._send_held()
        self._transport.close()

    def _send_held(self) -> None:
        if self._held:
            self._send(self._held)

    def _send(self, data: bytes) -> None:
        self._held = b""
        self._transport.write(data)


class _PatientProtocol(HttpToolsProtocol):
    """Closes a connection whose request line and headers don't arrive in time."""

    _alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_InOnePiece(transport))  # type: ignore[arg-type]
        self._set_alarm()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Afterwards: a request that came in one piece, as nearly all do, needs no alarm.
        if self._alarm is None and (self.cycle is None or self.cycle.response_complete):
            self._set_alarm()

    def on_headers_complete(self) -> None:
        self._unset_alarm()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_alarm()
        super().connection_lost(exc)

    def _set_alarm(self) -> None:
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(_SLOWEST_HEADERS_SECONDS, self.transport.close)

    def _unset_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


class _Uvicorn(uvicorn.Server):
    """Without signals of its own: it would end the process before the drain."""

    def __init__(self, config: uvicorn.Config, stop_beside: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._stop_beside = stop_beside

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # At once, not after the slowest answer of this one.
        await asyncio.gather(self._stop_beside(), super().shutdown(sockets))


async def _nobody_beside() -> None:
    """Nothing else listens."""


class Listening:
    """An address with an application behind it.

    Args:
        application: Who answers.
        host: The address.
        port: The port; 0 for any that is free.
        limits: Bounds on connections.
        tls: Certificates; none for plain HTTP.
        drain: Called when nobody is answered any more.
        stop_beside: Stops what else listens, at the moment when this one takes no more requests.
    """

    def __init__(
        self,
        application: Application,
        *,
        host: str,
        port: int,
        limits: ServiceLimits,
        tls: TlsFiles | None = None,
        drain: Callable[[], Awaitable[None]],
        stop_beside: Callable[[], Awaitable[None]] = _nobody_beside,
    ) -> None:
        self._drain = drain
        self._socket = _bound(host, port)
        try:
            self._uvicorn = _Uvicorn(_config(application, limits, tls), stop_beside)
        except (OSError, ssl.SSLError) as error:
            self._socket.close()
            raise ConfigError(f"TLS: the certificate or its key can't be used: {error}") from error

    @property
    def port(self) -> int:
        """The port, which matters for port 0."""
        return int(self._socket.getsockname()[1])

    async def serve(self, started: Callable[[], None] = lambda: None) -> None:
        """Answer until told to stop, then drain.

        Args:
            started: Called when requests are accepted.
        """
        self._socket.listen(2048)
        started()
        await self._uvicorn.serve(sockets=[self._socket])
        await self._drain()
        _LOG.info("the service has ended")

    def stop(self) -> None:
        """Take no more requests, answer those that are here; from any thread."""
        _LOG.info("asked to stop: requests in hand are answered first")
        self._uvicorn.should_exit = True


def stopped_by_signals(stop: Callable[[], None]) -> None:
    """Have SIGTERM and SIGINT call it; called in the main thread.

    Args:
        stop: It only takes a note, and so may be called at any moment.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off: an answer's second packet would
    # wait 40 ms for the caller's acknowledgement of the first.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise RunError(
            f"can't listen at {host}:{port}: {error.strerror}; choose another --host or --port"
        ) from error
    return found


def _config(
    application: Application, limits: ServiceLimits, tls: TlsFiles | None
) -> uvicorn.Config:
    encryption: dict[str, Any] = {}
    if tls is not None:
        encryption = {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}
        if tls.authority is not None:
            encryption["ssl_ca_certs"] = str(tls.authority)
            encryption["ssl_cert_reqs"] = ssl.CERT_REQUIRED
    config = uvicorn.Config(
        application,
        http=_PatientProtocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        # Nobody here needs a caller's address, so nobody's word for it is taken either.
        proxy_headers=False,
        # It writes paths and queries, which callers choose.
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        limit_concurrency=limits.most_connections,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=math.ceil(limits.drain_seconds),
        **encryption,
    )
    config.load()
    return config
