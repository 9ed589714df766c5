"""Progress of a training: a bar on a terminal, plain lines elsewhere; and how it ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from colonnade.cli.console import say

if TYPE_CHECKING:
    from colonnade.core.federation import Event, Federation

__all__ = ["ProgressLines", "human_bytes", "say_ending", "watching"]


def human_bytes(count: float) -> str:
    """A number of bytes as people read it."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class ProgressLines:
    """Shows loss, quality, exchanges per second and bytes while a training goes on.

    The first Ctrl-C asks it to stop after the exchange under way; the second stops at once.
    """

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label
        self._stop = False
        self._quality = ""
        self._total = 0
        # Away from a terminal, a line for every tenth of the way is enough.
        self._tenths_said = 0
        self._federation: Federation | None = None
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(),
                console=console,
                transient=False,
            )

    def began(self, federation: Federation, done: int, total: int) -> None:
        """Start the bar, or print that the training begins."""
        self._federation = federation
        self._total = total
        if self._bar is None:
            from_where = f" after exchange {done}" if done else ""
            self._say(f"{self._label}: {total} exchanges{from_where}")
            return
        self._bar.start()
        self._bar.add_task(self._label, total=total, completed=done, numbers="")

    def exchanged(self, event: Event) -> None:
        """Show the exchange that is done."""
        assert self._federation is not None
        if event.metrics is not None:
            name = self._federation.holder.task.quality_name
            self._quality = f"{name} {event.metrics[name]:.3f}"
            tenth = 10 * event.exchange // self._total
            if self._bar is None and tenth > self._tenths_said:
                self._tenths_said = tenth
                self._say(
                    f"{self._label}: exchange {event.exchange}/{self._total}  "
                    f"loss {event.loss:.4f}  {self._quality}  {self._bytes()}"
                )
        if self._bar is not None and (event.exchange % 5 == 0 or event.metrics is not None):
            task = self._bar.tasks[0]
            speed = f"{task.speed:.0f}/s" if task.speed else ""
            numbers = f"loss {event.loss:.4f}  {self._quality}  {speed}  {self._bytes()}"
            self._bar.update(task.id, completed=event.exchange, numbers=numbers)

    def wants_to_stop(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._stop

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle the first Ctrl-C."""
        self._stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Not through the console: it may be in the middle of a line just now.
        os.write(2, b"stopping after this exchange; Ctrl-C again to stop at once\n")

    def close(self) -> None:
        """Stop the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _bytes(self) -> str:
        assert self._federation is not None
        traffic = self._federation.fabric.meter.parties.values()
        return human_bytes(sum(item.bytes_up + item.bytes_down for item in traffic))

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def say_ending(summary: Mapping[str, Any], directory: Path) -> None:
    """Print why a training ended early; after an interruption, end the command with status 130."""
    if summary["stopped_by"] == "interrupted":
        done = summary["exchanges"]
        say(f"stopped after exchange {done}; --resume goes on in {directory}")
        raise typer.Exit(130)
    if summary["refusal"] is not None:
        say(summary["refusal"]["reason"])
        say(f"the weights are those after exchange {summary['exchanges']}")


@contextmanager
def watching(label: str) -> Iterator[ProgressLines]:
    """A watcher that shows progress on standard error and handles Ctrl-C."""
    lines = ProgressLines(Console(file=sys.stderr), label)
    before = signal.signal(signal.SIGINT, lines.interrupt)
    try:
        yield lines
    finally:
        signal.signal(signal.SIGINT, before)
        lines.close()
