"""The page about serving, followed literally: every block saved and run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text("utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)


def test_the_page_works_as_written(tmp_path: Path) -> None:
    for block in (*blocks("python"), *blocks("toml")):
        name = re.match(r"# (\S+)\n", block)
        assert name is not None
        (tmp_path / name[1]).write_text(block)
    script = "\n".join(blocks("bash"))
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
    rows = re.findall(r"^(\d{4}) (yes|no) (0\.\d+|1\.0) (.*)$", done.stdout, re.M)
    assert [(row[0], row[3]) for row in rows] == [
        ("1000", "bank shop"),
        ("1001", "bank shop"),
        ("1002", "bank shop"),
    ]
    assert "the service has ended" in done.stderr
    assert "orders: predict; 500 ids a second" in done.stdout
    assert not re.search(r"\b100[012]\b", done.stderr)
