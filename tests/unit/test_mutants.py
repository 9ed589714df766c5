"""The driver of ``make mutants``: what is drawn, what is tried, what counts as killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mutants.making import Mutant, mutants_of, sample
from mutants.run import (
    ON_IMPORT,
    PAGES,
    ROOT,
    Outcome,
    chosen_tests,
    forked,
    merged,
    report,
    tables,
)

SOURCE = '''
"""Words that are left alone."""
import logging
from typing import cast

__all__ = ["Meter"]
_LOG = logging.getLogger("meter")
MOST: int = 20
UNIT = "m"


class Meter:
    @property
    def is_full(self) -> bool:
        return self.read >= MOST

    def add(self, amount: "int | None" = 3) -> int:
        _LOG.info("added %s", amount + 1)
        assert amount != 7
        if len([amount - 1]) == 2:
            raise ValueError("no more " "words", amount)
        return cast(int, amount * 2)
'''


@pytest.fixture
def found(tmp_path: Path) -> list[Mutant]:
    (tmp_path / "meter.py").write_text(SOURCE)
    return mutants_of(tmp_path / "meter.py", tmp_path)


def changes(mutants: list[Mutant]) -> set[tuple[str, ...]]:
    return {tuple(line.strip("+- ") for line in mutant.diff()) for mutant in mutants}


def test_what_is_changed_and_what_is_not(found: list[Mutant]) -> None:
    assert changes(found) == {
        ("MOST: int = 20", "MOST: int = 21"),
        ("return self.read >= MOST", "return self.read > MOST"),
        *(
            ('def add(self, amount: "int | None" = 3) -> int:', f"def add({rest}) -> int:")
            for rest in ('self, amount: "int | None" = 4',)
        ),
        ("if len([amount - 1]) == 2:", "if len([amount - 1]) != 2:"),
        ("if len([amount - 1]) == 2:", "if len([amount - 1]) == 3:"),
        *(
            ('raise ValueError("no more " "words", amount)', f"raise ValueError({rest})")
            for rest in ("None, amount", '"no more " "words", None', "amount")
        ),
        ('raise ValueError("no more " "words", amount)', 'raise ValueError("no more " "words", )'),
    }
    for mutant in found:
        compile(mutant.source(), "meter.py", "exec")
    places = {mutant.function: mutant.lines for mutant in found}
    assert places["Meter.is_full"] == range(15, 16)
    # Outside of functions everything that reaches the file is tried.
    assert places[""] == range(0)


def test_names_last_when_code_moves(found: list[Mutant], tmp_path: Path) -> None:
    (tmp_path / "meter.py").write_text("# One more line.\n" + SOURCE)
    moved = mutants_of(tmp_path / "meter.py", tmp_path)
    assert [item.id for item in moved] == [item.id for item in found]
    assert [item.line - 1 for item in moved] == [item.line for item in found]
    assert len({item.id for item in found}) == len(found)


def test_a_sample_is_drawn_by_its_seed(found: list[Mutant]) -> None:
    drawn = sample(found, 1, 4)
    assert len(drawn) == 4
    assert sample(found[::-1], 1, 4) == drawn
    assert any(sample(found, seed, 4) != drawn for seed in range(2, 6))
    # Who is in stays in when another one is gone.
    others = [item for item in found if item not in drawn]
    assert sample([*drawn, *others[1:]], 1, 4) == drawn
    assert sample(found, 1, 1000) != []


def test_one_case_of_each_test_comes_first_and_the_quickest_of_them(found: list[Mutant]) -> None:
    seconds = {"a.py::slow": 5.0, "a.py::cases[x]": 1.0, "a.py::cases[y]": 1.5, "b.py::one": 2.0}
    seconds["c.py::never"] = 0.1
    mutant = next(item for item in found if item.function == "Meter.is_full")
    lines = {"15": [0, 1, 2, 3], "18": [4]}
    order = ["a.py::cases[x]", "b.py::one", "a.py::slow", "a.py::cases[y]"]
    assert chosen_tests(mutant, lines, seconds, 100.0, 10) == order
    assert chosen_tests(mutant, lines, seconds, 3.0, 10) == order[:2]
    assert chosen_tests(mutant, lines, seconds, 100.0, 2) == order[:2]
    # One is tried however long it takes.
    assert chosen_tests(mutant, lines, seconds, 0.5, 10) == order[:1]
    assert chosen_tests(mutant, {}, seconds, 100.0, 10) == []
    outside = next(item for item in found if not item.function)
    assert set(chosen_tests(outside, lines, seconds, 100.0, 10)) == set(seconds)
    # What runs on import shows in tests that reach something else of the file.
    lines = {"15": [ON_IMPORT, 0], "18": [4], "19": [ON_IMPORT, 1]}
    chosen = ["a.py::slow", "c.py::never", "a.py::cases[x]"]
    assert chosen_tests(mutant, lines, seconds, 100.0, 10) == chosen
    # Pages hold defaults of every file.
    pages = [f"{PAGES[0]}::keys[{name}]" for name in ("One", "Two")]
    more = {**seconds, **dict.fromkeys(pages, 0.5)}
    assert chosen_tests(mutant, lines, more, 100.0, 10) == [*pages, *chosen]
    assert not {*pages} & {*chosen_tests(mutant, {"15": [0]}, more, 100.0, 10)}


def test_a_failure_and_a_hang_kill_and_success_does_not(tmp_path: Path) -> None:
    assert forked(lambda: 0, tmp_path, 60.0).status == "survived"
    assert forked(lambda: 1, tmp_path, 60.0).status == "killed"

    reading, writing = os.pipe()

    def hang() -> int:
        os.fork()
        threading.Event().wait()
        return 0

    assert forked(hang, tmp_path, 0.5).status == "timeout"
    # Nor is anybody left whom it had started: the pipe's other end is held by nobody.
    os.close(writing)
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_a_survivor_is_reported(found: list[Mutant]) -> None:
    statuses = ("killed", "timeout", "survived", "unreached")
    tried = [(mutant, Outcome(status=status)) for mutant, status in zip(found, statuses)]  # noqa: B905
    facts: dict[str, Any] = {"seed": 0, "revision": "r", "num_possible": 9, "minutes": 1}
    told = json.loads(json.dumps(report(tried, facts)))
    assert told["counts"] == dict.fromkeys(statuses, 1)
    assert told["share_killed"] == 0.5
    survived, unreached = found[2], found[3]
    assert [item["id"] for item in told["survivors"]] == [survived.id, unreached.id]
    assert told["survivors"][0]["diff"] == survived.diff()
    page = tables(told, {unreached.id: "nobody asks"}).splitlines()
    (line,) = [line for line in page if survived.id in line]
    assert line.endswith("| unexplained |")
    (line,) = [line for line in page if unreached.id in line]
    assert line.endswith("| nobody asks (no test reaches it) |")


def test_survivors_that_are_tried_again_count_as_they_end_then(found: list[Mutant]) -> None:
    facts: dict[str, Any] = {"seed": 0, "revision": "r", "num_possible": 9, "minutes": 1}
    statuses = ("killed", "survived", "survived", "unreached", "survived")
    tried = list(zip(found[:5], map(_ended, statuses), strict=True))
    before = json.loads(json.dumps(report(tried, facts)))
    # The last one's code has changed, so it can't be tried again.
    ends = zip(found[1:4], map(_ended, ("killed", "survived", "survived")), strict=True)
    later = report(ends, {**facts, "revision": "s"})
    told = merged(before, {**later, "tried": [item.id for item in found[1:4]]})
    assert told["counts"] == {"killed": 2, "survived": 3}
    by_operator = sum(map(Counter, told["by_operator"].values()), Counter())
    assert by_operator == told["counts"]
    assert (told["share_killed_at_first"], told["share_killed"]) == (0.2, 0.4)
    assert {item["id"]: item["status"] for item in told["survivors"]} == {
        item.id: "survived" for item in found[2:5]
    }
    assert [(item["revision"], item["tried"]) for item in told["again"]] == [("s", 3)]
    assert "| s | 3 | 1 | 1 |" in tables(told, {}).splitlines()


def _ended(status: str) -> Outcome:
    return Outcome(status=status)


PROJECT = {
    "src/colonnade/__init__.py": "",
    "src/colonnade/limits.py": "def fits(size):\n    return size < 10 or size == 99\n",
    "tests/test_limits.py": "from colonnade.limits import fits\n\n"
    "def test_small():\n    assert fits(9)\n\ndef test_large():\n    assert not fits(10)\n",
    "tests/test_broken.py": "def test_broken():\n    assert False\n",
}
TRY = """
import sys, tempfile
from pathlib import Path
from mutants import run
run.ROOT = Path(sys.argv[1])
limits = run.ROOT / "src/colonnade/limits.py"
with tempfile.TemporaryDirectory() as place:
    for test, most in (("limits", 5), ("broken", 1)):
        outcomes = [
            run.try_mutant((m.file, m.source(), [f"tests/test_{test}.py"], 60.0), at=Path(place))
            for m in run.mutants_of(limits, run.ROOT)[:most]
        ]
        for outcome in run.controlled(outcomes, Path(place)):
            print(outcome.status, *outcome.failed)
"""


def test_mutants_are_tried_over_a_copy(tmp_path: Path) -> None:
    for name, content in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = done.stdout.splitlines()
    large, broken = "tests/test_limits.py::test_large", "tests/test_broken.py::test_broken"
    # `and` for `or`, `<= 10`, `< 11`, `!= 99`, and then `== 100`, which no test holds.
    assert sorted(found[:5]) == sorted(
        [*([f"killed {large}"] * 3), "killed tests/test_limits.py::test_small", "survived"]
    )
    # A test that fails anyway kills nothing.
    assert found[5:] == [f"survived {broken}"]
    assert (tmp_path / "src/colonnade/limits.py").read_text() == PROJECT["src/colonnade/limits.py"]
