"""A label holder that proposes what no settings should be: refused at once, and by name."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from at_home import RUN, AtHome
from attack.test_prediction_session import Telco
from authority import admit, hub_identity, identity_of
from colonnade.core.errors import ConfigError, Refused
from colonnade.core.numerics import NUMERICS
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.parties import Parties, Patience
from colonnade.fabrics.grpc.agent import Agent
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.hub_lane import HubLane
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from colonnade.federate.party_agent import TRAIN, SessionRespondents
from colonnade.federate.party_home import make_home, write_party
from networks import QUICK

TABLE = np.random.default_rng(2).normal(size=(30, 3))
NAMED = {"ConfigError", "ProtocolError", "Refused", "StorageError"}
DEEP = [1] * 100_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> AtHome:
    return AtHome(tmp_path_factory.mktemp("home"), {"telco": TABLE})


def encoder(**more: Any) -> dict[str, Any]:
    return {"defaults": {"encoder": {"kind": "mlp", **more}}}


def optimizer(name: str, lr: float = 0.1, **options: Any) -> dict[str, Any]:
    return {"defaults": {"optimizer": {"name": name, "lr": lr, "options": options}}}


ODD: dict[str, dict[str, Any]] = {
    "names that are a number": {"names": 5},
    "names that are one text": {"names": "telco"},
    "names in lists": {"names": [["telco"], "telco"]},
    "names that are tables": {"names": ["telco", {}]},
    "a name twice": {"names": ["telco", "telco"]},
    "too many names": {"names": ["telco", *map(str, range(50_000))]},
    "a number of 31 digits": encoder(hidden=[10**30]),
    "a width of 31 digits": encoder(embedding=10**30),
    "a billion neurons": encoder(hidden=[10**9]),
    "numerics in a list": {"numerics": [NUMERICS]},
    "a parent elsewhere": {"parent": {"run": "../../etc", "tag": "t"}},
    "a parent that is no text": {"parent": {"run": ["a"], "tag": {"b": 1}}},
    "a parent that nobody knows": {"parent": {"run": "cd" * 16, "tag": "t"}},
    "not a number": optimizer("sgd", lr=float("nan")),
    "ten to the 400th": optimizer("sgd", lr=1e400),
    "2^40 networks": {"method": "combinatorial", "names": ["telco", *map(str, range(39))]},
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("verb", ["consider", "assemble"])
def test_an_odd_proposal_is_refused_by_name(home: AtHome, verb: str, odd: str) -> None:
    if verb == "assemble":
        failure = home.assemble("telco", ODD[odd])
        assert failure is not None
    else:
        proposed = {"names": ["telco"], "numerics": NUMERICS, **ODD[odd]}
        failure = home.failure("telco", "consider", RUN, json.dumps(proposed))
    # What only a roll or the table can tell is found later.
    assert failure is None or (failure.kind in NAMED and len(failure.message) < 1000)


@pytest.mark.attack(
    what="A network of a hundred thousand layers",
    has="the right to propose settings (cheating)",
    before="minutes in which the agent answers nobody, for each proposal",
    now="refused before a layer is made",
)
@pytest.mark.parametrize(
    "deep", [encoder(hidden=DEEP), {"defaults": {"encoder": {"kind": "lstm", "num_layers": 10**6}}}]
)
def test_a_deep_network_is_refused_at_once(home: AtHome, deep: dict[str, Any]) -> None:
    began = time.process_time()
    failure = home.assemble("telco", deep)
    assert failure is not None
    assert (failure.kind, "at most 1000" in failure.message) == ("ConfigError", True)
    assert time.process_time() - began < 5


@pytest.mark.attack(
    what="Options of an optimizer that multiply the rate and the weight decay which a party allows",
    has="the right to propose settings: negative dampening, an average that never moves (cheating)",
    before="a learning rate and a shrinkage a million times those of its policy",
    now="refused: no such options",
)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sgd", {"momentum": 0.9, "dampening": -1e6, "weight_decay": 9e-5}),
        ("sgd", {"momentum": 0.9, "dampening": float("nan")}),
        ("rmsprop", {"alpha": 1.0, "eps": 1e-30}),
        ("rmsprop", {"alpha": -1.0}),
    ],
)
def test_no_option_gets_past_the_bounds_of_rates(
    home: AtHome, name: str, options: dict[str, Any]
) -> None:
    failure = home.assemble("telco", optimizer(name, **options))
    assert failure is not None
    assert failure.kind == "ConfigError"
    with pytest.raises(ConfigError, match=r"options\.(dampening|alpha)"):
        OptimizerSpec(name=name, options=options)


@pytest.mark.attack(
    what="Sessions without end at a real agent, each with a refused proposal",
    has="as many sessions as it likes (cheating)",
    before="a directory and a printed stack for each",
    now="after {sessions} sessions: {threads} more threads, {files} more open files and {written} "
    "more files in its home; a line in its log for each",
)
def test_sessions_leave_nothing_behind(
    tmp_path: Path, measured: Any, caplog: pytest.LogCaptureFixture
) -> None:
    telco = Telco(tmp_path)
    make_home(telco.home)
    write_party(telco.home, telco.given["settings"])
    respondents = SessionRespondents(telco.home)
    hub = Hub(identity=hub_identity(), admit=admit, links=QUICK)
    agent = Agent(
        identity=identity_of("telco"),
        address=f"127.0.0.1:{hub.port}",
        respondent_for=respondents.respondent_for,
        links=QUICK,
    )
    thread = threading.Thread(target=agent.serve, daemon=True)
    thread.start()
    patience = Patience(timeout=20_000, then="stop")
    refused = json.dumps({"names": ["telco"], "numerics": NUMERICS, "dtype": "float64"})

    def propose(number: int) -> None:
        session = Session(HubLane(hub, 0), ["telco"], purpose=TRAIN, at_side={}, patience=patience)
        fabric = GrpcFabric(session)
        asking = Parties(fabric, patience).ask(
            "consider", f"{number:032x}", refused, among=("telco",)
        )
        try:
            with pytest.raises(Refused, match="'dtypes'"):
                fabric.run(asking)
        finally:
            fabric.close()

    def held() -> tuple[int, int, int]:
        written = sum(1 for _ in telco.home.rglob("*"))
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir())), written

    try:
        propose(0)
        before = held()
        caplog.clear()
        for number in range(1, 41):
            propose(number)
        threads, files, written = (after - own for after, own in zip(held(), before, strict=True))
    finally:
        agent.stop()
        thread.join(20)
        hub.close()
    assert (threads < 10, files < 10, written) == (True, True, 0)
    told = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert not any("\n" in line for line in told)
    measured(sessions=40, threads=max(0, threads), files=max(0, files), written=written)


def test_an_honest_proposal_is_taken(tmp_path: Path) -> None:
    home = AtHome(tmp_path, {"telco": TABLE})
    assert home.assemble("telco", optimizer("sgd", momentum=0.9, dampening=0.5)) is None
