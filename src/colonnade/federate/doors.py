"""Where the hub listens for those who want a certificate."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from colonnade.core.errors import ColonnadeError, RunError
from colonnade.federate.calls import MESSAGE_OPTIONS
from colonnade.federate.federation import Federation

__all__ = ["Door", "hub_credentials"]

_MOST_AT_ONCE = 16
_OPTIONS = (
    *MESSAGE_OPTIONS,
    # Two processes on one port would each get half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_connection_idle_ms", 60_000),
)
_LOG = logging.getLogger("colonnade.membership")


class Door:
    """A listener with TLS; ``mutual`` asks for the certificate of whoever comes."""

    def __init__(
        self,
        federation: Federation,
        address: str,
        handler: grpc.GenericRpcHandler,
        *,
        mutual: bool,
    ) -> None:
        self.address = address
        self._federation = federation
        self._mutual = mutual
        self._pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="membership")
        self._listener = grpc.server(
            self._pool,
            handlers=(handler,),
            options=_OPTIONS,
            maximum_concurrent_rpcs=_MOST_AT_ONCE,
        )

    def start(self) -> int:
        """Listen; returns the port."""
        credentials = hub_credentials(self._federation, mutual=self._mutual)
        try:
            port = int(self._listener.add_secure_port(self.address, credentials))
        except RuntimeError as error:
            raise RunError(
                f"{self.address}: can't listen there; is the port taken, or is the address not "
                "this machine's? (federation.toml: listen)"
            ) from error
        self._listener.start()
        return port

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Take no more calls, and finish those in hand."""
        self._listener.stop(grace_seconds).wait()
        self._pool.shutdown()


def hub_credentials(federation: Federation, *, mutual: bool) -> grpc.ServerCredentials:
    """The hub's side of TLS; it renews its own certificate while it listens."""
    shown = federation.hub_identity()

    def configuration() -> Any:
        return grpc.ssl_server_certificate_configuration(
            [(shown.key, shown.certificate)],
            root_certificates=shown.authority if mutual else None,
        )

    def newer() -> Any:
        """For each new link: another certificate, or None to keep the one there is."""
        nonlocal shown
        try:
            current = federation.hub_identity()
        except ColonnadeError as error:
            # Links go on with the old certificate, which is good for weeks when this begins.
            _LOG.error("the hub's own identity: %s", error)
            return None
        if current == shown:
            return None
        shown = current
        return configuration()

    return grpc.dynamic_ssl_server_credentials(configuration(), newer, mutual)
