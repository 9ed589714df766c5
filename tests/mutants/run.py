"""``make mutants``: draws mutants and runs, for each, the tests that reach it.

Each is tried in a fork of a process that has imported everything but Colonnade, over a copy of the
source tree. Writes docs/mutants.json, and the second half of docs/mutants.md.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pytest

from mutants.making import Mutant, mutants_of, sample

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("core", "parts", "protect", "align", "federate", "fabrics")
# Tests in e2e work in processes of their own, where it is not seen what they reach.
TESTS = ("unit", "property", "golden", "schedule", "contract", "fault", "attack")
MARK = "<!-- written by make mutants -->\n"
HEAVY = (
    *("torch", "pandas", "pyarrow.parquet", "sklearn.metrics", "scipy.stats", "grpc.aio"),
    *("cryptography.x509", "dp_accounting", "matplotlib.pyplot", "typer.testing"),
    *("safetensors.torch", "coverage"),
)
_FORK = multiprocessing.get_context("fork")
_FOREIGN = 70
FIRST = 12
# In place of a test's number, for lines that run on import.
ON_IMPORT = -1
# They compare defaults, which are set on import, with the pages.
PAGES = ("tests/unit/test_docs.py", "tests/unit/test_generated_docs.py")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Killed, timeout (which counts as killed), survived, or unreached by any test."""

    status: str
    failed: tuple[str, ...] = ()
    seconds: float = 0.0


class Recorder:
    """A plugin that writes down how long every test took, and which failed."""

    def __init__(self, file: Path) -> None:
        self._file, self._seconds, self._failed = file, Counter[str](), dict[str, None]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up set-up, call and tear-down."""
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        """Write it down."""
        record = {"seconds": self._seconds, "failed": list(self._failed)}
        self._file.write_text(json.dumps(record), "utf-8")


def run_pytest(source: Path, place: Path, arguments: Sequence[str]) -> int:
    """Pytest in this process over the Colonnade in ``source``; leaves a record in ``place``."""
    os.environ.update(PYTHONPATH=str(source), PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(source))
    common = ["-q", "-p", "no:cacheprovider", "--basetemp", str(place / "tmp")]
    code = int(pytest.main([*common, *arguments], plugins=[Recorder(place / "record.json")]))
    loaded = sys.modules.get("colonnade")
    is_foreign = loaded is not None and not str(loaded.__file__).startswith(str(source))
    return _FOREIGN if is_foreign else code


def forked(work: Callable[[], int], place: Path, timeout: float | None) -> Outcome:
    """Do work in a fork, in a group of its own that ends with it, and at the timeout."""

    def child() -> None:
        os.setsid()
        log = os.open(place / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1), os.dup2(log, 2)
        os._exit(work())

    record, began = place / "record.json", time.monotonic()
    record.unlink(missing_ok=True)
    process = _FORK.Process(target=child)
    process.start()
    process.join(timeout)
    is_late = process.is_alive()
    process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)  # and whom it started
    process.join()
    if process.exitcode == _FOREIGN:
        raise RuntimeError("the tests imported another Colonnade than the one to be tried")
    failed = json.loads(record.read_text("utf-8"))["failed"] if record.exists() else []
    status = "timeout" if is_late else "killed" if process.exitcode else "survived"
    return Outcome(status=status, failed=tuple(failed), seconds=time.monotonic() - began)


def try_mutant(trial: tuple[str, str, Sequence[str], float], at: Path) -> Outcome:
    """Run tests over a tree with one file replaced, until one fails."""
    file, content, tests, timeout = trial
    if not tests:
        return Outcome(status="unreached")
    place = at / str(os.getpid())
    if not place.exists():
        shutil.copytree(ROOT / "src", place / "src")
        compileall.compile_dir(place / "src", quiet=2)
    (place / file).write_text(content, "utf-8")
    os.utime(place / file, (0, 0))  # written in the second of the original, it would pass for it
    # A few first: the first failure is mostly among them, and fewer files are collected.
    for some in filter(None, (tests[:FIRST], tests[FIRST:])):
        found = forked(
            partial(run_pytest, place / "src", place, ["-x", "-o", "timeout=120", *some]),
            place,
            timeout,
        )
        if found.status != "survived":
            break
    shutil.copy2(ROOT / file, place / file)  # with its time, so that its compiled form is good
    # Where not even the import went well, no test has failed: any of them will do as a control.
    is_unnamed = found.status == "killed" and not found.failed
    return replace(found, failed=(tests[0],)) if is_unnamed else found


def reach(build: Path, num_processes: int) -> dict[str, Any]:
    """The seconds of all tests, and the numbers of those that reach each line of each file.

    Measured anew if any file changed.
    """
    files = [
        f for name in ("src", *(f"tests/{x}" for x in TESTS)) for f in ROOT.glob(f"{name}/**/*.py")
    ]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()[:16]
    kept = build / f"reach-{digest}.json"
    if not kept.exists():
        os.environ["COVERAGE_FILE"] = str(build / "coverage")
        flags = ["-n", str(num_processes), "--cov=colonnade", "--cov-context=test"]
        flags += ["--cov-report=", "-o", "timeout=1200", *(f"tests/{name}" for name in TESTS)]
        forked(partial(run_pytest, ROOT / "src", build, flags), build, None)
        data = importlib.import_module("coverage").CoverageData(str(build / "coverage"))
        data.read()
        record = json.loads((build / "record.json").read_text("utf-8"))
        seconds = {k: v for k, v in record["seconds"].items() if k not in record["failed"]}
        number = {test: at for at, test in enumerate(seconds)} | {"": ON_IMPORT}
        lines = {
            Path(file).relative_to(ROOT).as_posix(): {
                line: sorted({number[n] for x in names if (n := x.rpartition("|")[0]) in number})
                for line, names in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        kept.write_text(json.dumps({"seconds": seconds, "lines": lines}), "utf-8")
    found: dict[str, Any] = json.loads(kept.read_text("utf-8"))
    return found


def compile_tests(build: Path) -> None:
    """Have pytest keep the tests' compiled form: to make it anew for each mutant takes longer."""

    def collect() -> int:
        sys.dont_write_bytecode = False
        directories = [f"tests/{name}" for name in TESTS]
        return int(pytest.main(["-q", "-p", "no:cacheprovider", "--collect-only", *directories]))

    forked(collect, build, None)


def chosen_tests(
    mutant: Mutant,
    lines: Mapping[str, Sequence[int]],
    seconds: Mapping[str, float],
    most_seconds: float,
    most_tests: int,
) -> list[str]:
    """Tests that reach a mutant, within seconds and number: one case of each, the quickest first.

    Further cases of a parametrized test come after one case of every other test. Where the mutant's
    line runs on import, tests of the pages are added, and last those that reach its file elsewhere.
    """
    tests, everywhere = list(seconds), set(chain.from_iterable(lines.values()))
    found = {number for line in mutant.lines for number in lines.get(str(line), ())}
    further: set[int] = set()
    if ON_IMPORT in found or not mutant.lines:
        # What runs on import is not seen in a test, but in whatever comes of it.
        found |= {at for at, test in enumerate(tests) if test.startswith(PAGES)}
        further = everywhere - found
    num_cases: Counter[str] = Counter()
    order = []
    for test in sorted((found | further) - {ON_IMPORT}, key=lambda at: (seconds[tests[at]], at)):
        name = tests[test]
        # Pages have a case for each class: all of them count.
        function = name if name.startswith(PAGES) else name.partition("[")[0]
        num_cases[function] += 1
        order.append((test in further, num_cases[function], seconds[name], name))
    order.sort()
    totals = accumulate(took for _, _, took, _ in order)
    return [
        test
        for at, ((*_, test), total) in enumerate(zip(order, totals, strict=True))
        if at == 0 or (total <= most_seconds and at < most_tests)
    ]


def controlled(outcomes: Sequence[Outcome], build: Path) -> list[Outcome]:
    """A test that fails without any mutant too has killed nothing."""
    killers = sorted({test for outcome in outcomes for test in outcome.failed})
    control = forked(partial(run_pytest, ROOT / "src", build, killers), build, None)
    if control.status == "killed" and not control.failed:
        raise SystemExit(f"the tests do not run without a mutant: {build / 'log.txt'}")
    doubtful = set(control.failed)
    return [
        replace(item, status="survived") if doubtful.intersection(item.failed) else item
        for item in outcomes
    ]


def report(tried: Iterable[tuple[Mutant, Outcome]], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Counts, and every survivor with its change."""
    by_operator: dict[str, Counter[str]] = {}
    survivors = []
    for mutant, outcome in sorted(tried, key=lambda pair: (pair[0].file, pair[0].line)):
        by_operator.setdefault(mutant.operator, Counter())[outcome.status] += 1
        if outcome.status in ("survived", "unreached"):
            fields = ("id", "file", "line", "function", "operator")
            fields_of = {key: getattr(mutant, key) for key in fields}
            survivors.append({**fields_of, "diff": mutant.diff(), "status": outcome.status})
    counts = sum(by_operator.values(), Counter())
    drawn = counts.total()
    share = round((counts["killed"] + counts["timeout"]) / max(drawn, 1), 4)
    found = {**facts, "drawn": drawn, "counts": counts}
    found |= {"share_killed_at_first": share, "share_killed": share}
    return {**found, "by_operator": by_operator, "survivors": survivors}


def merged(before: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    """An earlier report in which survivors that were tried again count as they ended now.

    A survivor whose code is gone was not tried again and stays.
    """
    counts = {name: Counter(by) for name, by in before["by_operator"].items()}
    for name, by in again["by_operator"].items():
        counts[name].update(by)
    left = {item["id"]: item for item in again["survivors"]}
    tried = set(again["tried"])
    survivors = []
    for item in before["survivors"]:
        if item["id"] in tried:
            counts[item["operator"]][item["status"]] -= 1
        if item["id"] not in tried or item["id"] in left:
            survivors.append(left.get(item["id"], item))
    total = sum(counts.values(), Counter())
    share = round((total["killed"] + total["timeout"]) / max(before["drawn"], 1), 4)
    rounds = {key: again[key] for key in ("revision", "minutes", "counts")}
    return {
        **before,
        "counts": total,
        "share_killed": share,
        "by_operator": {name: +by for name, by in counts.items()},
        "survivors": survivors,
        "again": [*before.get("again", ()), {**rounds, "tried": len(tried)}],
    }


def tables(found: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """The tables of the page; a survivor without a reason is unexplained."""
    kinds = ("killed", "timeout", "survived", "unreached")
    facts = ("seed", "revision", "num_possible", "drawn", "minutes")
    facts += ("share_killed_at_first", "share_killed")
    rows = [[name.replace("_", " ") for name in facts], ["---"] * len(facts)]
    rows += [[str(found[name]) for name in facts], []]
    if "again" in found:
        rows += [["survivors tried again at", "tried", "killed", "minutes"], ["---"] * 4]
        for item in found["again"]:
            killed = item["counts"].get("killed", 0) + item["counts"].get("timeout", 0)
            rows.append([item["revision"], str(item["tried"]), str(killed), str(item["minutes"])])
        rows.append([])
    rows += [["Operator", *kinds], ["---"] * 5]
    for name, counts in {**found["by_operator"], "all": found["counts"]}.items():
        rows.append([name, *(str(counts.get(kind, 0)) for kind in kinds)])
    rows += [[], ["Survivor", "Where", "Change", "Reason"], ["---"] * 4]
    for item in found["survivors"]:
        change = " → ".join(f"`{line[1:].strip()}`" for line in item["diff"])
        reason = reasons.get(item["id"], "unexplained")
        reason += " (no test reaches it)" if item["status"] == "unreached" else ""
        place = f"`{item['file'].removeprefix('src/colonnade/')}:{item['line']}`"
        rows.append([f"`{item['id']}`", place, change.replace("|", "\\|"), reason])
    return "".join(f"| {' | '.join(row)} |\n" if row else "\n" for row in rows)


def main() -> None:
    """Draw, try, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="files whose path has this in it")
    parser.add_argument("--id", nargs="*", help="mutants by name, in place of a sample")
    parser.add_argument("--again", action="store_true", help="try survivors in --out again")
    parser.add_argument("--seconds", type=float, default=180.0, help="of tests, per mutant")
    parser.add_argument("--tests", type=int, default=1000, help="per mutant, at most")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "mutants.json")
    given = parser.parse_args()
    began, build = time.monotonic(), ROOT / "build" / "mutants"
    build.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    for name in HEAVY:
        importlib.import_module(name)
    files = [f for name in PACKAGES for f in sorted((ROOT / "src/colonnade" / name).rglob("*.py"))]
    possible = [m for f in files if given.only in f.as_posix() for m in mutants_of(f, ROOT)]
    before = json.loads(given.out.read_text("utf-8")) if given.again else {}
    if given.again:
        left = [item["id"] for item in before["survivors"]]
        given.id = [name for name in left if not given.id or name in given.id]
    drawn = sample(possible, given.seed, given.size)
    drawn = [item for item in possible if item.id in given.id] if given.id else drawn
    known, trials = reach(build, given.processes), []
    compile_tests(build)
    for item in drawn:
        lines = known["lines"].get(item.file, {})
        tests = chosen_tests(item, lines, known["seconds"], given.seconds, given.tests)
        timeout = 300.0 + 10.0 * sum(known["seconds"][test] for test in tests)
        trials.append((item.file, item.source(), tests, timeout))
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as at, ProcessPoolExecutor(given.processes, _FORK) as pool:
        for outcome in pool.map(partial(try_mutant, at=Path(at)), trials):
            item = drawn[len(outcomes)]
            outcomes.append(outcome)
            told = f"{len(outcomes):4} {outcome.status:9} {outcome.seconds:4.0f} s {item.id}"
            by = next(iter(outcome.failed), "")
            sys.stdout.write(f"{told} {item.file}:{item.line} {item.operator} {by}\n")
            sys.stdout.flush()
    outcomes = controlled(outcomes, build)
    git = ["git", "rev-parse", "--short=12", "HEAD"]
    facts = {
        "name": "mutants",
        "tool": f"operators of mutmut {version('mutmut')}",
        "seed": given.seed,
        "revision": subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip(),
        "num_possible": len(possible),
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    found = report(zip(drawn, outcomes, strict=True), facts)
    if given.again:
        found = merged(before, {**found, "tried": [item.id for item in drawn]})
    given.out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", "utf-8")
    reasons = tomllib.loads(Path(__file__).with_name("reasons.toml").read_text("utf-8"))
    page = given.out.with_suffix(".md")
    kept = page.read_text("utf-8").partition(MARK)[0] if page.exists() else ""
    page.write_text(f"{kept}{MARK}\n{tables(found, reasons)}", "utf-8")


if __name__ == "__main__":
    main()
