"""Network cuts in real time between real processes, with the links' usual settings.

Ten seconds are less than it takes to find a peer dead, ten minutes are far more. What a run does
meanwhile is its policy: wait, stop and say for whom, or go on without.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.run.storage import read_json
from e2e.organisations import PARTIES, Nursery, Organisations, Process
from fault.proxy import Fault
from federations import assert_bitwise_equal

PATIENCE = 300.0
SHORT = 10.0
LONG = 600.0


def run_cuts(root: Path, nursery: Nursery, *, long_cut: bool) -> dict[str, Any]:
    """Every policy; what happened."""
    cuts: list[tuple[Fault, float]] = [("freeze", SHORT), ("swallow", SHORT), ("cut", SHORT)]
    cuts += [("swallow", LONG)] if long_cut else []
    return {
        "wait": _wait(root / "wait", nursery, cuts),
        "stop": _stop(root / "stop", nursery),
        "continue": _continue(root / "continue", nursery),
    }


class _Run:
    """A run over production links whose telco can be cut off."""

    def __init__(self, root: Path, nursery: Nursery, *, exchanges: int, **settings: Any) -> None:
        self.num_exchanges = exchanges
        self.world = Organisations(
            root, nursery, proxied=True, link=LinkSpec(), exchanges=exchanges, **settings
        )
        for name in PARTIES:
            self.world.start_party(name)
        self.hub = self.world.start_hub()
        self.proxy = self.world.proxies["telco"]
        self.wait_for_exchanges(2)

    @property
    def num_done(self) -> int:
        return len(self.world.exchanges())

    def wait_for_exchanges(self, count: int) -> None:
        until = time.monotonic() + PATIENCE
        while self.num_done < count:
            assert time.monotonic() < until, self.world.logs()
            pass_time(0.02)

    def cut(self, fault: Fault) -> None:
        self.proxy.fail_after(500, fault)
        assert self.proxy.was_cut.wait(PATIENCE), self.world.logs()

    def finish(self, hub: Process) -> None:
        assert hub.wait(PATIENCE) == 0, self.world.logs()
        assert self.world.exchanges() == list(range(1, self.num_exchanges + 1))

    def check(self) -> None:
        local, summary = self.world.in_process()
        assert_bitwise_equal(self.world.weights(), local)
        assert read_json(self.world.run / "summary.json")["quality"] == summary["quality"]
        self.world.close()


def _wait(root: Path, nursery: Nursery, cuts: list[tuple[Fault, float]]) -> dict[str, Any]:
    """Nobody goes on, nobody gives up, and afterwards everybody goes on where it was."""
    run = _Run(root, nursery, exchanges=60)
    happened = []
    for fault, seconds in cuts:
        run.cut(fault)
        # What had come through before the cut may still be worked off.
        pass_time(2.0)
        done = run.num_done
        pass_time(seconds - 2.0)
        assert run.num_done == done < run.num_exchanges, f"{fault}: it went on without the telco"
        assert run.hub.wait(0) is None, run.world.logs()
        restored = time.monotonic()
        run.proxy.restore()
        run.wait_for_exchanges(done + 1)
        took = round(time.monotonic() - restored, 1)
        happened.append({"fault": fault, "seconds": seconds, "went_on_after_seconds": took})
        _tell(f"wait: {fault} for {seconds:g} s, went on {took} s later")
    run.finish(run.hub)
    assert run.proxy.num_cuts == len(cuts)
    assert run.proxy.num_refused > 0
    assert run.proxy.num_swallowed > 0
    run.check()
    return {"cuts": happened, "exchanges": run.num_exchanges, "bitwise_equal": True}


def _stop(root: Path, nursery: Nursery) -> dict[str, Any]:
    """The run ends and names the telco; when the link is back it is resumed."""
    run = _Run(root, nursery, exchanges=20, patience="timeout = 5000")
    run.cut("swallow")
    began = time.monotonic()
    assert run.hub.wait(PATIENCE) == 1, run.world.logs()
    took = time.monotonic() - began
    log = (run.world.run / "run.log").read_text()
    assert "NoAnswer: no answer from 'telco'" in log, log
    pass_time(max(0.0, SHORT - took))
    run.proxy.restore()
    run.finish(run.world.start_hub())
    run.check()
    _tell(f"stop: named the telco after {took:.1f} s, and was resumed")
    return {
        "fault": "swallow",
        "seconds": SHORT,
        "named": "telco",
        "stopped_after_seconds": round(took, 1),
        "bitwise_equal": True,
    }


def _continue(root: Path, nursery: Nursery) -> dict[str, Any]:
    """The run goes on without the telco, and takes it back."""
    run = _Run(
        root,
        nursery,
        exchanges=120,
        combine="mean",
        patience='timeout = 500\nthen = "continue"',
    )
    run.cut("swallow")
    pass_time(2.0)
    done = run.num_done
    pass_time(SHORT - 2.0)
    without = run.num_done - done
    assert without > 0, run.world.logs()
    run.proxy.restore()
    run.finish(run.hub)
    log = (run.world.run / "run.log").read_text()
    assert "no checkpoint: no answer from 'telco'" in log
    # A checkpoint needs everybody: there was one after the telco came back.
    tag = read_json(run.world.run / "checkpoint.json")["tag"]
    assert int(tag.partition("-")[2]) > done + without
    run.world.close()
    _tell(f"continue: {without} exchanges without the telco, then with it again")
    return {
        "fault": "swallow",
        "seconds": SHORT,
        "exchanges_without": without,
        "exchanges": run.num_exchanges,
    }


def pass_time(seconds: float) -> None:
    """Real time, which is what these cuts are about."""
    threading.Event().wait(seconds)


def _tell(what: str) -> None:
    sys.stderr.write(f"     {what}\n")
