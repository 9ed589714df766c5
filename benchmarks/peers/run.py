"""SplitNN over mutual TLS against the same SplitNN over the messages of Flower and NVFlare.

Called by ``make bench-peers``. Each peer computes in an environment of its own the networks,
batches and steps of ``colonnade bench network``'s case 128x64; they and we take turns, and every
loss must be the one that Colonnade has in one process.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from case_files import reference_losses, write_case
from colonnade.bench import machine
from colonnade.bench.network import CASES, over_tls, take_turn
from colonnade.bench.timing import interleaved
from colonnade.core.errors import RunError
from colonnade.files import write_atomically
from colonnade.run.storage import write_json
from colonnade.run.summary import revision
from page import check_page, fill_page
from processes import PeerProcesses
from programs import PROGRAMS, Program

_CASE = "128x64"
_OUR_EXCHANGES_PER_TURN = 50
# Same arithmetic in the same precision; only the order of some sums may differ.
_TOLERANCE = 1e-4
# Peers look for news, report their use and listen to everybody, unless told not to.
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # In spite of its name: with 0, Ray listens on loopback only, on Linux as well.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


def main() -> None:
    """Measure, check, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, required=True, help="one below per peer")
    parser.add_argument("--json", type=Path, required=True, help="where the rows are written")
    parser.add_argument("--page", type=Path, help="a page with a place for the table")
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    options = parser.parse_args()
    if options.page is not None:
        check_page(options.page)
    torch.set_num_threads(1)
    # Whoever ends this early ends what it started as well.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    outcome: dict[str, Any] = {"name": "peers", "machine": machine(), "revision": revision()}
    outcome["rows"] = [measure(name, PROGRAMS[name], options.environments) for name in options.only]
    write_json(options.json, outcome)
    if options.page is not None:
        filled = fill_page(options.page.read_text(encoding="utf-8"), outcome)
        write_atomically(options.page, filled.encode())


def measure(name: str, program: Program, environments: Path) -> dict[str, Any]:
    """One peer's row."""
    shape = CASES[_CASE]
    load = os.getloadavg()[0]
    num_turns = program.turns + max(1, program.turns // 10)
    num_steps = num_turns * max(program.steps_per_turn, _OUR_EXCHANGES_PER_TURN)
    losses = reference_losses(shape, num_steps)
    theirs: list[float] = []
    ours: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory(prefix="peers-") as where, over_tls(shape) as federation:
        directory = Path(where)
        write_case(shape, directory, num_steps)
        variables = {
            **_QUIET,
            "COLONNADE_PEERS_CASE": where,
            "FLWR_HOME": str(directory / "flwr"),
            "PYTHONPATH": str(Path(__file__).parent.absolute()),
        }

        def our_turn(turn: int) -> None:
            first = turn * _OUR_EXCHANGES_PER_TURN
            take_turn(federation, first, _OUR_EXCHANGES_PER_TURN)
            ours.append((first + _OUR_EXCHANGES_PER_TURN, federation.holder.last_loss))

        take_turn(federation, 0, 0)  # every party's process is there
        processes = PeerProcesses(environments / program.environment, directory, variables)
        try:
            parties = list(federation.fabric.names)
            program.start(processes, directory, parties)
            versions = processes.await_holder()
            processes.check_loopback()
            mine, against = interleaved(
                our_turn,
                lambda turn: theirs.extend(processes.steps(program.steps_per_turn)),
                runs=program.turns,
            )
        finally:
            processes.close()
    mine, against = mine / _OUR_EXCHANGES_PER_TURN, against / program.steps_per_turn
    row = {
        "case": name,
        "ratio": against / mine,
        "unit": "our SplitNN exchanges per second / theirs; 4 parties, 128 x 64, loopback",
        "against": program.says,
        "runs": program.turns,
        "per_second": 1 / mine,
        "per_second_against": 1 / against,
        "versions": versions,
        "load": load,
        "steps": len(theirs),
        "last_loss": theirs[-1],
        "largest_difference_of_loss": max(
            _checked(name, losses, list(enumerate(theirs, start=1))),
            _checked("colonnade", losses, ours),
        ),
    }
    print(f"{name}: {row['ratio']:.1f} times ({1 / against:.2f} against {1 / mine:.1f} a second)")
    return row


def _checked(who: str, losses: list[float], found: list[tuple[int, float]]) -> float:
    """The largest difference from the losses in one process; refuses another SplitNN."""
    largest = 0.0
    for step, loss in found:
        expected = losses[step - 1]
        if not math.isclose(loss, expected, rel_tol=_TOLERANCE):
            raise RunError(
                f"{who}, step {step}: loss {loss}, expected {expected}; not the same SplitNN"
            )
        largest = max(largest, abs(loss - expected))
    return largest


if __name__ == "__main__":
    main()
