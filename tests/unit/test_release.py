"""A release's files agree with one another; experiments are found from a wheel."""

from __future__ import annotations

import re
import sysconfig
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from colonnade.cli import reproduce as command

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_citation_names_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {PYPROJECT['project']['version']}\n" in text
    assert f"\nlicense: {PYPROJECT['project']['license']}\n" in text


def test_every_dependency_of_every_extra_has_a_pin_within_its_bounds() -> None:
    text = (ROOT / "release" / "constraints.txt").read_text("utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.M))
    assert len(pins) == len(text.splitlines()) - 1
    core = PYPROJECT["project"]["dependencies"]
    extras = PYPROJECT["project"]["optional-dependencies"].values()
    for line in [*core, *(item for some in extras for item in some)]:
        item = Requirement(line)
        pinned = pins.get(item.name.lower().replace("_", "-"))
        if item.name == "colonnade":
            continue  # extras that consist of others
        assert pinned is not None, f"{item.name} has no pin: make lock"
        assert item.specifier.contains(pinned), f"{item.name}: make lock"


def test_experiments_come_with_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (target,) = PYPROJECT["tool"]["setuptools"]["data-files"]
    monkeypatch.setattr(command, "__file__", str(tmp_path / "a/b/c/reproduce.py"))
    assert command._experiments() == Path(sysconfig.get_path("data")) / target
