"""Private alignment against openmined-psi for two parties, and its growth with parties and ids.

Both sides align the same lists in the same run. For two participants both make four passes of
point multiplications over the ids. Rows give ratios of time on the clock and of CPU time: ours
uses all cores and openmined-psi one, and CPU time depends less on the machine's other work.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.align.ids import PreparedIds, prepare_ids
from colonnade.align.matching import Overlap, match
from colonnade.align.participant import AlignParty
from colonnade.align.terms import AlignSpec
from colonnade.bench.processes import Spent, align_in_processes
from colonnade.core.extras import missing_package
from colonnade.core.parties import Parties
from colonnade.fabrics.in_process import InProcess

__all__ = ["bench_align"]

_SPEC = AlignSpec(salt="only for measuring", mode="union", labelled_only=False)
_MEGABYTE = 1_000_000
# The goal for one participant's memory with a million ids.
_MEMORY_LIMIT = 500 * _MEGABYTE


def bench_align(fast: bool) -> list[dict[str, Any]]:
    """Rows: two parties, four parties, growth, and memory; ``fast`` has shorter lists."""
    num_ids = 5_000 if fast else 100_000
    runs = 2 if fast else 1
    more = 2 if fast else 10
    # The sides take turns, so that a busy machine slows both down.
    pairs = [(_theirs(num_ids), _ours(2, num_ids)) for _ in range(runs)]
    theirs, two = (min(times, key=lambda time: time.cpu) for times in zip(*pairs, strict=True))
    four = _ours(4, num_ids)
    few, _ = _apart(num_ids)
    many, spent = _apart(num_ids * more)
    size, large = (f"{number // 1000}k" for number in (num_ids, num_ids * more))
    rows = [
        {
            "case": f"two-parties-{size}",
            "unit": "time of our alignment / time of openmined-psi",
            "against": "openmined-psi (C++, P-256, one thread), same lists, intersection revealed",
            "runs": runs,
            **_compared(two, theirs),
        },
        {
            "case": f"four-parties-{size}",
            "unit": "time per id and party with four / with two; union",
            "against": "the two-party run",
            "runs": 1,
            **_compared(four, two, times=4 / 2),
        },
        {
            "case": f"growth-{large}",
            "unit": f"time per id with {more} times as many ids / time per id; a process for each",
            "against": f"two parties with {size} ids each, also in processes of their own",
            "runs": 1,
            **_compared(many, few, times=more),
        },
    ]
    return rows + [
        {
            "case": f"memory-{large}-{role}",
            "ratio": spent[name].peak_bytes / _MEMORY_LIMIT,
            "unit": "most that its process ever had in memory, libraries included / 500 MB",
            "against": "500 MB",
            "runs": 1,
            "megabytes": spent[name].peak_bytes / _MEGABYTE,
        }
        for role, name in (("label-holder", "party-0"), ("party", "party-1"))
    ]


@dataclass(frozen=True)
class _Time:
    """Seconds on the clock and of all cores together, and the machine's load."""

    seconds: float
    cpu: float
    load: float


def _compared(ours: _Time, against: _Time, times: float = 1) -> dict[str, float]:
    """The columns of a row, where ours did ``times`` as much work."""
    return {
        "ratio": ours.seconds / times / against.seconds,
        "cpu_ratio": ours.cpu / times / against.cpu,
        "seconds": ours.seconds,
        "seconds_against": against.seconds,
        "cpu_seconds": ours.cpu,
        "cpu_seconds_against": against.cpu,
        "load": ours.load,
        "load_against": against.load,
    }


def _timed(work: Callable[[], None]) -> _Time:
    began, cpu_began = time.perf_counter(), time.process_time()
    work()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return _Time(seconds, cpu, os.getloadavg()[0])


def _lists(num_participants: int, num_ids: int) -> list[PreparedIds]:
    """A list of ids per participant; each shares half of its ids with the next."""
    return [
        prepare_ids(
            [[f"customer-{number}" for number in range(begin, begin + num_ids)]], where="bench"
        )
        for begin in range(0, num_participants * num_ids // 2, num_ids // 2)
    ]


def _ours(num_participants: int, num_ids: int) -> _Time:
    lists = _lists(num_participants, num_ids)
    own, *others = [
        AlignParty(name=f"party-{place}", ids=ids, spec=_SPEC) for place, ids in enumerate(lists)
    ]
    fabric = InProcess({party.name: party for party in others})

    def work() -> None:
        overlap: Overlap = fabric.run(match(Parties(fabric), spec=_SPEC, own=own))
        assert overlap.num_samples == (num_participants + 1) * num_ids // 2

    return _timed(work)


def _theirs(num_ids: int) -> _Time:
    try:
        import private_set_intersection.python as psi  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise missing_package("bench align", "openmined-psi", "bench") from error
    first, second = (list(item.ids) for item in _lists(2, num_ids))

    def work() -> None:
        client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
        setup = server.CreateSetupMessage(0.001, num_ids, second, psi.DataStructure.RAW)
        response = server.ProcessRequest(client.CreateRequest(first))
        assert len(client.GetIntersection(setup, response)) == num_ids // 2

    return _timed(work)


def _apart(num_ids: int) -> tuple[_Time, Mapping[str, Spent]]:
    """Two participants in processes of their own, with their ids in files."""
    with tempfile.TemporaryDirectory(prefix="colonnade-bench-") as directory:
        root = Path(directory)
        tables = {}
        for place in range(2):
            tables[f"party-{place}"] = root / f"{place}.csv"
            begin = place * num_ids // 2
            _write_table(tables[f"party-{place}"], range(begin, begin + num_ids))
        spent = align_in_processes(tables, _SPEC, root)
    seconds = max(item.seconds for item in spent.values())
    cpu = sum(item.cpu_seconds for item in spent.values())
    return _Time(seconds, cpu, os.getloadavg()[0]), spent


def _write_table(path: Path, numbers: Sequence[int]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("id,amount\n")
        file.writelines(f"customer-{number},{number % 7}\n" for number in numbers)
