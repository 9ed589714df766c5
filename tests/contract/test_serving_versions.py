"""Versions between organisations: all parties load, then one name flips; training goes on."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import pytest

from agents import hub_of
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.hub_lane import HubLane
from colonnade.federate.agent_lanes import SERVING_LANES
from colonnade.federate.prediction_files import predict_over
from colonnade.federate.training import train_over
from colonnade.run.spec import read_spec
from colonnade.serve.federation_serving import FederationLoader
from colonnade.serve.run_serving import ServeSettings
from e2e.organisations import HOLDER, Organisations
from serving import Running, running


@pytest.fixture(scope="module")
def organisations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Organisations]:
    """Three runs side by side, of other seeds."""
    make: Any = partial(Organisations, tmp_path_factory.mktemp("versions"), nursery=None)
    found: Organisations = make(method="splitnn", combine="mean", exchanges=2)
    with hub_of(found) as hub:
        for seed in (3, 4):
            train(found, hub, f"run{seed}", seed)
    return found


def train(organisations: Organisations, hub: Hub, name: str, seed: int) -> None:
    spec = replace(read_spec(organisations.config), seed=seed)
    train_over(
        hub,
        spec,
        HOLDER,
        organisations.root / name,
        alignments=organisations.federation / "alignments",
    )


@contextmanager
def served(organisations: Organisations, hub: Hub) -> Iterator[Running]:
    loader = FederationLoader(
        [HubLane(hub, number) for number in SERVING_LANES],
        organisations.federation,
        organisations.root / "run3",
        organisations.root / "bank.csv",
        ServeSettings(id_column="id"),
        wait_seconds=20.0,
    )
    with running(loader.first(), load=loader) as one:
        yield one


def batch(organisations: Organisations, hub: Hub, run: str) -> pd.DataFrame:
    """What a batch on lane 0 answers with a run."""
    return predict_over(
        hub,
        organisations.federation,
        organisations.root / run,
        organisations.root / "bank.csv",
        organisations.root / f"{run}.answers.csv",
    )


def rows_of(one: Running, ids: list[str]) -> list[dict[str, Any]]:
    status, content = one.predict(*ids)
    assert status == 200, content
    return [row for row in content["predictions"] if "error" not in row]


def agree(rows: list[dict[str, Any]], expected: dict[str, pd.DataFrame]) -> None:
    for row in rows:
        answer = expected[row["version"].partition("@")[0]].loc[row["id"]]
        assert row["value"] == answer.iloc[0]
        assert row["confidence"] == pytest.approx(answer["confidence"], rel=1e-5)


def test_versions_are_tried_switched_and_rolled_back_under_load(
    organisations: Organisations,
) -> None:
    with hub_of(organisations, serves=True) as hub, served(organisations, hub) as one:
        # On lane 0 batches are answered meanwhile.
        expected = {run: batch(organisations, hub, run) for run in ("run3", "run4")}
        ids = expected["run3"].index[expected["run3"]["confidence"].notna()].tolist()
        agree(rows_of(one, ids), expected)
        status, loaded, _ = one.post("/v1/versions/load", {"run": "run4"})
        assert status == 200, loaded
        first, second = loaded["current"], loaded["version"]
        assert {row["version"] for row in rows_of(one, ids)} == {first}
        one.post("/v1/versions/switch", {"version": second, "share": 0.5})
        tried = rows_of(one, ids)
        assert {row["version"] for row in tried} == {first, second}
        agree(tried, expected)
        again = {row["id"]: row["version"] for row in rows_of(one, ids)}
        assert again == {row["id"]: row["version"] for row in tried}

        failed: list[Any] = []
        is_over = threading.Event()

        def ask(name: str) -> None:
            while not is_over.is_set():
                status, content = one.predict(name)
                if status != 200:
                    failed.append(content)

        threads = [threading.Thread(target=ask, args=(name,)) for name in ids[:3]]
        for thread in threads:
            thread.start()
        for turn in range(20):
            version = (second, first)[turn % 2]
            if turn % 3:
                assert one.post("/v1/versions/switch", {"version": version})[0] == 200
            else:
                assert one.post("/v1/versions/rollback", {})[0] == 200
            agree(rows_of(one, ids[:2]), expected)
        is_over.set()
        for thread in threads:
            thread.join()
        assert not failed


def test_a_version_that_one_party_lacks_changes_nothing(organisations: Organisations) -> None:
    with hub_of(organisations, serves=True) as hub, served(organisations, hub) as one:
        name = (organisations.root / "run4" / "run_name").read_text()
        kept = organisations.home("telco") / "runs" / name
        shutil.move(kept, organisations.root / "elsewhere")
        before = one.get("/v1/versions")[1]
        assert one.post("/v1/versions/load", {"run": "run4"})[0] != 200
        shutil.move(organisations.root / "elsewhere", kept)
        assert one.get("/v1/versions")[1] == before
        ids = pd.read_csv(organisations.root / "bank.csv")["id"].tolist()
        assert rows_of(one, ids)
        # The lane that it had is free again.
        assert one.post("/v1/versions/load", {"run": "run4"})[0] == 200


def test_a_training_goes_on_beside_a_service_and_is_served_next(
    organisations: Organisations,
) -> None:
    with hub_of(organisations, serves=True) as hub, served(organisations, hub) as one:
        ids = pd.read_csv(organisations.root / "bank.csv")["id"].tolist()
        before = rows_of(one, ids)
        train(organisations, hub, "run5", 5)
        assert rows_of(one, ids) == before
        assert one.post("/v1/versions/load", {"run": "run5"})[0] == 200
        assert one.post("/v1/versions/load", {"run": "run4"})[0] == 200
        # Three are as many as parties keep.
        status, content, _ = one.post("/v1/versions/load", {"run": "run3"})
        assert status == 400
        assert "unload one first" in content["error"]["message"]
