"""What surrounds an agent: endpoints, metrics, signals and logs without data."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from colonnade.core.errors import ConfigError, DataError, IdentityRefused, RunError
from colonnade.fabrics.grpc.execution import AgentStatus
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.identities import save_identity
from colonnade.federate.logs import JsonLines, log_to
from colonnade.federate.party_home import PartySettings, make_home, write_party
from colonnade.federate.party_service import Service, serve_agent
from membership import SetClock, make_federation, make_member
from messages import says

SECRET = "person-424242"


class Reload:
    """A policy that can be bad."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None
        self.called = threading.Event()

    def __call__(self) -> None:
        self.count += 1
        self.called.set()
        if self.error is not None:
            raise self.error


@pytest.fixture
def reload() -> Reload:
    return Reload()


@pytest.fixture
def stopped() -> list[str]:
    return []


@pytest.fixture
def service(reload: Reload, stopped: list[str]) -> Service:
    status = AgentStatus()
    return Service(lambda: status, stop=lambda: stopped.append("stop"), reload=reload)


@pytest.fixture
def base(service: Service) -> Iterator[str]:
    with service.listening("127.0.0.1:0") as (host, port):
        assert host == "127.0.0.1"
        yield f"http://{host}:{port}"


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(base: str) -> dict[str, float]:
    _, text = get(f"{base}/metrics")
    return {
        sample.name + "".join(f"/{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# Endpoints


def test_health_and_readiness(service: Service, base: str) -> None:
    status: Any = service._status()
    assert get(f"{base}/healthz") == (200, '{"healthy": true}\n')
    code, text = get(f"{base}/readyz")
    assert code == HTTPStatus.SERVICE_UNAVAILABLE
    assert json.loads(text)["because"] == "not connected to the hub: dialling"
    status.last_error = "UNAVAILABLE: nobody"
    assert "UNAVAILABLE: nobody" in get(f"{base}/readyz")[1]
    status.is_connected = True
    assert get(f"{base}/readyz?full=1") == (200, '{"ready": true}\n')
    service.stop()
    assert json.loads(get(f"{base}/readyz")[1]) == {"ready": False, "because": "stopping"}
    assert get(f"{base}/healthz")[0] == 200
    service.fail("its identity was revoked")
    assert get(f"{base}/healthz")[0] == HTTPStatus.SERVICE_UNAVAILABLE


@pytest.mark.parametrize("path", ["", "/", "/healthz/", "/../etc/passwd", "/metrics/x", "/%2e"])
def test_there_is_nothing_else(base: str, path: str) -> None:
    assert get(base + path)[0] == 404


def test_metrics_are_what_prometheus_reads(service: Service, base: str) -> None:
    status: Any = service._status()
    status.num_calls, status.seconds_computing, status.is_connected = 7, 1.5, True
    status.wire_bytes_up, status.num_failures = 2**40, 2
    service.expiry = 1_800_000_000.0
    found = metrics(base)
    assert found["colonnade_calls_total"] == 7
    assert found["colonnade_call_failures_total"] == 2
    assert found["colonnade_computing_seconds_total"] == 1.5
    assert found["colonnade_sent_bytes_total"] == 2**40
    assert found["colonnade_ready"] == 1
    assert found["colonnade_identity_expiry_timestamp_seconds"] == 1_800_000_000
    assert found["colonnade_policy_reloads_total/done"] == 0
    service.stop()
    assert metrics(base)["colonnade_ready"] == 0


def test_other_requests_end_themselves_only(service: Service, base: str) -> None:
    host, _, port = base.removeprefix("http://").partition(":")
    for request in (b"\x16\x03\x01\x00\xff\r\n\r\n", b"POST /healthz HTTP/1.0\r\n\r\n", b""):
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            raw.sendall(request)
            raw.shutdown(socket.SHUT_WR)
            assert b" 200 " not in raw.recv(1000)
    assert get(f"{base}/healthz")[0] == 200


def test_a_port_that_is_taken_is_named(service: Service, base: str) -> None:
    address = base.removeprefix("http://")
    with (
        pytest.raises(RunError, match=says("health", address, "party.toml")),
        service.listening(address),
    ):
        pass


# Signals


def test_signals_stop_and_reload(service: Service, reload: Reload, stopped: list[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with service.signals():
        os.kill(os.getpid(), signal.SIGHUP)
        assert reload.called.wait(20)
        assert not service.stopping.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert service.stopping.wait(20)
        os.kill(os.getpid(), signal.SIGINT)  # a second time changes nothing
    assert stopped == ["stop"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_bad_policy_leaves_the_old_one_in_force(
    service: Service, reload: Reload, base: str, caplog: pytest.LogCaptureFixture
) -> None:
    service.reload()
    reload.error = ConfigError("policy.toml: methods: unknown value")
    service.reload()
    assert reload.count == 2
    assert "stays in force: policy.toml: methods" in caplog.text
    found = metrics(base)
    assert found["colonnade_policy_reloads_total/done"] == 1
    assert found["colonnade_policy_reloads_total/refused"] == 1


# All of it around an agent


class FakeAgent:
    """Serves until it is stopped, or until it is refused."""

    def __init__(self, refused: IdentityRefused | None = None) -> None:
        self.status = AgentStatus()
        self.serving = threading.Event()
        self.identities: list[Identity] = []
        self._refused = refused
        self._over = threading.Event()

    def serve(self) -> None:
        self.status.is_connected = True
        self.serving.set()
        if self._refused is not None:
            raise self._refused
        assert self._over.wait(20)

    def stop(self) -> None:
        self._over.set()

    def renew(self, identity: Identity) -> None:
        self.identities.append(identity)

    def reconnect(self) -> None:
        pass


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    make_home(home)
    save_identity(home, make_member(make_federation(tmp_path / "fed", SetClock()), "telco"))
    write_party(
        home,
        PartySettings(
            name="telco",
            label_holder="bank",
            hub="127.0.0.1:7443",
            data=tmp_path / "customers.csv",
            id="customer_id",
        ),
    )
    return home


def test_an_agent_serves_until_sigterm(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "colonnade")
    agent = FakeAgent()

    def end() -> None:
        assert agent.serving.wait(20)
        os.kill(os.getpid(), signal.SIGTERM)

    ending = threading.Thread(target=end)
    ending.start()
    serve_agent(agent, home)
    ending.join()
    assert [record.message for record in caplog.records] == [
        "the agent runs",
        "asked to stop: the call in hand is finished first",
        "the agent has left",
    ]


def test_an_agent_that_is_refused_ends(home: Path) -> None:
    agent = FakeAgent(IdentityRefused("'telco' was revoked", reason="revoked"))
    with pytest.raises(IdentityRefused, match=says("'telco'", "revoked")):
        serve_agent(agent, home)


# Logs


@pytest.fixture
def lines() -> Iterator[Any]:
    stream = io.StringIO()
    handler = log_to(stream, party="telco")

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    yield read
    logging.getLogger().removeHandler(handler)
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("colonnade").setLevel(logging.NOTSET)


def test_a_line_is_json_with_fixed_keys(lines: Any) -> None:
    log = logging.getLogger("colonnade.agent")
    log.info("a call\nis done", extra={"fields": {"verb": "embed", "bytes": 12, "event": "x"}})
    (line,) = lines()
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "where": "colonnade.agent",
        "event": "a call\nis done",
        "party": "telco",
        "verb": "embed",
        "bytes": 12,
    }


def test_no_data_gets_into_a_log(lines: Any) -> None:
    log = logging.getLogger("colonnade.agent")
    data = {
        "tensor": torch.full((2,), 424242.0),
        "table": pd.DataFrame({"name": [SECRET]}),
        "array": np.array([424242]),
        "names": [SECRET],
        "content": SECRET.encode(),
        "number": np.float64(1.5),
        "none": None,
        "endless": float("inf"),
    }
    log.info("it came", extra={"fields": data})
    log.info("it came: %s", data["tensor"])
    log.info("it came: %(x)s", {"x": [SECRET]})
    try:
        pd.Series([SECRET]).astype(float)
    except ValueError:
        log.exception("a call failed")
    logging.getLogger("pandas").error("can't convert %s", SECRET)
    logging.getLogger("colonnadette").error(SECRET)
    text = json.dumps(lines())
    assert SECRET not in text
    assert "424242" not in text
    first, second, third, failed, *others = lines()
    assert first["tensor"] == "<Tensor>"
    assert (first["number"], first["none"], first["endless"]) == (1.5, None, "inf")
    assert second["event"] == "it came: <Tensor>"
    assert third["event"] == "it came: <list>"
    assert failed["error"] == "ValueError"
    assert "message" not in failed
    assert ":" in failed["place"]
    assert all(line["event"] == "a library's message, not shown" for line in others)


def test_our_own_errors_are_told(lines: Any) -> None:
    log = logging.getLogger("colonnade.agent")
    try:
        raise DataError("block of party 'telco': 3 duplicate ids")
    except DataError as error:
        log.warning("refused: %s", error, exc_info=True)
    (line,) = lines()
    assert line["event"] == "refused: block of party 'telco': 3 duplicate ids"
    assert line["error"] == "DataError"
    assert line["message"] == "block of party 'telco': 3 duplicate ids"


def test_a_message_that_does_not_fit_its_arguments_is_written_without_them() -> None:
    table = pd.DataFrame({"name": [SECRET]})
    record = logging.LogRecord("colonnade", logging.INFO, "", 0, "%d came", (table,), None)
    assert json.loads(JsonLines().format(record))["event"] == "%d came"


def test_long_texts_are_cut() -> None:
    record = logging.LogRecord("colonnade", logging.INFO, "", 0, 9000 * "x", None, None)
    assert len(JsonLines().format(record)) < 1000
