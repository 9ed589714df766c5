"""What ``colonnade demo`` shows: why one would want this, in under a minute."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from colonnade.cli.progress import human_bytes, watching
from colonnade.core.errors import StorageError
from colonnade.report import ComparisonRow, write_comparison
from colonnade.run.arrangement import Arrangement, arrange
from colonnade.run.engine import train
from colonnade.run.result import Result
from colonnade.run.sources import Sources, load_sources
from colonnade.run.spec import parse_spec

__all__ = ["show"]

_DATASET = "digits"
_ABSENT = "bottom"
_SETTINGS: dict[str, Any] = {
    "data": {"dataset": _DATASET, "batch_size": 64},
    "stop": {"epochs": 25},
    "threads": 1,
    "defaults": {"encoder": {"kind": "mlp", "hidden": [64], "embedding": 32}},
}
_INTRO = (
    "Three organisations each hold a third of the columns of the same samples: the top, middle "
    "and bottom rows of handwritten digits. The first one also has the labels. Every column "
    "stayed with its owner; only embeddings and gradients crossed."
)


def show(out: Path) -> None:
    """Train three owners of columns together, and alone, and leave a report."""
    console = Console()
    console.print(_INTRO, highlight=False)
    spec = parse_spec(_SETTINGS)
    sources = load_sources(spec)
    absent = {name: item for name, item in sources.blocks.items() if name != _ABSENT}
    two_left = replace(sources, blocks=absent)
    _make_room(out)
    alone = _train("alone", sources, out / "alone", "label holder alone")
    together = _train("splitnn", sources, out / "together", "all three together")
    ideal = _train("centralized", sources, out / "centralized", "centralized")
    without = _train("splitnn", two_left, out / "two_left", f"trained without '{_ABSENT}'")
    rows = [
        _row("label holder alone", alone, "what it has without a federation"),
        _row("all three together", together, "SplitNN: columns stay where they are"),
        _row("centralized", ideal, "the unreachable ideal: all columns in one place"),
        _guess(
            f"together, '{_ABSENT}' missing",
            arrange(spec, sources),
            "SplitNN can't answer without a block: the commonest class for everybody",
        ),
        _row(f"trained again without '{_ABSENT}'", without, "the other two only"),
    ]
    table = Table("who", "test accuracy", "bytes", "seconds", "")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.quality:.3f}",
            human_bytes(row.bytes_total),
            f"{row.seconds:.1f}",
            row.summary,
        )
    console.print(table)
    runs = {"all three together": out / "together", "label holder alone": out / "alone"}
    page = write_comparison(
        rows,
        out=out / "report.html",
        title="Colonnade: the demo",
        quality_name="accuracy",
        intro=_INTRO,
        runs=runs,
    )
    console.print(f"report in {page}", highlight=False, soft_wrap=True)


def _make_room(out: Path) -> None:
    """Remove what an earlier demo left here, and nothing else."""
    marker = out / ".colonnade-demo"
    if out.exists() and not (marker.exists() or (out.is_dir() and not any(out.iterdir()))):
        raise StorageError(f"{out}: holds something other than a demo; choose another with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    marker.touch()


def _train(method: str, sources: Sources, out: Path, label: str) -> Result:
    chosen = parse_spec({**_SETTINGS, "method": method})
    with watching(label) as lines:
        result = train(chosen, sources=sources, directory=out, watcher=lines)
    if lines.wants_to_stop():
        sys.exit(130)
    return result


def _row(name: str, result: Result, note: str) -> ComparisonRow:
    summary = result.summary
    metrics = summary["quality"]["test"]
    moved = sum(summary["bytes_up"].values()) + sum(summary["bytes_down"].values())
    return ComparisonRow(
        name=name,
        summary=note,
        quality=metrics[summary["quality_name"]],
        metrics=metrics,
        bytes_total=moved,
        seconds=summary["elapsed_seconds"],
    )


def _guess(name: str, arrangement: Arrangement, note: str) -> ComparisonRow:
    """What is left when a block is missing and the method needs it: the commonest class."""
    samples = arrangement.samples
    train_labels, test_labels = (arrangement.values[samples[part]] for part in ("train", "test"))
    classes, counts = np.unique(train_labels, return_counts=True)
    quality = float(np.mean(test_labels == classes[counts.argmax()]))
    return ComparisonRow(
        name=name,
        summary=note,
        quality=quality,
        metrics={"accuracy": quality},
        bytes_total=0,
        seconds=0.0,
    )
