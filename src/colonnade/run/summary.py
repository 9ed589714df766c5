"""What a run says of itself: lines while it goes, a summary at the end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from colonnade.core.beside import Beside
from colonnade.core.config import dump
from colonnade.core.errors import BadReply, Diverged, Refused
from colonnade.core.fabric import RealClock
from colonnade.core.federation import Event, Federation, LoopState
from colonnade.core.numerics import NUMERICS
from colonnade.core.patience import Patience
from colonnade.quality.headline import headline_of
from colonnade.run.assembly import Blueprint
from colonnade.run.attending import attendance_of, tardiness_of, warnings_of_tardiness
from colonnade.run.missing_blocks import Findings
from colonnade.run.spec import CHOICES

__all__ = [
    "Accounts",
    "aligned_line",
    "evaluation_line",
    "progress_line",
    "revision",
    "skipped_line",
    "summarize",
]


@cache
def revision() -> str:
    """The revision of Colonnade that runs: of its checkout, or the installed version.

    ``-changed`` marks a checkout with uncommitted changes.
    """
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return version("colonnade")
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=-changed", "--abbrev=10", "--exclude=*"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return version("colonnade")
    return described.stdout.strip()


def aligned_line(blueprint: Blueprint) -> str:
    """How many samples there are, how many are known to all, and of how many rows each."""
    rows = ", ".join(f"{name} {count}" for name, count in blueprint.num_rows.items())
    total, complete = (
        sum(item.values()) for item in (blueprint.num_samples, blueprint.num_complete)
    )
    known = f"{complete} samples are known to all"
    if complete < total:
        known = f"{total} samples, {complete} of them known to all"
    return f"{known} (of {rows})"


def progress_line(
    federation: Federation,
    event: Event,
    loop: LoopState,
    spent: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """One line for metrics.jsonl: how far, how good, what it cost so far."""
    traffic = federation.fabric.meter.parties
    return {
        "kind": "exchange",
        "exchange": event.exchange,
        "loss": event.loss,
        "elapsed": loop.elapsed,
        "bytes_up": {name: item.bytes_up for name, item in traffic.items()},
        "bytes_down": {name: item.bytes_down for name, item in traffic.items()},
        "computing": {name: item.seconds_computing for name, item in traffic.items()},
        **({"privacy": spent} if spent else {}),
        **_delays(federation),
        **tardiness_of(federation),
    }


def _delays(federation: Federation) -> dict[str, Any]:
    """How stale the embeddings were that an asynchronous method used so far."""
    if not federation.method.info.tolerates_slow:
        return {}
    counts = federation.method.findings(federation.holder).get("delays")
    if not counts:
        return {}
    mean = sum(delay * count for delay, count in counts.items()) / sum(counts.values())
    return {"delays": {"mean": mean, "largest": max(counts)}}


class Accounts:
    """What the releases so far amount to, by party, as each one accounts for itself.

    Only parties that keep an account are asked. Where nobody waits for anybody, the question
    travels with the next call, and a line has what was last heard.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._known: dict[str, dict[str, float]] = {}
        self._under_way: dict[str, Beside[dict[str, Any]]] = {}

    def look(self) -> dict[str, dict[str, float]]:
        """The accounts as they are known now."""
        if not self._federation.waits_for_nobody:
            return privacy_spent(self._federation)
        federation = self._federation
        for name in federation.accounting:
            question = self._under_way.get(name)
            if question is not None and not question.advance():
                continue
            if question is not None:
                self._note(question.result)
            parties = federation.beside(federation.fabric.aside(), Patience())
            self._under_way[name] = Beside(parties.ask("privacy_spent", among=[name]))
        return {name: self._known[name] for name in sorted(self._known)}

    def _note(self, told: Mapping[str, Any]) -> None:
        self._known |= {name: dict(item) for name, item in told.items() if item}


def privacy_spent(federation: Federation) -> dict[str, dict[str, float]]:
    """What every account says now; waits for the slowest."""
    if not federation.accounting:
        return {}
    parties = federation.aside()
    told = federation.fabric.run(parties.ask("privacy_spent", among=federation.accounting))
    return {name: dict(item) for name, item in told.items() if item}


def evaluation_line(event: Event, loop: LoopState) -> dict[str, Any]:
    """One line for metrics.jsonl: quality on the validation part."""
    return {
        "kind": "evaluation",
        "exchange": event.measured,
        "part": "validation",
        "elapsed": loop.elapsed,
        "metrics": dict(event.metrics or {}),
    }


def skipped_line(event: Event) -> dict[str, Any]:
    """One line for metrics.jsonl: an evaluation was due while another was under way."""
    return {
        "kind": "skipped",
        "what": "evaluation",
        "exchange": event.exchange,
        "waits_for": list(event.skipped or ()),
    }


def _headline(blueprint: Blueprint, federation: Federation) -> str:
    """The metric to look at first: the one that was said, or by how held-out labels are spread."""
    parts = federation.holder.parts
    held_out = parts.get("test") or parts.get("validation")
    if held_out is None:
        return blueprint.task.quality_name
    return headline_of(blueprint.task, held_out.values, blueprint.spec.stop.metric)


def summarize(
    blueprint: Blueprint,
    federation: Federation,
    loop: LoopState,
    quality: Mapping[str, Mapping[str, float]],
    seconds: float,
    findings: Findings | None = None,
    start: Mapping[str, Any] | None = None,
    *,
    lineage: Mapping[str, Any] | None = None,
    refusal: Refused | None = None,
    fault: Diverged | BadReply | None = None,
) -> dict[str, Any]:
    """How a run ended: what it reached and what that cost."""
    spec = blueprint.spec
    traffic = federation.fabric.meter.parties
    local_steps: dict[str, int] = federation.fabric.run(federation.aside().ask("local_steps"))
    computing = {name: item.seconds_computing for name, item in traffic.items()}
    spent = privacy_spent(federation)
    told = (findings or Findings()).plain
    told["warnings"] += warnings_of_tardiness(federation, loop.exchange)
    return {
        "method": spec.method.info.name,
        "task": blueprint.task.kind,
        "quality_name": blueprint.task.quality_name,
        "headline": _headline(blueprint, federation),
        "quality": {part: dict(metrics) for part, metrics in quality.items()},
        "stopped_by": loop.stopped_by,
        "exchanges": loop.exchange,
        "best_exchange": loop.best_exchange,
        "epochs": loop.exchange / federation.exchanges_per_epoch,
        "parties": list(blueprint.participants),
        "label_holder": blueprint.label_holder,
        "num_samples": dict(blueprint.num_samples),
        "num_complete": dict(blueprint.num_complete),
        "num_rows": dict(blueprint.num_rows),
        **told,
        "start": start,
        # How a first training ended, if this is the second, on all rows.
        "refit": None,
        "local_steps": local_steps,
        "bytes_up": {name: item.bytes_up for name, item in traffic.items()},
        "bytes_down": {name: item.bytes_down for name, item in traffic.items()},
        "fabric": dump(spec.fabric, choices=CHOICES)["name"],
        "seconds": loop.elapsed if federation.fabric.has_real_time else seconds,
        "elapsed_seconds": loop.elapsed,
        "times": times_of(loop),
        "attendance": attendance_of(federation),
        "skipped": {
            "evaluations": loop.skipped_evaluations,
            "checkpoints": loop.skipped_checkpoints,
        },
        "seconds_computing": computing,
        "label_holder_work": _own_work(federation),
        "seconds_waiting": {
            name: max(0.0, loop.elapsed - item) for name, item in computing.items()
        },
        # Of every party, what its own account says; none where nothing bounds it.
        "privacy": {name: spent.get(name) for name in blueprint.participants},
        "protections": {
            name: [item.kind for item in chain] for name, chain in blueprint.doors().chains.items()
        },
        "refusal": None if refusal is None else {"party": refusal.party, "reason": str(refusal)},
        "fault": None if fault is None else {"party": fault.party, "reason": str(fault)},
        "findings": {**spec.method.findings(federation.holder), **tardiness_of(federation)},
        "lineage": lineage,
        "seed": spec.seed,
        "revision": revision(),
        "numerics": NUMERICS,
        "version": version("colonnade"),
    }


def _own_work(federation: Federation) -> dict[str, Any] | None:
    """How many updates the label holder computed since this process began, and for how long."""
    clock = federation.holder.clock
    if not isinstance(clock, RealClock):
        return None
    return {"units": clock.num_units["fuse"], "seconds": clock.seconds.get("fuse", 0.0)}


def times_of(loop: LoopState) -> dict[str, float]:
    """Where the elapsed seconds went."""
    apart = {
        "evaluation": loop.evaluating,
        "checkpoints": loop.keeping,
        "outages": loop.outages,
    }
    return {"training": max(0.0, loop.elapsed - sum(apart.values())), **apart}
