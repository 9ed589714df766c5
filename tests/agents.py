"""Hub and agents of organisations in threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from colonnade.fabrics.grpc.hub import Hub
from colonnade.federate.agent_lanes import AgentLanes
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.party_agent import SessionRespondents
from colonnade.federate.party_home import own_identity
from e2e.organisations import PARTIES, Organisations
from networks import QUICK

__all__ = ["agents_of", "hub_of"]


@contextmanager
def agents_of(
    organisations: Organisations,
    hub: Hub,
    names: Iterable[str] = PARTIES,
    *,
    serves: bool = False,
) -> Iterator[dict[str, AgentLanes]]:
    """Parties' agents over their own directories, in threads; ``serves`` adds lanes."""
    address = f"127.0.0.1:{hub.port}"
    agents = {}
    with ExitStack() as around:
        for name in names:
            home = organisations.home(name)
            agent = agents[name] = AgentLanes(
                identity=own_identity(home),
                address=address,
                serving=address if serves else None,
                respondent_for=SessionRespondents(home).respondent_for,
                links=QUICK,
            )
            thread = threading.Thread(target=agent.serve, daemon=True)
            thread.start()
            around.callback(thread.join, 20)
            around.callback(agent.stop)
        yield agents


@contextmanager
def hub_of(
    organisations: Organisations, names: Iterable[str] = PARTIES, *, serves: bool = False
) -> Iterator[Hub]:
    """The federation's hub, with these parties' agents, all of them connected."""
    names = tuple(names)
    with (
        open_hub(organisations.federation, links=QUICK, address="127.0.0.1:0", enrols=False) as hub,
        agents_of(organisations, hub, names, serves=serves),
    ):
        assert hub.wait_for(names, timeout=60) == ()
        yield hub
