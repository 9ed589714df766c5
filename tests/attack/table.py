"""``make attacks``: run every attack and write the table in docs/security.md.

An attack is a test, in any file, with one record:

    @pytest.mark.attack(
        what="Columns rebuilt by knowing the seed",
        has="the settings, the seed, all embeddings",
        before="R² 1.00 with a linear encoder",
        now="R² {r2:.2f}",
    )
    def test_...(measured: Measured) -> None:
        ...
        measured(r2=0.01)

``what`` names the attack and is its row: several tests may share it. ``before`` is history: what
the attack got when it was found. ``now`` holds because the test passes; its fields are numbers that
the test has measured. Without fields the fixture ``measured`` is not needed.

``PYTHONPATH=src:tests python tests/attack/table.py tests/attack/test_mine.py`` runs one file and
leaves the other rows as they are; without a path all attacks are run and rows without a test go.
"""

from __future__ import annotations

import argparse
import ast
import re
import string
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "security.md"
BEGIN = "<!-- attacks: written by `make attacks` -->"
END = "<!-- end of attacks -->"
HEAD = (
    "| attack | the attacker has | it got before | it gets now | tried in |\n"
    "|---|---|---|---|---|\n"
)
KEYS = ("what", "has", "before", "now")


@dataclass
class Row:
    """One attack, with everything that its tests measured."""

    record: Mapping[str, str]
    file: str
    measured: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        now = self.record["now"].format(**self.measured)
        cells = (*(self.record[key] for key in KEYS[:3]), now, f"`{self.file}`")
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


class Collector:
    """A pytest plugin that notes attacks, what they measured, and which failed."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.failed: list[str] = []
        self._what_of: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            mark = item.get_closest_marker("attack")
            if mark is not None:
                record = checked(mark.kwargs, item.nodeid)
                file = item.path.relative_to(ROOT).as_posix()
                self.rows.setdefault(record["what"], Row(record, file))
                self._what_of[item.nodeid] = record["what"]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        if report.when == "call" and report.nodeid in self._what_of:
            row = self.rows[self._what_of[report.nodeid]]
            for name, value in report.user_properties:
                row.measured[name] = value


def checked(record: Mapping[str, Any], where: str) -> Mapping[str, str]:
    """The record of an attack; every key must be there, and be text."""
    if set(record) != set(KEYS) or not all(isinstance(item, str) for item in record.values()):
        raise ValueError(f"{where}: an attack has the texts {', '.join(KEYS)}")
    return record


def declared() -> Iterator[tuple[Path, Mapping[str, str]]]:
    """Every record in the tests, read without running them."""
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text("utf-8")
        if "mark.attack(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.attack":
                values = {item.arg or "": ast.literal_eval(item.value) for item in node.keywords}
                yield path, checked(values, str(path))


def rows_of(page: str) -> dict[str, str]:
    """The rows that a page has, by the attack."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    return {
        row.split(" | ")[0].removeprefix("| "): row
        for row in re.findall(r"^\| .*$", table, re.M)[1:]
    }


def pattern_of(now: str) -> str:
    """A regular expression for what a record's ``now`` may have become."""
    parts = string.Formatter().parse(now.replace("|", "\\|"))
    return "".join(
        re.escape(text) + ("" if name is None else r"[-\d.e+%]+") for text, name, *_ in parts
    )


def main(arguments: list[str]) -> int:
    """Run attacks and write their rows; nothing is written if one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    paths = parser.parse_args(arguments).paths
    found = Collector()
    chosen = [str(path) for path in paths] or [str(TESTS)]
    code = pytest.main(["-q", "-m", "attack", "-p", "no:cacheprovider", *chosen], plugins=[found])
    if code or found.failed:
        return int(code) or 1
    page = PAGE.read_text("utf-8")
    rows = rows_of(page) if paths else {}
    rows |= {what: row.text() for what, row in found.rows.items()}
    before, _, rest = page.partition(BEGIN)
    table = HEAD + "".join(f"{row}\n" for _, row in sorted(rows.items()))
    PAGE.write_text(f"{before}{BEGIN}\n{table}{END}{rest.partition(END)[2]}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
