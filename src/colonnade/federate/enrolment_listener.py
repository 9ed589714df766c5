"""The hub's listener for parties that ask for a certificate: to enrol, or to renew theirs.

Anybody may call here, so nothing waits for a stranger: no thread stands behind a call that says
nothing, a connection lasts for seconds, and a front holds every address to a few of them.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc.aio

from colonnade.core.errors import ColonnadeError, ConfigError, RunError
from colonnade.fabrics.grpc.event_loop import event_loop, run_there
from colonnade.fabrics.grpc.front import Front, FrontLimits
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.json_calls import MESSAGE_OPTIONS

__all__ = ["CertificateListener"]

# Certificates that are signed at the same time; other calls wait for a moment.
_MOST_AT_ONCE = 4
# Of these a stranger can't hold many, and none for long.
LIMITS = FrontLimits(total=128, per_address=32, per_minute=240)
_OPTIONS = (
    *MESSAGE_OPTIONS,
    ("grpc.max_concurrent_streams", 4),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 10_000),
    ("grpc.max_connection_age_ms", 20_000),
    ("grpc.max_connection_age_grace_ms", 5_000),
)
_LOG = logging.getLogger("colonnade.membership")


class CertificateListener:
    """Listens with TLS for one kind of call; ``mutual`` asks callers for their certificates."""

    def __init__(
        self,
        federation: FederationDirectory,
        address: str,
        handler: grpc.GenericRpcHandler,
        *,
        mutual: bool,
        limits: FrontLimits = LIMITS,
    ) -> None:
        self.address = address
        self._federation = federation
        self._handler = handler
        self._mutual = mutual
        self._pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="membership")
        self._front = Front(limits, before_passing=self._show_newest)
        self._shown = federation.hub_identity()
        self._server: grpc.aio.Server | None = None
        self._turn: asyncio.Lock | None = None

    @property
    def front(self) -> Front:
        """What accepts connections; it counts them."""
        return self._front

    def start(self) -> int:
        """Listen; returns the port."""
        return run_there(self._start())

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Take no more calls, and finish those in hand."""
        run_there(self._stop(grace_seconds))
        self._pool.shutdown()

    # On the event loop

    async def _start(self) -> int:
        self._turn = asyncio.Lock()
        try:
            port = await self._front.start(self.address)
        except ConfigError as error:
            raise RunError(
                f"{self.address}: can't listen there: another command holds the port (colonnade "
                "federation train, predict, evaluate and serve answer parties that join as well as "
                "federation enrol does: one of them at a time), or the address is not this "
                "machine's (federation.toml: listen)"
            ) from error
        await self._listen(self._shown)
        return port

    async def _listen(self, identity: Identity) -> None:
        server = grpc.aio.server(
            migration_thread_pool=self._pool, handlers=(self._handler,), options=_OPTIONS
        )
        credentials = grpc.ssl_server_credentials(
            [(identity.key, identity.certificate)],
            identity.authority if self._mutual else None,
            require_client_auth=self._mutual,
        )
        self._front.socket.unlink(missing_ok=True)
        server.add_secure_port(f"unix:{self._front.socket}", credentials)
        await server.start()
        self._server = server

    async def _stop(self, grace_seconds: float) -> None:
        await self._front.stop(grace_seconds)
        if self._server is not None:
            await self._server.stop(grace_seconds)

    async def _show_newest(self) -> None:
        """Before a connection is passed on: have it shown the hub's newest certificate."""
        assert self._turn is not None
        async with self._turn:
            try:
                newest = await event_loop().run_in_executor(None, self._federation.hub_identity)
            except ColonnadeError as error:
                # The old certificate is good for weeks when its renewal begins.
                _LOG.error("the hub's own identity: %s", error)
                return
            if newest != self._shown and self._server is not None:
                await self._server.stop(1.0)
                await self._listen(newest)
                self._shown = newest
