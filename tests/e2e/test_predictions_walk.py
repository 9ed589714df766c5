"""docs/predictions.md as it is written: three processes, from three tables to a file of answers."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest

from e2e.organisations import free_port

PAGE = Path(__file__).parents[2] / "docs" / "predictions.md"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def walk(kind: str) -> list[str]:
    """The blocks of one kind in the page's walk."""
    text = PAGE.read_text("utf-8").split("## A walk")[1].split("\n## ")[0]
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


def words(line: str) -> list[str]:
    name, *arguments = shlex.split(line)
    assert name == "colonnade"
    return [sys.executable, "-m", "colonnade", *arguments]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(20)


def wait_for_words(log: Path, said: str) -> None:
    pause = threading.Event()
    for _ in range(6000):
        if said in log.read_text():
            return
        pause.wait(0.02)
    raise AssertionError(log.read_text())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tables,) = walk("python")
    subprocess.run([sys.executable, "-c", tables], cwd=tmp_path, check=True)
    (settings,) = walk("toml")
    (tmp_path / "credit.toml").write_text(settings)
    return tmp_path


def test_the_walk(place: Path) -> None:
    port = free_port()
    commands = [
        line.replace("7443", str(port)) for block in walk("sh") for line in block.splitlines()
    ]
    assert [line.split()[1:3] for line in commands] == [
        ["federation", "init"],
        ["federation", "invite"],
        ["federation", "invite"],
        ["federation", "train"],
        ["party", "join"],
        ["party", "join"],
        ["federation", "predict"],
    ]
    *before, train, telco, shop, predict = map(words, commands)
    for command in before:
        subprocess.run(command, cwd=place, env=ENVIRONMENT, check=True, capture_output=True)

    def started(command: list[str], log: str) -> subprocess.Popen[bytes]:
        file = around.enter_context((place / log).open("wb"))
        process = subprocess.Popen(command, cwd=place, env=ENVIRONMENT, stdout=file, stderr=file)
        around.callback(_end, process)
        return process

    with ExitStack() as around:
        training = started(train, "train.log")
        wait_for_words(place / "train.log", "waiting for shop, telco")
        started(telco, "telco.log")
        started(shop, "shop.log")
        logs = [place / f"{name}.log" for name in ("train", "telco", "shop")]
        assert training.wait(120) == 0, "\n".join(log.read_text() for log in logs)
        ended = subprocess.run(
            predict, cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
        )
        assert ended.returncode == 0, ended.stderr + "\n".join(log.read_text() for log in logs)
    assert "aligning with shop, telco" in ended.stdout
    assert "10 predictions in scores.csv" in ended.stdout
    answers = pd.read_csv(place / "scores.csv", keep_default_na=False)
    new = pd.read_csv(place / "new.csv")
    assert answers["customer_id"].tolist() == new["customer_id"].tolist()
    assert set(answers["defaulted"]) <= {"yes", "no"}
    assert answers["confidence"].between(0.5, 1.0).all()
    assert set(answers["blocks"]) == {"bank; shop; telco"}
    assert set(answers["missing"]) == {""}
    assert not (place / "scores.csv.unfinished").exists()
