"""A party's agent in a process of its own, whose one verb waits until the test lets it go."""

from __future__ import annotations

import sys
from pathlib import Path

from colonnade.core.errors import ConfigError
from colonnade.core.respondent import Respondent
from colonnade.core.verbs import verb
from colonnade.fabrics.grpc.agent import Agent
from colonnade.federate.logs import log_to
from colonnade.federate.party_home import own_identity, read_party
from colonnade.federate.party_service import serve_agent
from networks import QUICK


class Holding(Respondent):
    """Answers when the test says so; the two meet at named pipes."""

    def __init__(self, *, name: str, place: Path) -> None:
        super().__init__(name=name)
        self._place = place

    @verb
    def double(self, number: int) -> int:
        """Twice a number, after a while."""
        with (self._place / "begun").open("w") as begun:
            begun.write("begun\n")
        with (self._place / "go").open() as go:
            go.read()
        return 2 * number


def main(home: Path, place: Path) -> None:
    """Run the agent of a home."""
    settings = read_party(home)
    log_to(party=settings.name)
    agent = Agent(
        identity=own_identity(home),
        address=settings.hub,
        respondent_for=lambda _: Holding(name=settings.name, place=place),
        links=QUICK,
    )

    def reload() -> None:
        if (place / "policy").read_text() != "good":
            raise ConfigError("policy: not good")

    serve_agent(agent, home, reload=reload)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
