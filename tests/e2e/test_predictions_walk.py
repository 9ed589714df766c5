"""docs/predictions.md as it is written: three processes, from three tables to a file of answers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from e2e.organisations import free_port
from e2e.typed import Typed

PAGE = Path(__file__).parents[2] / "docs" / "predictions.md"


def walk(kind: str) -> list[str]:
    """The blocks of one kind in the page's walk."""
    text = PAGE.read_text("utf-8").split("## A walk")[1].split("\n## ")[0]
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tables,) = walk("python")
    subprocess.run([sys.executable, "-c", tables], cwd=tmp_path, check=True)
    (settings,) = walk("toml")
    (tmp_path / "credit.toml").write_text(settings)
    return tmp_path


def test_the_walk(place: Path, typed: Typed) -> None:
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
    *before, train, telco, shop, predict = commands
    for command in before:
        typed.run(command)
    training = typed.start(train, "train")
    typed.wait_for_words("train", "waiting for shop, telco")
    typed.start(telco, "telco")
    typed.start(shop, "shop")
    assert training.wait(120) == 0, typed.logs()
    said = typed.run(predict)
    assert "aligning with shop, telco" in said
    assert "10 predictions in scores.csv" in said
    answers = pd.read_csv(place / "scores.csv", keep_default_na=False)
    new = pd.read_csv(place / "new.csv")
    assert answers["customer_id"].tolist() == new["customer_id"].tolist()
    assert set(answers["defaulted"]) == {"yes", "no"}  # it learned something
    assert answers["confidence"].between(0.5, 1.0).all()
    assert set(answers["blocks"]) == {"bank; shop; telco"}
    assert set(answers["missing"]) == {""}
    assert not (place / "scores.csv.unfinished").exists()
