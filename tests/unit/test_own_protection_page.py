"""The page on protections of one's own: its examples run as they stand, and are short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colonnade import protect

PAGE = Path(__file__).parents[2] / "docs" / "own-protection.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)


@pytest.fixture(autouse=True)
def own_protections() -> Iterator[None]:
    """Protections that the page registers are gone after it."""
    before = dict(protect._PROTECTIONS)
    yield
    protect._PROTECTIONS.clear()
    protect._PROTECTIONS.update(before)


def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    for block in BLOCKS:
        exec(compile(block, PAGE.name, "exec", dont_inherit=True), names)
    assert "round" in capsys.readouterr().out


def test_it_takes_fewer_than_40_lines() -> None:
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) < 40
