"""The trainings and the report of ``colonnade demo``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from colonnade.cli.progress import human_bytes, watching
from colonnade.core.errors import StorageError
from colonnade.core.federation import Event, Federation
from colonnade.data.blocks import Block
from colonnade.report import ComparisonRow, write_comparison
from colonnade.report.demo_picture import Course, write_demo_picture
from colonnade.run.engine import Watcher, train
from colonnade.run.result import Result
from colonnade.run.samples import Arrangement, arrange
from colonnade.run.sources import Sources, load_sources
from colonnade.run.spec import parse_spec

__all__ = ["show"]

_DATASET = "digits"
_ABSENT = _SLOW = "bottom"
_SETTINGS: dict[str, Any] = {
    "data": {"dataset": _DATASET, "batch_size": 64},
    "stop": {"epochs": 25},
    "threads": 1,
    "defaults": {"encoder": {"kind": "mlp", "hidden": [64], "embedding": 32}},
}
# One party sits behind half a second of network in each direction; the clock is simulated.
_SLOW_LINK: dict[str, Any] = {
    "name": "simulated",
    "default": {"encode": 5, "step": 5, "latency": 10},
    "party": {_SLOW: {"latency": 500}},
}
_TARGET = 0.93
_INTRO = (
    "Three organisations each hold a third of the columns of the same samples: the top, middle "
    "and bottom rows of handwritten digits. The first one also has the labels. Every column "
    "stayed with its owner; only embeddings and gradients crossed."
)


def show(out: Path) -> None:
    """Train three owners of columns alone, together, with one missing and with one slow."""
    console = Console()
    console.print(_INTRO, highlight=False)
    spec = parse_spec(_SETTINGS)
    sources = load_sources(spec)
    arrangement = arrange(spec, sources)
    _make_room(out)
    alone = _train("alone", sources, out / "alone", "label holder alone")
    together = _train("splitnn", sources, out / "together", "all three together")
    ideal = _train("centralized", sources, out / "centralized", "centralized")
    laser = _train("laser", sources, out / "laser", "LASER-VFL")
    rows = [
        _row("label holder alone", alone, "what it has without a federation"),
        _row("all three together", together, "SplitNN: columns stay where they are"),
        _row("centralized", ideal, "the unreachable ideal: all columns in one place"),
        _guess(
            f"SplitNN, '{_ABSENT}' missing",
            arrangement,
            "no answer without a block: it guesses the commonest class",
        ),
        _row("LASER-VFL, all three", laser, "one training for every set of blocks"),
        _without_absent(laser, sources, arrangement),
    ]
    slow = {"SplitNN waits": out / "slow_splitnn", "VAFL does not": out / "slow_vafl"}
    courses = {
        name: _course(method, sources, place)
        for method, (name, place) in zip(("splitnn", "vafl"), slow.items(), strict=True)
    }
    _print_tables(console, rows, courses)
    runs = {"all three together": out / "together", "LASER-VFL, all three": out / "laser"}
    runs |= {f"'{_SLOW}' slow: {name}": place for name, place in slow.items()}
    page = write_comparison(
        rows,
        out=out / "report.html",
        title="Colonnade: the demo",
        quality_name="accuracy",
        intro=_INTRO,
        runs=runs,
    )
    picture = write_demo_picture(
        [(row.name, row.quality) for row in rows], courses, target=_TARGET, out=out / "demo.svg"
    )
    console.print(f"picture in {picture}", highlight=False, soft_wrap=True)
    console.print(f"report in {page}", highlight=False, soft_wrap=True)


def _print_tables(
    console: Console, rows: Sequence[ComparisonRow], courses: Mapping[str, Course]
) -> None:
    table = Table("who", "test accuracy", "bytes", "")
    for row in rows:
        table.add_row(row.name, f"{row.quality:.3f}", human_bytes(row.bytes_total), row.summary)
    console.print(table)
    slow = Table(f"'{_SLOW}' behind a slow link", f"simulated seconds to {_TARGET:.0%}")
    for name, course in courses.items():
        reached = next((second for second, quality in course if quality >= _TARGET), None)
        slow.add_row(name, "not reached" if reached is None else f"{reached:.1f}")
    console.print(slow)


def _make_room(out: Path) -> None:
    """Remove the directory of an earlier demo; refuse any other."""
    marker = out / ".colonnade-demo"
    if out.exists() and not (marker.exists() or (out.is_dir() and not any(out.iterdir()))):
        raise StorageError(f"{out}: holds something other than a demo; choose another with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    marker.touch()


def _train(
    method: str,
    sources: Sources,
    out: Path,
    label: str,
    further: Mapping[str, Any] | None = None,
    trail: Trail | None = None,
) -> Result:
    chosen = parse_spec({**_SETTINGS, "method": method, **(further or {})})
    with watching(label) as lines:
        watcher = lines if trail is None else trail.beside(lines)
        result = train(chosen, sources=sources, directory=out, watcher=watcher)
    if lines.wants_to_stop():
        sys.exit(130)
    return result


def _course(method: str, sources: Sources, out: Path) -> Course:
    """Validation accuracy over simulated seconds, first uploads included, until the target."""
    trail = Trail()
    further = {"fabric": _SLOW_LINK, "stop": {**_SETTINGS["stop"], "target": _TARGET}}
    _train(method, sources, out, f"{method}, '{_SLOW}' slow", further, trail)
    return trail.course


class Trail:
    """A watcher that notes quality by the fabric's clock and passes everything on."""

    def __init__(self) -> None:
        self.course: list[tuple[float, float]] = []

    def beside(self, other: Watcher) -> Trail:
        """Look on beside another watcher."""
        self._other = other
        return self

    def began(self, federation: Federation, done: int, total: int) -> None:
        """Take note of the federation, whose clock it reads."""
        self._federation = federation
        self._other.began(federation, done, total)

    def exchanged(self, event: Event) -> None:
        """Note the quality, where it was measured."""
        if event.metrics is not None:
            name = self._federation.holder.task.quality_name
            self.course.append((self._federation.fabric.now() / 1000, event.metrics[name]))
        self._other.exchanged(event)

    def wants_to_stop(self) -> bool:
        """Whether the other watcher wants to stop."""
        return self._other.wants_to_stop()


def _row(name: str, result: Result, note: str) -> ComparisonRow:
    summary = result.summary
    metrics = summary["quality"]["test"]
    moved = sum(summary["bytes_up"].values()) + sum(summary["bytes_down"].values())
    return ComparisonRow(
        name=name,
        summary=note,
        quality=metrics[summary["quality_name"]],
        metrics={},
        bytes_total=moved,
        seconds=summary["elapsed_seconds"],
    )


def _guess(name: str, arrangement: Arrangement, note: str) -> ComparisonRow:
    """The commonest class: all that remains if a block is missing and the method needs it."""
    samples = arrangement.samples
    train_labels, test_labels = (arrangement.values[samples[part]] for part in ("train", "test"))
    classes, counts = np.unique(train_labels, return_counts=True)
    quality = float(np.mean(test_labels == classes[counts.argmax()]))
    return ComparisonRow(
        name=name,
        summary=note,
        quality=quality,
        metrics={},
        bytes_total=0,
        seconds=0.0,
    )


def _without_absent(result: Result, sources: Sources, arrangement: Arrangement) -> ComparisonRow:
    """The trained LASER-VFL asked about the test samples with one party away: no retraining."""
    test = arrangement.samples["test"]
    absent = arrangement.blocks[_ABSENT]
    assert isinstance(absent, Block)
    ids = absent.ids[arrangement.rows[_ABSENT][test]]
    left = {name: item for name, item in sources.blocks.items() if name != _ABSENT}
    answers = result.answer(left, ids=ids)
    quality = float(np.mean(answers.iloc[:, 0].to_numpy() == arrangement.values[test]))
    return ComparisonRow(
        name=f"LASER-VFL, '{_ABSENT}' missing",
        summary="the same weights answer from the blocks that are there",
        quality=quality,
        metrics={},
        bytes_total=0,
        seconds=0.0,
    )
