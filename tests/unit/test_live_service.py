"""The live page's service: for whoever has the address, on this machine, and small."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from colonnade.core.errors import RunError
from colonnade.report.live_service import LiveService
from colonnade.report.run_feed import RunFeed
from messages import says
from report_pages import run_directory


@pytest.fixture
def service(tmp_path: Path) -> Iterator[LiveService]:
    one = LiveService(run_directory(tmp_path / "credit"))
    yield one
    one.close()


def ask(service: LiveService, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    place = urlsplit(service.url)
    connection = HTTPConnection(str(place.hostname), place.port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, content, {name.lower(): value for name, value in answer.getheaders()}


def test_the_page_is_there_for_its_address_alone(service: LiveService) -> None:
    path = urlsplit(service.url).path
    status, content, headers = ask(service, path)
    assert status == 200
    assert "<title>Colonnade: live</title>" in content
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    for wrong in ("/", "/live.js", "/x/", f"{path}../live_service.py", f"{path}%2e%2e/", path[:-1]):
        assert ask(service, wrong)[0] == 404, wrong
    # A page of another name that points at this machine.
    assert ask(service, path, Host="evil.example")[0] == 421
    assert ask(service, path, Host=f"evil.example:{urlsplit(service.url).port}")[0] == 421


def test_events_come_and_end_with_the_service(service: LiveService) -> None:
    path = urlsplit(service.url).path
    threading.Timer(0.2, service.close).start()
    status, content, headers = ask(service, f"{path}events")  # until the service ends
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    names = re.findall(r"^event: (.*)$", content, re.M)
    assert names == ["run", "metrics", "end", "closed"]
    assert "secret<b>" not in content  # of the settings only what the page shows


def test_a_port_that_is_taken_is_an_error(service: LiveService, tmp_path: Path) -> None:
    port = urlsplit(service.url).port
    assert port is not None
    with pytest.raises(RunError, match=says(f"127.0.0.1:{port}", "choose another port")):
        LiveService(tmp_path, port=port)


def test_too_many_connections_are_closed(service: LiveService) -> None:
    place = urlsplit(service.url)
    request = f"GET {place.path}events HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode()
    connections = []
    for _ in range(32):
        one = socket.create_connection(("127.0.0.1", int(place.port or 0)), timeout=10)
        one.sendall(request)
        assert one.recv(12) == b"HTTP/1.0 200"
        connections.append(one)
    with socket.create_connection(("127.0.0.1", int(place.port or 0)), timeout=10) as more:
        assert more.recv(1) == b""
    for one in connections:
        one.close()


def test_the_page_loads_nothing_from_elsewhere_and_is_small() -> None:
    assets = files("colonnade.report") / "assets"
    contents = [
        item.read_text("utf-8") for item in assets.iterdir() if item.name.startswith("live")
    ]
    assert sum(len(content.encode()) for content in contents) < 150_000
    for content in contents:
        elsewhere = re.findall(r"(?:https?:)?//[a-z0-9.]+\.[a-z]+\S*", content)
        assert set(elsewhere) <= {'//www.w3.org/2000/svg";', 'http://www.w3.org/2000/svg";'}
        assert "innerHTML" not in content
        assert "eval(" not in content


def test_a_feed_says_everything_once_and_the_newest_always(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "credit", num_exchanges=4000)
    feed = RunFeed(run)
    first = dict(feed.news())
    found = [line for line in first["metrics"]["lines"] if line["kind"] == "exchange"]
    assert first["metrics"]["reset"]
    assert len(found) <= 1500
    assert found[-1]["exchange"] == 4000
    assert list(feed.news()) == []
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "exchange", "exchange": 4001}\n{"kind": "exch')
    assert list(feed.news()) == [
        ("metrics", {"reset": False, "lines": [{"kind": "exchange", "exchange": 4001}]})
    ]
