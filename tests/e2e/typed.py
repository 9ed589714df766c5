"""Commands as a page has them, each in a process that is forked ready."""

from __future__ import annotations

import shlex
import signal
import threading
from pathlib import Path

from e2e.organisations import Nursery, Process

__all__ = ["Typed"]


class Typed:
    """Runs a page's commands in one directory; what they print is in ``NAME.log`` there."""

    def __init__(self, directory: Path, nursery: Nursery) -> None:
        self._directory, self._nursery = directory, nursery
        self._started: list[Process] = []
        self._num_run = 0

    def start(self, line: str, name: str) -> Process:
        """Start a command that goes on."""
        program, *arguments = shlex.split(line)
        assert program == "colonnade"
        words = ["colonnade", str(self._directory), *arguments]
        log = self._directory / f"{name}.log"
        log.touch()
        process = self._nursery.start(words, log)
        self._started.append(process)
        return process

    def run(self, line: str, *, seconds: float = 120.0) -> str:
        """Run a command to its end; what it printed."""
        self._num_run += 1
        name = f"command{self._num_run}"
        code = self.start(line, name).wait(seconds)
        assert code == 0, f"{line}: {code}\n{self.logs()}"
        return (self._directory / f"{name}.log").read_text()

    def wait_for_words(self, name: str, said: str) -> None:
        """Wait until a command has printed these words."""
        log, pause = self._directory / f"{name}.log", threading.Event()
        for _ in range(6000):
            if said in log.read_text():
                return
            pause.wait(0.02)
        raise AssertionError(self.logs())

    def logs(self) -> str:
        """Everything that the commands printed."""
        files = sorted(self._directory.glob("*.log"))
        return "\n".join(f"{file.name}: {file.read_text()}" for file in files)

    def close(self) -> None:
        """End whatever still runs."""
        for process in reversed(self._started):
            if process.wait(0) is None:
                process.signal(signal.SIGTERM)
                if process.wait(20) is None:
                    process.kill()
