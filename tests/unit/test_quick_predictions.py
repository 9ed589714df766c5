"""The short way to a prediction answers every request as the framework's route does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import colonnade.serve.http_routes
from colonnade.serve.admittance import Admittance
from colonnade.serve.api_keys import KeyFile, make_key
from colonnade.serve.guard import Application
from colonnade.serve.http_routes import make_application
from colonnade.serve.predict_route import PREDICT
from colonnade.serve.prediction_service import PredictionService, ServiceLimits
from serving import ScriptedPredictor

GOOD = b'{"ids": ["a", 7, "\xc3\xa4"], "deadline_ms": 60000}'


def long_way(inner: Application, *_: Any) -> Application:
    """Instead of the short one: the routes themselves."""
    return inner


def application(keys: KeyFile | None, clock: Any) -> tuple[PredictionService, Application]:
    limits = ServiceLimits(most_ids=8, longest_deadline=60_000)
    service = PredictionService(lambda run: ScriptedPredictor(run), limits=limits, clock=clock)
    service.begin(ScriptedPredictor())
    return service, make_application(service, Admittance(keys))


async def asked(
    routes: Application,
    body: bytes,
    headers: Mapping[str, str],
    method: str = "POST",
    path: str = PREDICT,
) -> tuple[int, dict[bytes, bytes], Any]:
    named = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "root_path": "",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await routes(scope, receive, send)
    content = b"".join(item.get("body", b"") for item in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(content or b"{}")


def both_ways(
    monkeypatch: pytest.MonkeyPatch, *asking: Any, keys: Path | None = None, drains: bool = False
) -> list[list[Any]]:
    """What each way answers to the same requests, one after the other, and what it counts."""

    async def ask() -> list[Any]:
        known = None if keys is None else KeyFile(keys, lambda: 0.0)
        service, routes = application(known, lambda: 0.0)
        service.is_draining = drains
        found: list[Any] = [await asked(routes, *one) for one in asking]
        text = service.watching.text().decode().splitlines()
        found += [line for line in text if "requests_total" in line or "answered_total" in line]
        await service.drain()
        return found

    # Nothing here depends on speed.
    monkeypatch.setattr("colonnade.serve.gathering.GRACE_SECONDS", 60.0)
    short = asyncio.run(ask())
    with monkeypatch.context() as changed:
        changed.setattr(colonnade.serve.http_routes, "QuickPredictions", long_way)
        long = asyncio.run(ask())
    for answers in (short, long):
        for item in answers:
            if isinstance(item, tuple):
                # Drawn anew for every request.
                item[2].pop("request_id", None)
                item[1].pop(b"content-length", None)
    return [short, long]


BODIES = [
    GOOD,
    b'{"ids": ["a", "a"]}',
    b'{"ids": [1], "deadline_ms": 200.0}',
    b'{"ids": [1], "deadline_ms": "200"}',
    b'{"ids": [1], "deadline_ms": true}',
    b'{"ids": [1], "deadline_ms": 60001}',
    b'{"ids": [1], "deadline_ms": 0}',
    b'{"ids": [1], "deadline_ms": 1e400}',
    b'{"ids": [1], "deadline_ms": NaN}',
    b'{"ids": [1, 2, 3, 4, 5, 6, 7, 8, 9]}',
    b'{"ids": [true]}',
    b'{"ids": [1.0]}',
    b'{"ids": [""]}',
    b'{"ids": ["' + b"x" * 201 + b'"]}',
    b'{"ids": []}',
    b'{"ids": "a"}',
    b'{"ids": null}',
    b'{"ids": [1], "ids": [2]}',
    b'{"ids": [1], "more": 1}',
    b'{"ids": ["\\ud800"]}',
    b'{"ids": [123456789012345678901234567890]}',
    b"[]",
    b"",
    b"{",
    b"\xff",
    '{"ids": [1]}'.encode("utf-16"),
]


@pytest.mark.parametrize("body", BODIES)
def test_every_body_is_answered_the_same(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = both_ways(monkeypatch, (body, {}))
    assert short == long


def test_methods_paths_keys_and_limits_are_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    asks = make_key(path, "asks", scopes=("predict",), ids_per_second=5.0)
    watches = make_key(path, "watches", scopes=("watch",), ids_per_second=5.0)
    bearing = {"authorization": f"Bearer {asks}"}
    short, long = both_ways(
        monkeypatch,
        (GOOD, {}),
        (GOOD, {"authorization": "Bearer nobody"}),
        (GOOD, {"authorization": f"Bearer {watches}"}),
        (b"{", {}),
        (GOOD, bearing),
        (GOOD, bearing),
        (GOOD, {**bearing, "idempotency-key": "one"}),
        (b"", bearing, "GET"),
        (GOOD, bearing, "POST", PREDICT + "/"),
        keys=path,
    )
    assert short == long
    statuses = [item[0] for item in short if isinstance(item, tuple)]
    assert statuses == [401, 401, 403, 422, 200, 429, 429, 405, 307]


def test_a_draining_service_says_so_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = both_ways(monkeypatch, (GOOD, {}), drains=True)
    assert short == long
    assert short[0][0] == 503


def test_plain_requests_don_t_go_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above would compare a way with itself."""

    async def ask() -> int:
        service, routes = application(None, time.monotonic)

        async def refuse(*_: Any) -> None:
            raise AssertionError("the long way")

        monkeypatch.setattr("fastapi.FastAPI.__call__", refuse)
        status, _, _ = await asked(routes, GOOD, {})
        await service.drain()
        return status

    assert asyncio.run(ask()) == 200


def test_a_failure_tells_nobody_what_it_quotes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: Any) -> tuple[int, bytes]:
        raise ValueError("of customer 4711")

    monkeypatch.setattr("colonnade.serve.predict_route.predicted", fails)

    async def ask() -> tuple[int, dict[bytes, bytes], Any]:
        service, routes = application(None, lambda: 0.0)
        answer = await asked(routes, GOOD, {})
        await service.drain()
        return answer

    status, _, content = asyncio.run(ask())
    assert (status, content) == (500, {"error": {"message": "internal error"}})
    assert "ValueError" in caplog.text
    assert "4711" not in caplog.text
