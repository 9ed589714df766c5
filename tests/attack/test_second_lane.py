"""A label holder that uses the lane for predictions to get past what the first lane refuses."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from attack.test_prediction_session import Telco
from authority import admit, hub_identity, identity_of
from colonnade.core.errors import PartyFailed, ProtocolError
from colonnade.core.messages import Batch
from colonnade.core.parties import Parties, Patience
from colonnade.fabrics.grpc.agent import Agent
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.hub_lane import HubLane
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.link_settings import MOST_LANES
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from colonnade.federate.party_agent import TRAIN, SessionRespondents
from colonnade.federate.party_home import make_home, write_party
from colonnade.federate.party_policy import PartyPolicy
from colonnade.federate.predict_session import PredictSession
from networks import QUICK

MOST = 10


@pytest.fixture
def telco(tmp_path: Path) -> Telco:
    return Telco(tmp_path)


@pytest.mark.attack(
    what="Two lanes at once, each within the account",
    has="a session on every lane of a party (cheating)",
    before="(lanes are new)",
    now="one account for all lanes: {releases} releases of a person, of {most} allowed",
)
def test_lanes_share_one_account(telco: Telco, measured: Any) -> None:
    policy = PartyPolicy(releases_per_row=MOST)
    lanes = [PredictSession(**telco.given | {"policy": policy, "lane": n}) for n in (0, 1, 2)]
    # Every request has the first sample, with others: none is the same as another.
    orders = list(itertools.permutations(range(1, 7), 2))
    answered: list[int] = []

    def ask(session: PredictSession, own: list[tuple[int, ...]]) -> None:
        asking = Telco.__new__(Telco)
        asking.__dict__ |= telco.__dict__ | {"session": session}
        asking.load()
        for order in own:
            name, reply = asking.choose(telco.own[[0, *order]])
            assert reply.failure is None
            if asking.ask("infer", Batch(name, 0)).failure is None:
                answered.append(1)
            asking.ask("forget", name)

    threads = [
        threading.Thread(target=ask, args=(session, orders[place::3]))
        for place, session in enumerate(lanes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answered) == MOST
    measured(releases=len(answered), most=MOST)


@pytest.mark.attack(
    what="A second training on a lane for predictions",
    has="a session on every lane of a party (cheating)",
    before="(lanes are new)",
    now="refused: lanes beside training take predictions and alignments only",
)
def test_a_lane_beside_training_takes_no_training(telco: Telco) -> None:
    make_home(telco.home)
    write_party(telco.home, telco.given["settings"])
    respondents = SessionRespondents(telco.home)
    assert respondents.respondent_for(TRAIN, 0)
    with pytest.raises(ProtocolError, match="no session for 'train' on lane 1"):
        respondents.respondent_for(TRAIN, 1)
    agent = Agent(
        identity=identity_of("telco"),
        address="",
        respondent_for=lambda purpose: respondents.respondent_for(purpose, 1),
        links=QUICK,
        lane=1,
    )
    hub = Hub(identity=hub_identity(), admit=admit, links=QUICK)
    agent._address = f"127.0.0.1:{hub.port}"
    thread = threading.Thread(target=agent.serve, daemon=True)
    thread.start()
    patience = Patience(timeout=20_000, then="stop")
    session = Session(HubLane(hub, 1), ["telco"], purpose=TRAIN, at_side={}, patience=patience)
    fabric = GrpcFabric(session)
    try:
        with pytest.raises((PartyFailed, ProtocolError), match="no session for 'train'"):
            fabric.run(Parties(fabric, patience).ask("keep", "tag", among=("telco",)))
    finally:
        fabric.close()
        agent.stop()
        thread.join(20)
        hub.close()


def test_a_lane_is_no_lane_of_another_party_and_none_beyond_the_last(telco: Telco) -> None:
    hub = Hub(identity=hub_identity(), admit=admit, links=QUICK)
    agent = Agent(
        identity=identity_of("telco"),
        address=f"127.0.0.1:{hub.port}",
        respondent_for=lambda purpose: telco.session,
        links=QUICK,
        lane=MOST_LANES,
    )
    thread = threading.Thread(target=agent.serve, daemon=True)
    thread.start()
    try:
        pause = threading.Event()
        while "at most" not in agent.status.last_error:
            pause.wait(0.01)
        assert not agent.status.is_connected
        assert hub.wait_for(["telco"], timeout=0.0, lane=MOST_LANES) == ("telco",)
    finally:
        agent.stop()
        thread.join(20)
        hub.close()
