"""A party's agent: it answers the hub's calls with the party's own table and policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from colonnade.core.errors import ProtocolError
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.federate.agent_lanes import AgentLanes
from colonnade.federate.align_session import AlignSession
from colonnade.federate.party_home import own_identity, read_party
from colonnade.federate.party_policy import read_policy
from colonnade.federate.party_service import serve_agent
from colonnade.federate.party_sessions import SessionAtParty
from colonnade.federate.predict_session import PredictSession
from colonnade.federate.served_rows import RowsWatched
from colonnade.federate.train_session import TrainSession

__all__ = ["ALIGN", "PREDICT", "TRAIN", "SessionRespondents", "run_agent"]

# Purposes of a session.
ALIGN = "align"
TRAIN = "train"
PREDICT = "predict"

_SESSIONS: Mapping[str, type[SessionAtParty]] = {
    ALIGN: AlignSession,
    TRAIN: TrainSession,
    PREDICT: PredictSession,
}
# For lanes beside training.
_BESIDE = (ALIGN, PREDICT)


class SessionRespondents:
    """Makes the respondent that answers in a session, from a party's directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.settings = read_party(home)
        self._policy = read_policy(self.settings.policy)
        # Of all sessions for predictions, for the metrics.
        self.watched = RowsWatched()

    def reload(self) -> None:
        """Read the policy again; a session that has begun keeps the policy it began with."""
        self._policy = read_policy(self.settings.policy)

    def respondent_for(self, purpose: str, lane: int = 0) -> Respondent:
        """The respondent for a session of this purpose on a lane.

        Raises:
            ProtocolError: The purpose is unknown, or not one for a lane beside training.
        """
        if purpose not in (_BESIDE if lane else _SESSIONS):
            where = f" on lane {lane}" if lane else ""
            raise ProtocolError(
                f"party '{self.settings.name}' knows no session for '{purpose}'{where}"
            )
        made = _SESSIONS[purpose](
            home=self.home, settings=self.settings, policy=self._policy, lane=lane
        )
        if isinstance(made, PredictSession):
            made.watched = self.watched
        return made


def run_agent(home: Path, *, links: LinkSpec | None = None) -> None:
    """Run the agent of a party's directory in the foreground, until it is told to stop.

    ``links`` replaces the link settings of party.toml.
    """
    respondents = SessionRespondents(home)
    agent = AgentLanes(
        identity=own_identity(home),
        address=respondents.settings.hub,
        serving=respondents.settings.serving,
        respondent_for=respondents.respondent_for,
        links=links or respondents.settings.link,
    )
    serve_agent(agent, home, reload=respondents.reload, watched=respondents.watched)
