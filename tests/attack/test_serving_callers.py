"""Callers of the prediction service who cheat: without a key, too large, too slow, too curious."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from colonnade.core.errors import ConfigError
from colonnade.serve import api_keys, listening
from colonnade.serve.api_keys import KeyFile, make_key, read_keys, revoke_key
from colonnade.serve.breaker import Breakers
from colonnade.serve.prediction_service import ServiceLimits
from colonnade.serve.run_serving import RunLoader, ServeSettings
from serving import Running, ScriptedPredictor, grpc_face, running, three_parties

ASKED: dict[str, Any] = {"ids": ["person-4711"], "deadline_ms": 60_000}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# Keys


def test_nobody_gets_anything_without_a_key_for_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    shop = make_key(file, "shop")
    watcher = make_key(file, "watcher", scopes=["watch"])
    with running(ScriptedPredictor(), keys=file) as one:
        for headers in ({}, bearer("shop.wrong"), bearer("nobody.x"), bearer(shop + "x")):
            for method, path in (
                ("POST", "/v1/predict"),
                ("POST", "/v2/models/credit/infer"),
                ("POST", "/v1/versions/switch"),
                ("GET", "/v1/versions"),
                ("GET", "/v2/models/credit"),
                ("GET", "/metrics"),
                ("GET", "/"),
                ("GET", "/docs"),
                ("GET", "/openapi.json"),
            ):
                content = ASKED if method == "POST" else None
                assert one.call(method, path, content, headers=headers)[0] == 401, path
        assert one.get("/healthz")[0] == one.get("/readyz")[0] == 200
        assert one.post("/v1/predict", ASKED, headers=bearer(shop))[0] == 200
        assert one.get("/metrics", headers=bearer(shop))[0] == 403
        assert one.post("/v1/predict", ASKED, headers=bearer(watcher))[0] == 403
        assert one.get("/metrics", headers=bearer(watcher))[0] == 200
        loading = {"run": "credit2"}
        assert one.post("/v1/versions/load", loading, headers=bearer(shop))[0] == 403


def test_a_revoked_key_is_refused_at_once_and_a_damaged_file_lets_nobody_in(
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys.json"
    shop, other = make_key(file, "shop"), make_key(file, "other")
    with running(ScriptedPredictor(), keys=file) as one:
        assert one.post("/v1/predict", ASKED, headers=bearer(shop))[0] == 200
        revoke_key(file, "shop")
        assert one.post("/v1/predict", ASKED, headers=bearer(shop))[0] == 401
        assert one.post("/v1/predict", ASKED, headers=bearer(other))[0] == 200
        file.write_text("{")
        assert one.post("/v1/predict", ASKED, headers=bearer(other))[0] == 401


def test_the_file_of_keys_has_no_key_and_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = make_key(file, "shop")
    assert key.partition(".")[2] not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(key.partition(".")[2]) >= 43


def test_keys_are_compared_in_constant_time_known_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    key = make_key(file, "shop")
    compared: list[tuple[str, str]] = []
    real = api_keys.hmac.compare_digest

    def noting(one: str, other: str) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(api_keys.hmac, "compare_digest", noting)
    keys = KeyFile(file, time.monotonic)
    for given in (key, "shop.wrong", "nobody.wrong", "", None):
        compared.clear()
        assert (keys.find(given) is not None) == (given == key)
        assert [len(item) for item in compared[0]] == [64, 64]


def test_a_key_may_not_ask_for_more_than_its_share(tmp_path: Path) -> None:
    file, now = tmp_path / "keys.json", [0.0]
    make_key(file, "shop", ids_per_second=10)
    key = read_keys(file)["shop"]
    keys = KeyFile(file, lambda: now[0])
    assert keys.seconds_to_wait("shop", key, 8) == 0.0
    assert keys.seconds_to_wait("shop", key, 8) == pytest.approx(0.6)
    now[0] = 0.6
    assert keys.seconds_to_wait("shop", key, 8) == 0.0
    # More than a second's worth at once is paid for afterwards.
    now[0] = 10.0
    assert keys.seconds_to_wait("shop", key, 100) == 0.0
    assert keys.seconds_to_wait("shop", key, 1) > 9.0


@pytest.mark.parametrize("name", ["", "../shop", "A", "a" * 41, "shop.x"])
def test_a_key_of_a_strange_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        make_key(tmp_path / "keys.json", name)


def test_an_open_address_needs_keys_or_certificates() -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0"):
        ServeSettings(host="0.0.0.0")


# What a request may be


@pytest.fixture(scope="module")
def one(request: pytest.FixtureRequest) -> Any:
    limits = ServiceLimits(most_ids=10, largest_body=2000, slowest_body=0.2)
    with running(ScriptedPredictor(), limits=limits) as found:
        yield found


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ({"ids": ["x"] * 11}, 413),
        ({"ids": ["x" * 3000]}, 413),
        ({"ids": ["x" * 201]}, 422),
        ({"ids": []}, 422),
        ({"ids": [True]}, 422),
        ({"ids": [1.5]}, 422),
        ({"ids": [None]}, 422),
        ({"ids": [{"a": 1}]}, 422),
        ({"ids": ["x"], "deadline_ms": 0}, 422),
        ({"ids": ["x"], "deadline_ms": 10**9}, 422),
        ({"ids": ["x"], "unknown": 1}, 422),
        (["x"], 422),
    ],
)
def test_bounds_of_a_request(one: Running, content: Any, status: int) -> None:
    found, told, _ = one.post("/v1/predict", content)
    assert found == status
    assert "xxx" not in str(told)


def raw(one: Running, data: bytes) -> bytes:
    """Everything that comes back for these bytes, until the connection is closed."""
    with socket.create_connection(("127.0.0.1", one.port), timeout=60) as link:
        link.sendall(data)
        found = b""
        while part := link.recv(4096):
            found += part
        return found


HEADERS = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def test_a_body_that_never_ends_is_cut_by_size_and_by_time(one: Running) -> None:
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    chunked = HEADERS + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 3
    assert raw(one, chunked).startswith(b"HTTP/1.1 413")
    slow = HEADERS + b"Content-Length: 100\r\n\r\n{"
    assert raw(one, slow).startswith(b"HTTP/1.1 408")


def test_headers_that_never_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_SLOWEST_HEADERS_SECONDS", 0.2)
    monkeypatch.setattr(listening, "_IDLE_SECONDS", 1)
    with running(ScriptedPredictor()) as one:
        assert raw(one, HEADERS) == b""
        # Also of a second request on a connection that was used before.
        whole = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        assert raw(one, whole + b"GET / HT").count(b"HTTP/1.1 200") == 1


@pytest.mark.attack(
    what="Calls over gRPC that never send their message",
    has="the address of a serving label holder (stranger)",
    before="each was waited for without end, and a thousand kept all others out",
    now="each is ended after the time that a request has to arrive",
)
def test_calls_that_never_send_are_ended() -> None:
    limits = ServiceLimits(slowest_body=0.5, most_connections=3)
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait(60)
        yield from ()

    with (
        running(ScriptedPredictor(), limits=limits) as one,
        grpc_face(one) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        path = "/inference.GRPCInferenceService/ServerLive"
        silent = [channel.stream_unary(path).future(nothing()) for _ in range(2)]
        for call in silent:
            error = call.exception(60)
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error
        never.set()
        assert channel.unary_unary(path)(b"", timeout=60) == b"\x08\x01"
        # Nor is a call without a message, or with a message that is none, worth more than a code.
        with pytest.raises(grpc.RpcError) as empty:
            channel.stream_unary(path)(iter(()), timeout=60)
        assert empty.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        infer = "/inference.GRPCInferenceService/ModelInfer"
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(infer)(b"\xff\xff\xff", timeout=60)
        with pytest.raises(grpc.RpcError) as long:
            channel.unary_unary(infer)(bytes(limits.largest_body + 1), timeout=60)
        assert long.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_page_in_a_browser_can_not_ask_for_its_visitor(one: Running) -> None:
    """Neither by a form, whose kind of content needs no leave, nor by a name of its own."""
    form = {"Content-Type": "text/plain"}
    assert one.post("/v1/predict", ASKED, headers=form)[0] == 415
    assert one.post("/v1/predict", ASKED, headers={"Host": "evil.example"})[0] == 421
    assert one.get("/", headers={"Host": "evil.example:8000"})[0] == 421
    for host in ("localhost", "127.0.0.1:1", "[::1]", "[::1]:8000"):
        assert one.get("/healthz", headers={"Host": host})[0] == 200
    assert one.get("/")[2]["x-frame-options"] == "DENY"


def test_no_caller_shuts_a_party_out_by_haste() -> None:
    now = [0.0]
    breakers = Breakers(["shop", "telco"], lambda: now[0])
    breakers.answered("telco", 0.2)
    for _ in range(10):
        breakers.silent("shop", 0.001)
        breakers.silent("telco", 0.3)
    assert breakers.left_out(0.001) == breakers.left_out(0.2) == frozenset()
    for _ in range(3):
        breakers.silent("telco", 0.5)
    assert breakers.left_out(0.2) == {"telco"}


# What is told


def test_no_id_and_no_value_in_any_log_or_error(caplog: pytest.LogCaptureFixture) -> None:
    predictor = ScriptedPredictor()
    with caplog.at_level(logging.DEBUG), running(predictor) as one:
        one.post("/v1/predict", ASKED)
        one.post("/v1/predict", {"ids": ["person-4711"], "deadline_ms": "person-4711"})
        one.get("/v1/predict/person-4711?id=person-4711")
        predictor.fails = True
        status, told, _ = one.post("/v1/predict", ASKED)
        metrics = one.get("/metrics")[1]
    assert status == 500
    assert told == {"error": {"message": "internal error"}}
    for text in (caplog.text, metrics):
        assert "4711" not in text
        assert "3.25" not in text


def test_a_run_elsewhere_on_the_disk_can_not_be_loaded(tmp_path: Path) -> None:
    files = three_parties(tmp_path)
    outside = tmp_path / "credit" / "parties"
    loader = RunLoader(tmp_path / "credit", files, ServeSettings(id_column="id"))
    with running(loader.first(), load=loader) as one:
        for run in ("..", ".", "credit/../credit", str(outside), "credit\0", "nothing", "/"):
            status, told, _ = one.post("/v1/versions/load", {"run": run})
            assert status == 400, run
            assert str(tmp_path) not in str(told)
