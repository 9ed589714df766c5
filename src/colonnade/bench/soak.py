"""A served federation under load for half an hour, with kills, cuts and pauses.

Every answer is compared with that of one process that has everybody's columns and weights, for the
same set of blocks. Memory of every process that lives from minute five on is compared with that at
the end.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations, cycle
from pathlib import Path
from typing import Any

import pandas as pd

from colonnade.bench.callers import call_at_rate
from colonnade.bench.served_federation import (
    FIRST_ID,
    HOLDER,
    NUM_ROWS,
    PARTIES,
    ServedFederation,
)
from colonnade.core.errors import RunError
from colonnade.fabrics import InProcessSpec
from colonnade.federate.run_at_party import read_agreed
from colonnade.run.blueprint_files import read_blueprint, write_blueprint
from colonnade.run.result import Result
from colonnade.run.storage import party_directory, read_json

__all__ = ["bench_soak"]

_RATE = 50.0
_CHUNK_SECONDS = 10.0
_PAUSED_SECONDS = 2.0


def bench_soak(fast: bool) -> list[dict[str, Any]]:
    """Rows ``wrong``, ``answered`` and ``memory``: half an hour, or a minute if ``fast``."""
    total = 60.0 if fast else 1800.0
    settled, pause = total / 6, 5.0 if fast else 20.0
    with tempfile.TemporaryDirectory() as place, ExitStack() as around:
        served = around.enter_context(ServedFederation(Path(place), is_cut=True).running())
        expected = _one_process(served)
        is_over = threading.Event()
        faults = threading.Thread(target=_disturb, args=(served, is_over, pause))
        faults.start()
        around.callback(faults.join)
        around.callback(is_over.set)
        num_wrong = num_checked = num_answered = num_asked = 0
        before: Mapping[str, int] = {}
        began = time.monotonic()
        while time.monotonic() - began < total:
            calls = call_at_rate(
                served.port,
                rate=_RATE,
                num_requests=int(_RATE * _CHUNK_SECONDS),
                content=_request,
            )
            num_asked += len(calls.seconds)
            num_answered += len(calls.seconds) - calls.num_failed
            num_wrong += calls.num_contradictions
            for (name, *parties), value in calls.answers.items():
                num_checked += 1
                num_wrong += expected[frozenset(parties)][name] != value
            if not before and time.monotonic() - began >= settled:
                before = _resident(served)
        after = _resident(served)
        ratios = {pid: after[pid] / before[pid] for pid in before if pid in after}
        if not ratios:
            raise RunError("soak: no process lived from the fifth minute to the end")
    about = f"{num_asked} requests in {total / 60:.0f} minutes, with kills, cuts and pauses"
    return [
        {
            "case": "wrong",
            "ratio": float(num_wrong),
            "unit": f"answers that differ from one process, of {num_checked} compared",
            "against": about,
            "runs": num_asked,
        },
        {
            "case": "answered",
            "ratio": num_answered / num_asked,
            "unit": "requests answered with 200 / all",
            "against": about,
            "runs": num_asked,
        },
        {
            "case": "memory",
            "ratio": max(ratios.values()),
            "unit": "largest resident memory at the end / after a sixth of the time",
            "against": "the same process",
            "runs": len(ratios),
            "ratios": sorted(ratios.values()),
        },
    ]


def _request(number: int) -> dict[str, Any]:
    return {"ids": [FIRST_ID + number * 7 % NUM_ROWS], "deadline_ms": 200}


def _disturb(served: ServedFederation, is_over: threading.Event, pause: float) -> None:
    """Kill one party, cut another one's links, stop a third one for a while; and again."""
    killed, cut, stopped = PARTIES[3], PARTIES[1], PARTIES[2]
    for what in cycle(("kill", "cut", "stop")):
        if is_over.wait(pause):
            return
        if what == "kill":
            served.agents[killed].kill()
            served.agents[killed].wait()
            served.start(killed)
        elif what == "cut":
            served.relays[cut].cut()
        else:
            served.agents[stopped].send_signal(signal.SIGSTOP)
            is_over.wait(_PAUSED_SECONDS)
            served.agents[stopped].send_signal(signal.SIGCONT)


def _resident(served: ServedFederation) -> dict[str, int]:
    """Resident bytes by process."""
    found = {}
    for process in (served.service, *served.agents.values()):
        text = Path(f"/proc/{process.pid}/status").read_text()
        line = next(line for line in text.splitlines() if line.startswith("VmRSS:"))
        found[str(process.pid)] = int(line.split()[1])
    return found


def _one_process(served: ServedFederation) -> dict[frozenset[str], Mapping[int, Any]]:
    """By set of blocks, every id's answer of one process with everybody's weights."""
    together = served.place / "together"
    run = served.place / "run"
    shutil.copytree(run, together)
    name = (run / "run_name").read_text(encoding="ascii").strip()
    tag = str(read_json(run / "checkpoint.json")["model"])
    blueprint = read_blueprint(run)
    preparations = dict(blueprint.preparations)
    for party in PARTIES:
        kept = served.place / party / "runs" / name
        preparations[party] = read_agreed(kept).preparation
        place = party_directory(together, party)
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(kept / f"{tag}.safetensors", place)
    spec = replace(blueprint.spec, fabric=InProcessSpec())
    write_blueprint(
        together, replace(blueprint, spec=spec, preparations=preparations, elsewhere=())
    )
    result = Result.load(together)
    owners = (HOLDER, *PARTIES)
    tables = {owner: pd.read_csv(served.place / f"{owner}.csv").set_index("id") for owner in owners}
    tables[HOLDER] = tables[HOLDER].drop(columns="label")
    found: dict[frozenset[str], Mapping[int, Any]] = {}
    for count in range(1, len(owners) + 1):
        for some in combinations(owners, count):
            answers = result.predict({owner: tables[owner] for owner in some})
            found[frozenset(some)] = dict(
                zip(answers.index.tolist(), answers.tolist(), strict=True)
            )
    return found
