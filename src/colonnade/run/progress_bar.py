"""A progress bar for notebooks and terminals, as a watcher of a run."""

from __future__ import annotations

import html
import importlib
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from colonnade.core.federation import Event, Federation

__all__ = ["ProgressBar"]

# Between two drawings, in seconds.
_DRAW_EVERY = 0.1


class ProgressBar:
    """Shows exchanges, loss and quality while ``fit`` trains: ``fit(..., watcher=ProgressBar())``.

    In a notebook the bar is in the cell's output, elsewhere on the terminal. It has no thread: a
    run that ends early leaves the bar as it is.

    Args:
        console: The terminal; by default that of the process.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)
        # What a notebook has shown, to be updated.
        self._shown: Any = None
        self._name = self._metric = self._numbers = self._quality = ""
        self._done = self._total = 0
        self._drawn_at = 0.0

    def began(self, federation: Federation, done: int, total: int) -> None:
        """Show the bar."""
        self._name, self._done, self._total = federation.method.info.name, done, total
        self._metric = federation.holder.task.quality_name
        if self._console is None and (display := _notebook()) is not None:
            self._shown = display.display(self, display_id=True)
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[numbers]}"),
            console=self._console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task(self._name, total=total, completed=done, numbers="")
        self._bar.start()

    def exchanged(self, event: Event) -> None:
        """Show the exchange that is done; the last one ends the bar."""
        if event.metrics is not None and self._metric in event.metrics:
            self._quality = f"{self._metric} {event.metrics[self._metric]:.3f}"
        self._done = event.exchange
        self._numbers = f"loss {event.loss:.4f}  {self._quality}"
        is_last = event.exchange >= self._total
        if not is_last and time.monotonic() - self._drawn_at < _DRAW_EVERY:
            return
        self._drawn_at = time.monotonic()
        if self._shown is not None:
            self._shown.update(self)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, numbers=self._numbers)
            self._bar.refresh()
            if is_last:
                self._bar.stop()

    def wants_to_stop(self) -> bool:
        """Never: interrupt the cell to stop at once.

        Returns:
            False.
        """
        return False

    def _repr_html_(self) -> str:
        label = html.escape(f"{self._name}: exchange {self._done} of {self._total}")
        return (
            f'<label>{label} <progress value="{self._done}" max="{max(1, self._total)}"></progress>'
            f"</label> {html.escape(self._numbers)}"
        )


def _notebook() -> Any:
    """IPython's display, in a process that a notebook has started; None elsewhere."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    if running is None or not hasattr(running, "kernel"):
        return None
    # By its name: nothing here requires it, a notebook brings its own.
    return importlib.import_module("IPython.display")
