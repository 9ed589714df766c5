"""What a run says of itself: lines while it goes, a summary at the end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from colonnade.core.config import dump
from colonnade.core.errors import Refused
from colonnade.core.federation import Event, Federation, LoopState
from colonnade.core.parties import Parties
from colonnade.run.assembly import Blueprint
from colonnade.run.missing import Findings
from colonnade.run.spec import CHOICES

__all__ = ["aligned_line", "evaluation_line", "progress_line", "revision", "summarize"]


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


def progress_line(federation: Federation, event: Event, loop: LoopState) -> dict[str, Any]:
    """One line for metrics.jsonl: how far, how good, what it cost so far."""
    traffic = federation.fabric.meter.parties
    spent = privacy_spent(federation)
    return {
        "kind": "exchange",
        "exchange": event.exchange,
        "loss": event.loss,
        "elapsed": loop.elapsed,
        "bytes_up": {name: item.bytes_up for name, item in traffic.items()},
        "bytes_down": {name: item.bytes_down for name, item in traffic.items()},
        "computing": {name: item.seconds_computing for name, item in traffic.items()},
        **({"privacy": spent} if spent else {}),
    }


def privacy_spent(federation: Federation) -> dict[str, dict[str, float]]:
    """What the releases so far amount to, by party, as each one accounts for itself."""
    told = federation.fabric.run(federation.aside().ask("privacy_spent"))
    return {name: dict(item) for name, item in told.items() if item}


def evaluation_line(event: Event, loop: LoopState) -> dict[str, Any]:
    """One line for metrics.jsonl: quality on the validation part."""
    return {
        "kind": "evaluation",
        "exchange": event.exchange,
        "part": "validation",
        "elapsed": loop.elapsed,
        "metrics": dict(event.metrics or {}),
    }


def summarize(
    blueprint: Blueprint,
    federation: Federation,
    loop: LoopState,
    quality: Mapping[str, Mapping[str, float]],
    seconds: float,
    findings: Findings | None = None,
    start: Mapping[str, Any] | None = None,
    *,
    refusal: Refused | None = None,
) -> dict[str, Any]:
    """How a run ended: what it reached and what that cost."""
    spec = blueprint.spec
    traffic = federation.fabric.meter.parties
    aside = Parties(federation.fabric.aside(), federation.patience)
    local_steps: dict[str, int] = federation.fabric.run(aside.ask("local_steps"))
    computing = {name: item.seconds_computing for name, item in traffic.items()}
    spent = privacy_spent(federation)
    return {
        "method": spec.method.info.name,
        "task": blueprint.task.kind,
        "quality_name": blueprint.task.quality_name,
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
        **(findings or Findings()).plain,
        "start": start,
        "local_steps": local_steps,
        "bytes_up": {name: item.bytes_up for name, item in traffic.items()},
        "bytes_down": {name: item.bytes_down for name, item in traffic.items()},
        "fabric": dump(spec.fabric, choices=CHOICES)["name"],
        "seconds": seconds,
        "elapsed_seconds": loop.elapsed,
        "seconds_computing": computing,
        "seconds_waiting": {
            name: max(0.0, loop.elapsed - item) for name, item in computing.items()
        },
        # Of every party, what its own account says; none where nothing bounds it.
        "privacy": {name: spent.get(name) for name in blueprint.participants},
        "protections": {
            name: [item.kind for item in chain] for name, chain in blueprint.protections.items()
        },
        "refusal": None if refusal is None else {"party": refusal.party, "reason": str(refusal)},
        "findings": dict(spec.method.findings(federation.holder)),
        "seed": spec.seed,
        "revision": revision(),
        "version": version("colonnade"),
    }
