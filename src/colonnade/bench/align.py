"""Private alignment against a C++ library for two parties, and its growth with parties and ids.

Both sides see the same lists in the same run. What openmined-psi does has four parts, each with
as many point multiplications as there are ids, like ours for two participants.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colonnade.align.ids import PreparedIds, prepare_ids
from colonnade.align.matching import Overlap, match
from colonnade.align.participant import AlignParty
from colonnade.align.terms import AlignSpec
from colonnade.core.errors import ConfigError
from colonnade.core.parties import Parties
from colonnade.fabrics.local import InProcess

__all__ = ["bench_align"]

_SPEC = AlignSpec(salt="only for measuring", mode="union", labelled_only=False)
_MEGABYTE = 1_000_000
# What a participant may use for a million ids.
_MEMORY_LIMIT = 500 * _MEGABYTE


def bench_align(fast: bool) -> list[dict[str, Any]]:
    """Rows: two parties, four parties, growth, and memory; ``fast`` has shorter lists."""
    num_ids = 5_000 if fast else 100_000
    size = f"{num_ids // 1000}k"
    runs = 2 if fast else 1
    # In turns: a busy machine slows both sides down.
    pairs = [(_seconds_theirs(num_ids), _seconds(2, num_ids)) for _ in range(runs)]
    theirs, two = map(min, zip(*pairs, strict=True))
    four = _seconds(4, num_ids)
    more = 2 if fast else 10
    many, peak = _apart(num_ids * more)
    return [
        {
            "case": f"two-parties-{size}",
            "ratio": two / theirs,
            "unit": "time of our alignment / time of openmined-psi",
            "against": "openmined-psi (C++, P-256, one thread), same lists, intersection revealed",
            "runs": runs,
            "seconds": two,
            "seconds_against": theirs,
        },
        {
            "case": f"four-parties-{size}",
            "ratio": (four / 4) / (two / 2),
            "unit": "time per id and party with four / with two; union",
            "against": "the two-party run",
            "runs": 1,
            "seconds": four,
            "seconds_against": two,
        },
        {
            "case": f"growth-{num_ids * more // 1000}k",
            "ratio": many / (more * two),
            "unit": f"time per id with {more} times as many ids / time per id",
            "against": "the two-party run",
            "runs": 1,
            "seconds": many,
            "seconds_against": two,
        },
        {
            "case": f"memory-{num_ids * more // 1000}k",
            "ratio": peak / _MEMORY_LIMIT,
            "unit": "peak bytes that aligning adds to the ids, both participants together / 500 MB",
            "against": "500 MB",
            "runs": 1,
            "megabytes": peak / _MEGABYTE,
        },
    ]


def _lists(num_participants: int, num_ids: int) -> list[PreparedIds]:
    """Each shares half of its ids with the next."""
    return [
        prepare_ids(
            [[f"customer-{number}" for number in range(begin, begin + num_ids)]], where="bench"
        )
        for begin in range(0, num_participants * num_ids // 2, num_ids // 2)
    ]


def _seconds(num_participants: int, num_ids: int) -> float:
    return _align(_lists(num_participants, num_ids))


def _align(lists: Sequence[PreparedIds]) -> float:
    participants = [
        AlignParty(name=f"party-{place}", ids=ids, spec=_SPEC) for place, ids in enumerate(lists)
    ]
    own, *others = participants
    fabric = InProcess({party.name: party for party in others})
    began = time.perf_counter()
    overlap: Overlap = fabric.run(match(Parties(fabric), spec=_SPEC, own=own))
    seconds = time.perf_counter() - began
    assert overlap.num_samples == (len(lists) + 1) * len(lists[0]) // 2
    return seconds


def _seconds_theirs(num_ids: int) -> float:
    try:
        import private_set_intersection.python as psi  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ConfigError(
            "bench align: needs openmined-psi to compare with; pip install 'openmined-psi>=2.0.6'"
        ) from error
    first, second = (list(item.ids) for item in _lists(2, num_ids))
    began = time.perf_counter()
    client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
    setup = server.CreateSetupMessage(0.001, num_ids, second, psi.DataStructure.RAW)
    response = server.ProcessRequest(client.CreateRequest(first))
    found = client.GetIntersection(setup, response)
    seconds = time.perf_counter() - began
    assert len(found) == num_ids // 2
    return seconds


def _apart(num_ids: int) -> tuple[float, int]:
    """Seconds and peak memory in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_measured, (num_ids,))


def _measured(num_ids: int) -> tuple[float, int]:
    lists = _lists(2, num_ids)
    before = _resident_bytes()
    seconds = _align(lists)
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc/self/status")
