"""A party's agent: its own table, its own policy, its own checkpoints; the hub drives."""

from __future__ import annotations

import logging
from pathlib import Path

from colonnade.core.errors import ProtocolError
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.agent import Agent
from colonnade.fabrics.grpc.settings import LinkSpec
from colonnade.federate.desks import AlignDesk, TrainDesk
from colonnade.federate.home import own_identity, read_party
from colonnade.federate.policy import read_policy
from colonnade.federate.service import serve_agent

__all__ = ["ALIGN", "TRAIN", "PartyOffice", "run_agent"]

# What a session may be for.
ALIGN = "align"
TRAIN = "train"

_LOG = logging.getLogger("colonnade.agent")


class PartyOffice:
    """A party's directory, and who answers there in a session of some purpose."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.settings = read_party(home)
        self._policy = read_policy(self.settings.policy)

    def reload(self) -> None:
        """Read the policy again; what is assembled already goes on as it was agreed."""
        self._policy = read_policy(self.settings.policy)

    def respondent_for(self, purpose: str) -> Respondent:
        """Whoever answers in a session; nobody in one for something unknown."""
        if purpose == ALIGN:
            return AlignDesk(home=self.home, settings=self.settings, policy=self._policy)
        if purpose == TRAIN:
            return TrainDesk(home=self.home, settings=self.settings, policy=self._policy)
        raise ProtocolError(f"party '{self.settings.name}' knows no session for '{purpose}'")


def run_agent(home: Path, *, links: LinkSpec | None = None) -> None:
    """Run the agent of a party's directory in the foreground, until it is told to stop.

    ``links`` takes the place of what party.toml says about its link.
    """
    office = PartyOffice(home)
    agent = Agent(
        identity=own_identity(home),
        address=office.settings.hub,
        respondent_for=office.respondent_for,
        links=links or office.settings.link,
    )
    serve_agent(agent, home, reload=office.reload)
