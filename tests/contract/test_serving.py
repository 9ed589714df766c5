"""Serving over real HTTP: what is asked, what comes back, and what is the same on every path."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from colonnade.core.errors import StorageError
from colonnade.run.result import Result
from colonnade.run.run_shelf import PROMOTED, RunShelf
from colonnade.run.storage import RunInUse
from colonnade.serve.prediction_service import ServiceLimits
from colonnade.serve.run_serving import RunLoader, ServeSettings
from serving import Running, ScriptedPredictor, running, three_parties


@pytest.fixture(scope="module")
def laser(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    place = tmp_path_factory.mktemp("laser")
    return place, three_parties(place, method="laser")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    place = tmp_path_factory.mktemp("split")
    files = three_parties(place)
    three_parties(place, run="credit2", seed=1)
    return place, files


def loader_of(
    made: tuple[Path, dict[str, Path]], settings: ServeSettings | None = None
) -> RunLoader:
    place, files = made
    return RunLoader(place / "credit", files, settings or ServeSettings(id_column="id"))


@pytest.fixture
def served(split: tuple[Path, dict[str, Path]]) -> Iterator[Running]:
    loader = loader_of(split)
    with running(loader.first(), load=loader) as one:
        yield one


def expected(place: Path, files: dict[str, Path], run: str = "credit") -> pd.DataFrame:
    blocks = {name: pd.read_csv(file).set_index("id") for name, file in files.items()}
    found = Result.load(place / run).answer(blocks)
    return found.set_axis(found.index.astype(str))


def test_the_answer_over_http_is_the_answer_in_process(
    split: tuple[Path, dict[str, Path]], served: Running
) -> None:
    place, files = split
    known = expected(place, files)
    status, content = served.predict(*range(1000, 1120))
    assert status == 200
    assert content["model"] == "credit"
    assert len(content["request_id"]) == 16
    for row in content["predictions"]:
        label, confidence, blocks = known.loc[str(row["id"])]
        assert row["value"] == label
        assert row["confidence"] == pytest.approx(confidence, rel=1e-6)
        assert row["probabilities"][label] == row["confidence"]
        assert tuple(row["parties"]) == tuple(blocks)
        assert row["version"].startswith("credit@")


def test_ids_come_back_as_they_were_written(served: Running) -> None:
    status, content = served.predict(1003, "1003", 1001)
    assert status == 200
    assert [row["id"] for row in content["predictions"]] == [1003, "1003", 1001]
    first, second, _ = content["predictions"]
    assert first["value"] == second["value"]


def test_an_unknown_id_is_told_beside_the_others(served: Running) -> None:
    status, content = served.predict(1000, 5)
    assert status == 200
    assert content["predictions"][1]["error"] == {"reason": "unknown", "parties": []}
    assert served.predict(5)[0] == 404


def test_the_open_inference_protocol(split: tuple[Path, dict[str, Path]], served: Running) -> None:
    assert served.get("/v2/health/live")[0] == 200
    assert served.get("/v2/health/ready")[0] == 200
    status, about, _ = served.get("/v2/models/credit")
    assert status == 200
    assert about["inputs"] == [{"name": "ids", "datatype": "BYTES", "shape": [-1]}]
    tensor = {"name": "ids", "shape": [2], "datatype": "INT64", "data": [1000, 1001]}
    wanted = {"id": "7", "inputs": [tensor], "parameters": {"deadline_ms": 60_000}}
    status, content, _ = served.post("/v2/models/credit/infer", wanted)
    assert status == 200
    assert content["id"] == "7"
    outputs = {item["name"]: item for item in content["outputs"]}
    rows = served.predict(1000, 1001)[1]["predictions"]
    assert outputs["value"]["data"] == [row["value"] for row in rows]
    assert outputs["probabilities"]["shape"] == [2, 2]
    assert outputs["confidence"]["data"] == [row["confidence"] for row in rows]
    assert served.get("/v2/models/other")[0] == 404
    tensor["shape"] = [3]
    assert served.post("/v2/models/credit/infer", wanted)[0] == 400


def test_health_metrics_and_pages(served: Running) -> None:
    served.predict(1000)
    assert served.get("/healthz")[1] == {"healthy": True}
    assert served.get("/readyz")[1] == {"ready": True}
    text = served.get("/metrics")[1]
    assert 'colonnade_serve_answered_total{blocks="bank+shop+telco"} 1.0' in text
    assert 'colonnade_serve_requests_total{path="/v1/predict",status="200"} 1.0' in text
    page = served.get("/")[1]
    assert "bank+shop+telco" in page
    assert "100.0%" in page
    described = served.get("/openapi.json")[1]
    assert {"/v1/predict", "/v2/models/{name}/infer", "/healthz"} <= set(described["paths"])
    listed = served.get("/docs")[1]
    for content in (page, listed):
        assert "http://" not in content
        assert "https://" not in content
        assert "<script" not in content


def test_a_file_that_changes_is_read_again(laser: tuple[Path, dict[str, Path]]) -> None:
    loader = loader_of(laser)
    _, files = laser
    before = files["bank"].read_text()
    with running(loader.first(), load=loader) as one:
        assert one.predict(9999)[0] == 404
        files["bank"].write_text(before + "9999,0.5,0.5,0.5\n")
        assert loader.tables.look() == ("bank",)
        status, content = one.predict(9999)
        assert status == 200
        assert list(content["predictions"][0]["parties"]) == ["bank"]
        files["bank"].write_text("no table\n")
        loader.tables.look()
        status, content = one.predict(1000)
        assert list(content["predictions"][0]["parties"]) == ["shop", "telco"]
        assert "bank" in one.get("/")[1]
        files["bank"].write_text(before)
        loader.tables.look()
        assert len(one.predict(1000)[1]["predictions"][0]["parties"]) == 3


def test_a_method_that_needs_everybody_names_who_is_away(
    split: tuple[Path, dict[str, Path]],
) -> None:
    loader = loader_of(split)
    _, files = split
    before = files["shop"].read_text()
    with running(loader.first(), load=loader) as one:
        files["shop"].unlink()
        loader.tables.look()
        status, content = one.predict(1000, 1001)
        assert status == 503
        assert content["error"]["parties"] == ["shop"]
        assert one.get("/readyz")[0] == 503
        files["shop"].write_text(before)
        loader.tables.look()
        assert one.predict(1000)[0] == 200


def test_kept_embeddings_answer_again_and_tell_their_age(
    split: tuple[Path, dict[str, Path]],
) -> None:
    settings = ServeSettings(id_column="id", cache_seconds=3600.0)
    loader = loader_of(split, settings)
    with running(loader.first(), load=loader) as one:
        (fresh,) = one.predict(1000)[1]["predictions"]
        (again,) = one.predict(1000)[1]["predictions"]
    assert not any(item["cached"] for item in fresh["parties"].values())
    assert all(item["cached"] and item["age_ms"] > 0 for item in again["parties"].values())
    for key in ("value", "probabilities", "confidence"):
        assert fresh[key] == again[key]


# Gathering


def test_what_arrives_during_an_exchange_goes_with_the_next() -> None:
    predictor = ScriptedPredictor()
    with running(predictor) as one, ThreadPoolExecutor(6) as pool:
        predictor.gate.clear()
        first = pool.submit(one.predict, "a")
        assert predictor.begun.acquire(timeout=60)
        others = [pool.submit(one.predict, f"b{number}") for number in range(5)]
        _until(one, lambda: one.service.versions.current.num_waiting == 5)
        predictor.gate.set()
        for each in (first, *others):
            assert each.result()[0] == 200
    assert predictor.asked[0] == ("a",)
    assert sorted(predictor.asked[1]) == [f"b{number}" for number in range(5)]
    assert len(predictor.asked) == 2
    assert predictor.closed


def test_beyond_the_bound_a_request_is_turned_away() -> None:
    predictor = ScriptedPredictor()
    limits = ServiceLimits(most_ids=3, most_waiting=3)
    with running(predictor, limits=limits) as one, ThreadPoolExecutor(2) as pool:
        predictor.gate.clear()
        first = pool.submit(one.predict, "a")
        assert predictor.begun.acquire(timeout=60)
        second = pool.submit(one.predict, "b", "c")
        _until(one, lambda: one.service.versions.current.num_waiting == 2)
        status, content, headers = one.post("/v1/predict", {"ids": ["d", "e"]})
        assert (status, headers["retry-after"]) == (429, "1")
        predictor.gate.set()
        assert first.result()[0] == second.result()[0] == 200
    assert content["error"]["message"]


def test_a_deadline_that_passes_first_is_told() -> None:
    predictor = ScriptedPredictor()
    with running(predictor) as one:
        predictor.gate.clear()
        assert one.predict("a", deadline_ms=1)[0] == 504
        predictor.gate.set()
        assert one.predict("b")[0] == 200


def test_a_silent_party_is_left_out_and_probed_again() -> None:
    now = [0.0]
    predictor = ScriptedPredictor()
    with running(predictor, clock=lambda: now[0]) as one:
        predictor.frozen = {"shop"}
        for number in range(5):
            row = one.predict(str(number))[1]["predictions"][0]
            assert list(row["parties"]) == ["bank", "telco"]
        assert predictor.left_out[2:] == [frozenset(), frozenset({"shop"}), frozenset({"shop"})]
        now[0] = 1.0
        one.predict("probe")
        assert predictor.left_out[-1] == frozenset()
        predictor.frozen = set()
        one.predict("still out")
        assert predictor.left_out[-1] == frozenset({"shop"})
        now[0] = 3.0
        assert len(one.predict("back")[1]["predictions"][0]["parties"]) == 3
        assert 'party_silences_total{party="shop"} 4.0' in one.get("/metrics")[1]


def test_a_probe_that_failed_for_another_reason_is_made_again() -> None:
    now = [0.0]
    predictor = ScriptedPredictor()
    with running(predictor, clock=lambda: now[0]) as one:
        predictor.frozen = {"shop"}
        for number in range(3):
            one.predict(str(number))
        now[0] = 1.0
        predictor.fails = True
        assert one.predict("probe")[0] == 500
        predictor.fails, predictor.frozen = False, set()
        assert len(one.predict("again")[1]["predictions"][0]["parties"]) == 3


def test_the_same_idempotency_key_is_answered_once() -> None:
    predictor = ScriptedPredictor()
    with running(predictor) as one:
        asked: dict[str, Any] = {"ids": ["a"], "deadline_ms": 60_000}
        headers = {"Idempotency-Key": "order-1"}
        first = one.post("/v1/predict", asked, headers=headers)
        again = one.post("/v1/predict", asked, headers=headers)
        assert first[:2] == again[:2]
        assert len(predictor.asked) == 1
        other = one.post("/v1/predict", {**asked, "ids": ["b"]}, headers=headers)
        assert other[0] == 422


# Versions


def test_a_version_is_loaded_tried_switched_and_rolled_back(
    split: tuple[Path, dict[str, Path]], served: Running
) -> None:
    place, files = split
    (first,) = served.get("/v1/versions")[1]["loaded"]
    status, content, _ = served.post("/v1/versions/load", {"run": "credit2"})
    assert status == 200
    second = content["version"]
    assert second.startswith("credit2@")
    ids = range(1000, 1120)
    status, content, _ = served.post("/v1/versions/switch", {"version": second, "share": 0.3})
    assert (content["current"], content["canary"]) == (first, second)
    tried = {row["id"]: row for row in served.predict(*ids)[1]["predictions"]}
    again = {row["id"]: row for row in served.predict(*ids)[1]["predictions"]}
    assert [tried[name]["version"] for name in ids] == [again[name]["version"] for name in ids]
    counts = [row["version"] for row in tried.values()]
    # The secret of the draw is random: these bounds are seven deviations wide.
    assert 0 < counts.count(second) / len(counts) < 0.6
    known = {first: expected(place, files), second: expected(place, files, "credit2")}
    for name, row in tried.items():
        label, confidence, _ = known[row["version"]].loc[str(name)]
        assert row["value"] == label
        assert row["confidence"] == pytest.approx(confidence, rel=1e-6)
    served.post("/v1/versions/switch", {"version": second})
    assert {row["version"] for row in served.predict(*ids)[1]["predictions"]} == {second}
    assert served.post("/v1/versions/rollback", {})[1]["current"] == first
    assert served.post("/v1/versions/unload", {"version": second})[1]["loaded"] == [first]
    assert served.post("/v1/versions/unload", {"version": first})[0] == 400
    assert served.post("/v1/versions/switch", {"version": "credit3@"})[0] == 400


def test_a_tag_is_loaded_and_what_is_served_is_not_deleted(
    split: tuple[Path, dict[str, Path]],
) -> None:
    shelf = RunShelf(split[0])
    shelf.tag("credit2", PROMOTED)
    loader = loader_of(split)
    with running(loader.first(), load=loader) as one:
        status, content, _ = one.post("/v1/versions/load", {"run": PROMOTED})
        assert status == 200
        assert content["version"].startswith("credit2@")
        shelf.untag(PROMOTED)
        with pytest.raises(StorageError, match="in use"):
            shelf.delete("credit2")
        assert one.post("/v1/versions/load", {"run": PROMOTED})[0] == 400
        assert one.post("/v1/versions/unload", {"version": content["version"]})[0] == 200
        RunInUse.refuse(split[0] / "credit2")


def test_no_request_fails_while_versions_switch() -> None:
    made = {name: ScriptedPredictor(f"{name}@1") for name in ("credit", "credit2")}
    statuses: list[int] = []
    is_over = threading.Event()

    with running(made["credit"], load=lambda run: made[run]) as one:
        one.post("/v1/versions/load", {"run": "credit2"})

        def ask() -> None:
            while not is_over.is_set():
                status, content = one.predict("a", "b")
                statuses.append(status)
                assert len({row["version"] for row in content["predictions"]}) == 1

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            for number in range(20):
                version = f"credit{'2' * (number % 2)}@1"
                assert one.post("/v1/versions/switch", {"version": version})[0] == 200
                one.predict("between")
            is_over.set()
            for each in asking:
                each.result()
    assert statuses
    assert set(statuses) == {200}


def test_stopping_answers_whoever_is_waiting() -> None:
    predictor = ScriptedPredictor()
    with ThreadPoolExecutor(1) as pool, running(predictor) as one:
        predictor.gate.clear()
        waiting = pool.submit(one.predict, "a")
        assert predictor.begun.acquire(timeout=60)
        one.listening.stop()
        predictor.gate.set()
        assert waiting.result()[0] == 200
    assert predictor.closed


def _until(one: Running, holds: Any) -> None:
    """Let the event loop turn until something holds there."""

    async def wait() -> None:
        while not holds():
            await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(wait(), one.loop).result(60)
