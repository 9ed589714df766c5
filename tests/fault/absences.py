"""A party that stands still for a while in the middle of a run over real processes.

The tests go by counts of exchanges: the party stands still until the others have done so many more.
If anything in the run waited for it, they never would. The campaign also measures how fast the
others go meanwhile: what comes up from one of them, by the clock of whoever looks on, between two
stretches of time in which nobody is disturbed.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.run.storage import read_json
from e2e.organisations import PARTIES, Nursery, Organisations, Process

SECONDS = 90
# So many that no run gets there: it is told when to end once everything has happened.
ENDLESS = 1_000_000
IMPATIENT = 'timeout = 500\nthen = "continue"'


@dataclass(frozen=True, kw_only=True)
class Case:
    """A method that waits for nobody, and how patient the run is with it."""

    method: str
    patience: str = ""
    # Bounded delay goes on without the absent only where the fusion can.
    combine: str = "concat"


CASES: Mapping[str, Case] = {
    "async": Case(method="async"),
    "vafl": Case(method="vafl"),
    "vafl, two uploads": Case(method='{ name = "vafl", num_uploads = 2 }'),
    "vafl, bounded delay": Case(
        method='{ name = "vafl", max_delay = 20 }', patience=IMPATIENT, combine="mean"
    ),
    "flex": Case(method='{ name = "flex", timeout = 5 }', patience="timeout = 500"),
    "adaptive_flex": Case(
        method='{ name = "adaptive_flex", timeout = 5 }', patience="timeout = 500"
    ),
}


def lines_of(organisations: Organisations) -> list[dict[str, Any]]:
    """What is recorded so far."""
    path = organisations.run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def num_done(organisations: Organisations) -> int:
    """How many exchanges are recorded."""
    exchanges = organisations.exchanges()
    return exchanges[-1] if exchanges else 0


def eventually(organisations: Organisations, condition: Callable[[], bool]) -> None:
    """Wait for something that the processes will do."""
    pause = threading.Event()
    for _ in range(SECONDS * 50):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError(organisations.logs())


def missed_with(organisations: Organisations, party: str) -> set[str]:
    """What was due while a party still owed its answer to the one before."""
    skipped = [line for line in lines_of(organisations) if line["kind"] == "skipped"]
    return {line["what"] for line in skipped if party in line["waits_for"]}


def stand_still(organisations: Organisations, telco: Process, exchanges: int) -> tuple[int, int]:
    """The telco stands still until the others have done so many; from which to which exchange."""
    telco.signal(signal.SIGSTOP)
    telco.wait_until_stopped(SECONDS)
    began = num_done(organisations)
    eventually(
        organisations,
        lambda: (
            num_done(organisations) >= began + exchanges
            and missed_with(organisations, "telco") == {"evaluation", "checkpoint"}
        ),
    )
    ended = num_done(organisations)
    telco.signal(signal.SIGCONT)
    return began, ended


def wait_until_back(organisations: Organisations, since: int) -> None:
    """Wait until the telco takes part again: it uploads, is measured, and a checkpoint counts."""

    def is_back() -> bool:
        lines = lines_of(organisations)
        measured = [line["exchange"] for line in lines if line["kind"] == "evaluation"]
        lines = [line for line in lines if line["kind"] == "exchange"]
        before = next(line for line in lines if line["exchange"] == since)
        tag = read_json(organisations.run / "checkpoint.json")["tag"]
        return (
            uploads_of(lines[-1], "telco") > uploads_of(before, "telco")
            and measured[-1:] > [since]
            and int(tag.partition("-")[2]) > since
        )

    eventually(organisations, is_back)


def end(organisations: Organisations, hub: Process, telco: Process) -> int:
    """Kill hub and telco, and have them go on a little from their checkpoint; when the run ends."""
    for process in (hub, telco):
        process.signal(signal.SIGKILL)
        assert process.wait(SECONDS) == -signal.SIGKILL
    last = num_done(organisations) + 10
    wanted = organisations.config.read_text()
    assert f"exchanges = {ENDLESS}" in wanted
    organisations.config.write_text(wanted.replace(f"exchanges = {ENDLESS}", f"exchanges = {last}"))
    organisations.start_party("telco")
    assert organisations.start_hub().wait(SECONDS) == 0, organisations.logs()
    return last


def started(organisations: Organisations) -> tuple[Process, Process]:
    """Everybody; the hub and the telco."""
    processes = {name: organisations.start_party(name) for name in PARTIES}
    return organisations.start_hub(), processes["telco"]


def uploads_of(line: Mapping[str, Any], party: str) -> int:
    """What has come up from a party by a line of the record, in bytes."""
    return int(line["bytes_up"][party])


def check_whole_run(organisations: Organisations, exchanges: int) -> dict[str, Any]:
    """Every exchange is recorded once, the last checkpoint is of the end; the summary."""
    assert organisations.exchanges() == list(range(1, exchanges + 1))
    summary = read_json(organisations.run / "summary.json")
    assert summary["exchanges"] == exchanges
    assert summary["quality"]["validation"]
    assert read_json(organisations.run / "checkpoint.json")["tag"] == f"exchange-{exchanges:09d}"
    return dict(summary)


def run_absences(root: Path, nursery: Nursery, *, seconds: float) -> dict[str, Any]:
    """Every case: how fast the others went while the telco stood still for so many seconds.

    Lines are written after every exchange, to count by; evaluations and checkpoints come as often
    as they do by default.
    """
    outcome = {}
    for number, (name, case) in enumerate(CASES.items()):
        organisations = Organisations(
            root / str(number),
            nursery,
            method=case.method,
            patience=case.patience,
            combine=case.combine,
            exchanges=ENDLESS,
            evaluations="",
            checkpoints="",
        )
        hub, telco = started(organisations)
        eventually(organisations, lambda: num_done(organisations) >= 100)  # noqa: B023
        before = _rate(organisations, seconds)
        telco.signal(signal.SIGSTOP)
        telco.wait_until_stopped(SECONDS)
        began = num_done(organisations)
        away = _rate(organisations, seconds)
        ended = num_done(organisations)
        telco.signal(signal.SIGCONT)
        wait_until_back(organisations, ended)
        after = _rate(organisations, seconds)
        last = end(organisations, hub, telco)
        check_whole_run(organisations, last)
        organisations.close()
        outcome[name] = {
            "seconds_away": seconds,
            "exchanges_while_away": ended - began,
            "share_of_undisturbed_rate": round(2 * away / (before + after), 2),
            "exchanges": last,
        }
        sys.stderr.write(f"{name}: {outcome[name]}\n")
    return outcome


def _rate(organisations: Organisations, seconds: float) -> float:
    """Bytes that come up from the shop in a second of the machine's clock."""
    first, began = _newest(organisations), time.monotonic()
    threading.Event().wait(seconds)
    last, ended = _newest(organisations), time.monotonic()
    return (uploads_of(last, "shop") - uploads_of(first, "shop")) / (ended - began)


def _newest(organisations: Organisations) -> dict[str, Any]:
    return next(item for item in lines_of(organisations)[::-1] if item["kind"] == "exchange")
