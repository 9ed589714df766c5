"""Serving over real links: every party answers for its own columns, or is named."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from agents import agents_of, hub_of
from colonnade.core.messages import Call, Reply
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.event_loop import run_there
from colonnade.fabrics.grpc.hub import Hub
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.party_agent import SessionRespondents
from colonnade.federate.peers import own_signer
from colonnade.federate.prediction_files import predict_over
from colonnade.federate.training import train_over
from colonnade.run.kept_seals import SEALS
from colonnade.run.spec import read_spec
from colonnade.serve import federation_serving, linked_exchange, networked_predictor
from colonnade.serve.federation_serving import FederationLoader
from colonnade.serve.kept_embeddings import KeptEmbeddings
from colonnade.serve.networked_predictor import NetworkedPredictor
from colonnade.serve.run_serving import ServeSettings
from e2e.organisations import HOLDER, PARTIES, Organisations
from networks import QUICK
from serving import Running, running


@pytest.fixture
def make(tmp_path: Path) -> Any:
    return partial(Organisations, tmp_path, nursery=None, exchanges=2)


def trained(organisations: Organisations) -> Organisations:
    with hub_of(organisations) as hub:
        train_over(
            hub,
            read_spec(organisations.config),
            HOLDER,
            organisations.run,
            alignments=organisations.federation / "alignments",
        )
    return organisations


def loader_of(
    organisations: Organisations, hub: Hub, wait: float = 20.0, **settings: Any
) -> FederationLoader:
    return FederationLoader(
        [hub],
        organisations.federation,
        organisations.run,
        organisations.root / "bank.csv",
        ServeSettings(id_column="id", **settings),
        wait_seconds=wait,
    )


@contextmanager
def served(organisations: Organisations, hub: Hub, **others: Any) -> Iterator[Running]:
    loader = loader_of(organisations, hub, **others)
    with running(loader.first(), load=loader) as one:
        yield one


@contextmanager
def hub_alone(organisations: Organisations) -> Iterator[Hub]:
    address = "127.0.0.1:0"
    with open_hub(organisations.federation, links=QUICK, address=address, enrols=False) as hub:
        yield hub


def known_to_all(organisations: Organisations) -> list[str]:
    tables = [pd.read_csv(organisations.root / f"{name}.csv") for name in (HOLDER, *PARTIES)]
    shared = set(tables[0]["id"]).intersection(*(table["id"] for table in tables[1:]))
    return sorted(shared, key=tables[0]["id"].tolist().index)


@pytest.mark.parametrize("method", ["splitnn", "laser"])
def test_the_answer_over_http_is_that_of_the_batch(
    make: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networked_predictor, "_SEAL_SECONDS", 0.0)
    organisations = trained(make(method=method, combine="mean"))
    ids = known_to_all(organisations)
    with hub_of(organisations) as hub:
        batch = predict_over(
            hub,
            organisations.federation,
            organisations.run,
            organisations.root / "bank.csv",
            organisations.root / "answers.csv",
        )
        with served(organisations, hub) as one:
            seals = organisations.federation / SEALS
            before = seals.read_text()
            status, content = one.predict(*ids, "nobody")
            # Parties seal their accounts while they serve, not only at the end.
            until(lambda: seals.read_text() != before)
    assert status == 200
    *rows, unknown = content["predictions"]
    assert unknown["error"]["reason"] == "unknown"
    for row in rows:
        expected = batch.loc[row["id"]]
        assert row["value"] == expected.iloc[0]
        assert row["confidence"] == pytest.approx(expected["confidence"], rel=1e-5)
        assert sorted(row["parties"]) == [HOLDER, *PARTIES]


def parties_of(one: Running, *ids: str, **others: Any) -> list[str]:
    status, content = one.predict(*ids, **others)
    assert status == 200
    return sorted(content["predictions"][0]["parties"])


def until(holds: Callable[[], bool]) -> None:
    """Ask again until something holds; a hang is found by the test's timeout."""
    while not holds():
        pass


def test_a_party_that_left_is_not_waited_for_and_comes_back(make: Any) -> None:
    organisations = trained(make(method="laser", combine="mean"))
    first = known_to_all(organisations)[0]
    with (
        hub_alone(organisations) as hub,
        ExitStack() as telco,
        agents_of(organisations, hub, ["shop"]),
    ):
        telco.enter_context(agents_of(organisations, hub, ["telco"]))
        with served(organisations, hub) as one:
            assert parties_of(one, first) == [HOLDER, *PARTIES]
            telco.close()
            until(lambda: hub.wait_for(["telco"], timeout=0.0) == ("telco",))
            assert parties_of(one, first) == [HOLDER, "shop"]
            assert "not connected" in one.get("/")[1]
            telco.enter_context(agents_of(organisations, hub, ["telco"]))
            until(lambda: parties_of(one, first) == [HOLDER, *PARTIES])


def test_a_service_begins_without_a_party_that_is_away_and_takes_it_in(make: Any) -> None:
    organisations = trained(make(method="laser", combine="mean"))
    first = known_to_all(organisations)[0]
    with hub_of(organisations, ["shop"]) as hub, ExitStack() as around:
        assert not hub.wait_for(["shop"], timeout=60.0)
        one = around.enter_context(served(organisations, hub, wait=0.0))
        assert parties_of(one, first) == [HOLDER, "shop"]
        # Another session would end the one that answers.
        assert one.post("/v1/versions/load", {"run": organisations.run.name})[0] == 400
        with agents_of(organisations, hub, ["telco"]):
            until(lambda: parties_of(one, first) == [HOLDER, *PARTIES])


def test_a_party_that_can_not_load_its_half_keeps_nobody_else_waiting(
    make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(networked_predictor, "_FIRST_PAUSE_SECONDS", 0.1)
    organisations = trained(make(method="laser", combine="mean"))
    first = known_to_all(organisations)[0]
    runs, elsewhere = organisations.home("telco") / "runs", organisations.root / "elsewhere"
    with hub_of(organisations, ["shop"]) as hub, served(organisations, hub, wait=0.0) as one:
        # Away from the start, then in the session of the others: it comes, and its weights are
        # gone; they are put back.
        for _ in range(2):
            until(lambda: parties_of(one, first) == [HOLDER, "shop"])
            runs.rename(elsewhere)
            with agents_of(organisations, hub, ["telco"]):
                until(lambda: "can&#x27;t load its half" in one.get("/")[1])
                assert parties_of(one, first) == [HOLDER, "shop"]
                elsewhere.rename(runs)
                until(lambda: parties_of(one, first) == [HOLDER, *PARTIES])
    said = [item.getMessage() for item in caplog.records if "can't load" in item.getMessage()]
    assert any("no agreement is kept here" in line for line in said)


def test_a_method_that_needs_everybody_names_who_left(make: Any) -> None:
    organisations = trained(make(method="splitnn", combine="mean"))
    first = known_to_all(organisations)[0]
    with hub_alone(organisations) as hub, agents_of(organisations, hub, ["shop"]):
        with agents_of(organisations, hub, ["telco"]), ExitStack() as stack:
            one = stack.enter_context(served(organisations, hub))
            held = stack.pop_all()
            assert one.predict(first)[0] == 200
        until(lambda: hub.wait_for(["telco"], timeout=0.0) == ("telco",))
        with held:
            status, content = one.predict(first)
            assert status == 503
            assert content["error"]["parties"] == ["telco"]
            assert one.get("/readyz")[0] == 503


class Agreed(KeptEmbeddings):
    """A cache to which everybody has agreed from the start."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"asks_consent": False})
        MADE.append(self)


MADE: list[KeptEmbeddings] = []


@pytest.mark.parametrize("is_blinded", [True, False])
def test_of_a_blinded_run_nothing_is_kept_and_everybody_is_needed(
    make: Any, monkeypatch: pytest.MonkeyPatch, is_blinded: bool
) -> None:
    protect = 'protect = [{ kind = "blind", range = 8.0 }]' if is_blinded else ""
    organisations = make(combine="mean", protect=protect, policies=dict.fromkeys(PARTIES, ""))
    for name, other in (PARTIES, PARTIES[::-1]):
        key = own_signer(organisations.home(other)).public.hex()
        policy = f'cache_seconds = 1800\npeers = {{ {other} = "{key}" }}\n'
        (organisations.root / f"{name}.policy.toml").write_text(policy)
    ids = known_to_all(trained(organisations))[:3]
    monkeypatch.setattr(federation_serving, "KeptEmbeddings", Agreed)

    def answer(one: Running) -> list[dict[str, Any]]:
        status, content = one.predict(*ids)
        assert status == 200, content
        return list(content["predictions"])

    with (
        hub_alone(organisations) as hub,
        ExitStack() as telco,
        agents_of(organisations, hub, ["shop"]),
    ):
        telco.enter_context(agents_of(organisations, hub, ["telco"]))
        with served(organisations, hub, cache_seconds=3600) as one:
            before = answer(one)
            if not is_blinded:
                until(lambda: all(row["parties"]["telco"]["cached"] for row in answer(one)))
                assert len(MADE[-1]) > 0
                return
            again = answer(one)
            assert not any(item["cached"] for row in again for item in row["parties"].values())
            assert MADE[-1].is_open
            assert len(MADE[-1]) == 0
            telco.close()
            until(lambda: hub.wait_for(["telco"], timeout=0.0) == ("telco",))
            status, content = one.predict(*ids)
            assert status == 503
            assert content["error"]["parties"] == ["telco"]
            # It comes back without its keys: masks cancel again after a new agreement.
            telco.enter_context(agents_of(organisations, hub, ["telco"]))
            until(lambda: one.predict(*ids)[0] == 200)
            assert [row["confidence"] for row in answer(one)] == pytest.approx(
                [row["confidence"] for row in before], rel=1e-5
            )


class Frozen(Respondent):
    """A party's respondent that stands still while its gate is closed."""

    def __init__(self, inner: Respondent, gate: threading.Event) -> None:
        self._inner, self._gate = inner, gate

    def execute(self, call: Call) -> Reply:
        assert self._gate.wait(120)
        return self._inner.execute(call)


def test_a_frozen_party_costs_no_more_than_the_deadline(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    organisations = trained(make(method="laser", combine="mean"))
    first = known_to_all(organisations)[0]
    gate = threading.Event()
    gate.set()
    real = SessionRespondents.respondent_for

    def respondent_for(self: SessionRespondents, purpose: str, lane: int = 0) -> Respondent:
        found = real(self, purpose, lane)
        return Frozen(found, gate) if self.settings.name == "telco" else found

    monkeypatch.setattr(SessionRespondents, "respondent_for", respondent_for)
    with hub_of(organisations) as hub, served(organisations, hub) as one:
        assert parties_of(one, first) == [HOLDER, *PARTIES]
        gate.clear()
        assert parties_of(one, first, deadline_ms=1000) == [HOLDER, "shop"]
        # Nobody waits for it any more, not even for a probe: an hour of patience is not used.
        assert one.service.breakers.states()["telco"] == "open"
        assert parties_of(one, first) == [HOLDER, "shop"]
        gate.set()
        until(lambda: parties_of(one, first, deadline_ms=20_000) == [HOLDER, *PARTIES])
        assert one.service.breakers.states()["telco"] == "closed"


def metrics(one: Running) -> str:
    text: str = one.get("/metrics")[1]
    return text


@pytest.mark.parametrize("tells", [True, False])
def test_parties_tell_how_far_their_rows_are_from_training_if_they_like(
    make: Any, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    monkeypatch.setattr("colonnade.federate.served_rows.FEWEST", 20)
    monkeypatch.setattr("colonnade.quality.drift._FEWEST_ROWS", 20)
    monkeypatch.setattr("colonnade.serve.observations._ASK_SECONDS", 0.1)
    policy = 'tells = ["far", "drift"]\n' if tells else ""
    organisations = trained(
        make(method="laser", combine="mean", policies={"shop": "", "telco": policy})
    )
    file = organisations.root / "telco.csv"
    table = pd.read_csv(file)
    table.assign(telco_0=table["telco_0"] + 1000.0).to_csv(file, index=False)
    lines: list[str] = []
    with hub_of(organisations) as hub:
        predict_over(
            hub,
            organisations.federation,
            organisations.run,
            organisations.root / "bank.csv",
            organisations.root / "answers.csv",
            say=lines.append,
        )
        with served(organisations, hub) as one:
            assert one.predict(*known_to_all(organisations))[0] == 200
            if tells:
                until(lambda: 'colonnade_serve_far_rows_total{party="telco"}' in metrics(one))
                assert 'colonnade_serve_drift{of="inputs",party="telco"}' in metrics(one)
                assert "embeddings" in one.get("/")[1]
            assert 'party="shop"' not in re.sub("left_out.*|seconds.*|silences.*", "", metrics(one))
    told = [line for line in lines if "far outside" in line]
    assert [line.split(":")[0] for line in told] == (["telco"] if tells else [])
    if tells:
        rows, far = map(int, re.findall(r"\d+", told[0])[:2])
        assert rows == far >= 20


@pytest.mark.parametrize("method", ["splitnn", "laser", "easter"])
def test_on_the_event_loop_the_answer_is_that_of_a_thread(make: Any, method: str) -> None:
    organisations = trained(make(method=method, combine="mean"))
    ids = known_to_all(organisations)
    with hub_of(organisations) as hub:
        predictor = loader_of(organisations, hub).first()
        assert isinstance(predictor, NetworkedPredictor)

        async def here(asked: list[str]) -> Any:
            found = predictor.predict_here(asked, deadline=time.monotonic() + 60, without=())
            assert found is not None
            return await found

        try:
            for asked in (ids[:1], ids[1:4], [*ids[:2], "nobody"]):
                one = run_there(here(asked))
                other = predictor.predict(asked, deadline=time.monotonic() + 60, without=())
                assert one.outcomes == other.outcomes
                assert one.seconds.keys() == other.seconds.keys()
                assert one.silent == other.silent == ()
        finally:
            predictor.close()


def test_the_event_loop_is_held_up_by_nobody(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many samples, large networks, and whoever uses the session already: all go to a thread."""
    organisations = trained(make(method="laser", combine="mean"))
    (one, *_) = known_to_all(organisations)
    with hub_of(organisations) as hub:
        predictor = loader_of(organisations, hub).first()
        assert isinstance(predictor, NetworkedPredictor)

        def is_for_a_thread(*ids: str) -> bool:
            async def look() -> bool:
                found = predictor.predict_here(ids, deadline=time.monotonic() + 60, without=())
                if found is not None:
                    await found
                return found is None

            return run_there(look())

        try:
            assert not is_for_a_thread(one)
            assert is_for_a_thread(*(f"{number}" for number in range(65)))
            with predictor._in_use:
                assert is_for_a_thread(one)
            # From another thread nobody may drive the loop's own.
            assert predictor.predict_here([one], deadline=0.0, without=()) is None
        finally:
            predictor.close()
        monkeypatch.setattr(networked_predictor, "_FEW_WEIGHTS", 10)
        predictor = loader_of(organisations, hub).first()
        try:
            assert is_for_a_thread(one)
        finally:
            predictor.close()


def test_an_exchange_that_fails_on_the_event_loop_leaves_the_session_to_the_next(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a party sends: kept in use, the session would answer nobody ever again."""
    organisations = trained(make(method="laser", combine="mean"))
    (one, *_) = known_to_all(organisations)
    with hub_of(organisations) as hub:
        predictor = loader_of(organisations, hub).first()
        assert isinstance(predictor, NetworkedPredictor)

        async def ask() -> Any:
            found = predictor.predict_here([one], deadline=time.monotonic() + 60, without=())
            assert found is not None
            return await found

        def fail(*_: Any, **__: Any) -> Any:
            raise RuntimeError("an answer that nobody thought of")

        try:
            with monkeypatch.context() as patch:
                patch.setattr(linked_exchange, "outcomes_of", fail)
                with pytest.raises(RuntimeError, match="nobody thought of"):
                    run_there(ask())
            assert len(run_there(ask()).outcomes) == 1
            asked = predictor.predict([one], deadline=time.monotonic() + 60, without=())
            assert len(asked.outcomes) == 1
        finally:
            predictor.close()
