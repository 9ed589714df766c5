"""The page about serving, followed literally: every block saved and run as it stands."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from e2e.organisations import free_port
from e2e.typed import Typed
from serving import HeldRequest, wait_until_refused

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text("utf-8")
ROW = re.compile(r"^(\d{4}) (yes|no) (0\.\d+|1\.0) (.*)$", re.M)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)


def save_files(directory: Path, ports: Mapping[str, str]) -> None:
    """Save what the page says to save."""
    for block in (*blocks("python"), *blocks("toml")):
        name = re.match(r"# (\S+)\n", block)
        assert name is not None
        (directory / name[1]).write_text(replaced(block, ports))


def replaced(text: str, ports: Mapping[str, str]) -> str:
    return re.sub("|".join(ports), lambda found: ports[found[0]], text)


def test_the_page_works_as_written(tmp_path: Path) -> None:
    ports = {"8123": str(free_port())}
    save_files(tmp_path, ports)
    script = replaced("\n".join(blocks("bash")), ports)
    assert script.count("colonnade ") + script.count("python ") < 12
    there = tmp_path / "bin"
    there.mkdir()
    for name, command in (("colonnade", "-m colonnade"), ("python", "")):
        (there / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        (there / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-m", "-c", f"set -e -o pipefail\n{script}"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{there}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert '{"ready":true}' in done.stdout
    assert '"id": 1000' in done.stdout
    assert [(row[0], row[3]) for row in ROW.findall(done.stdout)] == [
        ("1000", "bank shop"),
        ("1001", "bank shop"),
        ("1002", "bank shop"),
    ]
    assert "the service has ended" in done.stderr
    assert "orders: predict; 500 ids a second" in done.stdout
    assert not re.search(r"\b100[012]\b", done.stderr)


def test_three_organisations_as_written(tmp_path: Path, typed: Typed) -> None:
    ports = {"7443": str(free_port()), "8123": str(free_port())}
    save_files(tmp_path, ports)
    commands = [replaced(line, ports) for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) + 1 < 12
    init, invite_shop, invite_telco, train, shop, telco, serve, curl, ask = commands

    def ran(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr + typed.logs()
        return done.stdout

    ran(sys.executable, "make_tables.py")
    for command in (init, invite_shop, invite_telco):
        typed.run(command)
    training = typed.start(train, "train")
    typed.wait_for_words("train", "waiting for shop, telco")
    typed.start(shop, "shop")
    away = typed.start(telco, "telco")
    assert training.wait(120) == 0, typed.logs()
    serving = typed.start(serve, "serve")
    typed.wait_for_words("serve", "serving at")
    away.signal(signal.SIGINT)
    assert away.wait(30) == 0, typed.logs()
    answers = json.loads(ran(*shlex.split(curl)))["predictions"]
    assert [(row["id"], list(row["parties"])) for row in answers] == [
        (1000, ["bank", "shop"]),
        (1001, ["bank", "shop"]),
    ]
    program, *arguments = ask.split()
    assert program == "python"
    rows = ROW.findall(ran(sys.executable, *arguments))
    assert [(row[0], row[3]) for row in rows] == [
        (str(name), "bank shop") for name in range(1000, 1003)
    ]
    port = int(ports["8123"])
    with HeldRequest(port, {"ids": [1000], "deadline_ms": 60_000}) as held:
        held.wait_until_in_hand()
        serving.signal(signal.SIGTERM)
        wait_until_refused(port)
        status, content = held.answered()
    assert (status, list(content["predictions"][0]["parties"])) == (200, ["bank", "shop"])
    assert serving.wait(60) == 0, typed.logs()
    assert not re.search(r"\b100[012]\b", typed.logs())
