"""Parties behind real sockets with mutual TLS, in threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from authority import admit, hub_identity, identity_of
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.agent import Agent
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.fabrics.grpc.network_fabric import GrpcFabric

QUICK = LinkSpec(backoff=0.02, backoff_most=0.2)


class AgentThread:
    """An agent that serves in a thread, until stopped."""

    def __init__(self, party: Respondent, address: str, links: LinkSpec = QUICK) -> None:
        self.agent = Agent(
            identity=identity_of(party.name),
            address=address,
            respondent_for=lambda purpose: party,
            links=links,
        )
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.agent.serve()
        except Exception as error:
            self.error = error

    def join(self, timeout: float = 10) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        self.agent.stop()
        self.join()


class LoopbackFabric(GrpcFabric):
    """A gRPC fabric with its hub and its agents in this process; closing ends them all."""

    def __init__(
        self,
        parties: Mapping[str, Respondent],
        *,
        local: frozenset[str] = frozenset(),
        **settings: Any,
    ) -> None:
        self.hub = Hub(identity=hub_identity(), admit=admit, links=QUICK)
        address = f"127.0.0.1:{self.hub.port}"
        self.agents = {
            name: AgentThread(party, address)
            for name, party in parties.items()
            if name not in local
        }
        session = Session(
            self.hub,
            self.agents,
            purpose="test",
            at_side={name: parties[name] for name in local},
            **settings,
        )
        super().__init__(session)
        self.parties = dict(parties)

    def close(self) -> None:
        super().close()
        for agent in self.agents.values():
            agent.stop()
        self.hub.close()
