"""Processes of a peer: started in its own environment, stopped with all that they started."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.core.errors import RunError

__all__ = ["PeerProcesses", "free_port"]

_PR_SET_CHILD_SUBREAPER = 36
_LISTENS = "0A"  # a socket's state in /proc/net/tcp


class PeerProcesses:
    """What one peer runs, and the link on which its label holder takes orders."""

    def __init__(self, environment: Path, directory: Path, variables: Mapping[str, str]) -> None:
        # Peers start processes in sessions of their own; orphans become ours, so none is lost.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._others = _descendants()
        self._bin = environment.absolute() / "bin"
        self._directory = directory
        self._log = (directory / "log.txt").open("wb")
        self._started: list[subprocess.Popen[bytes]] = []
        self._link: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / "orders"))
        self._listener.listen(1)
        self._variables = {
            **os.environ,
            **variables,
            "COLONNADE_PEERS_ORDERS": str(directory / "orders"),
            "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, command: str, *arguments: str) -> None:
        """Start a command of the peer's environment; what it says goes to the log."""
        self._started.append(
            subprocess.Popen(
                [str(self._bin / command), *arguments],
                env=self._variables,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
        )

    def await_port(self, port: int, seconds: float = 60.0) -> None:
        """Until something listens there."""
        until = time.monotonic() + seconds
        while True:
            self._check(until, f"nothing listens on port {port}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return

    def await_holder(self, seconds: float = 180.0) -> dict[str, str]:
        """Until the label holder is ready for orders; the versions of what it runs on."""
        until = time.monotonic() + seconds
        self._listener.settimeout(1.0)
        while self._link is None:
            self._check(until, "its label holder did not come")
            try:
                self._link, _ = self._listener.accept()
            except TimeoutError:
                continue
        self._link.settimeout(seconds)
        self._lines = self._link.makefile("rw", encoding="utf-8")
        return {str(key): str(value) for key, value in self._heard().items()}

    def check_loopback(self) -> None:
        """Raise RunError if any process of the peer listens to other machines."""
        wide = _wide_listeners()
        for process_id in _descendants() - self._others:
            for place in _open_files(process_id):
                if place in wide:
                    name = Path(f"/proc/{process_id}/comm").read_text().strip()
                    raise RunError(
                        f"{name} listens on {wide[place]}, not on loopback alone; "
                        "find its setting, or leave this peer out with --only"
                    )

    def steps(self, count: int) -> list[float]:
        """So many steps; their losses."""
        self._lines.write(f"{count}\n")
        self._lines.flush()
        return [float(loss) for loss in self._heard()]

    def _heard(self) -> Any:
        try:
            line = self._lines.readline()
        except TimeoutError:
            line = ""
        if not line:
            raise RunError(f"the label holder said nothing more; {self._last_words()}")
        return json.loads(line)

    def _check(self, until: float, what: str) -> None:
        for process in self._started:
            if process.poll():
                raise RunError(
                    f"{process.args!r} ended with {process.poll()}; {self._last_words()}"
                )
        if time.monotonic() > until:
            raise RunError(f"{what}; {self._last_words()}")

    def _last_words(self) -> str:
        text = (self._directory / "log.txt").read_text(encoding="utf-8", errors="replace")
        return "its log ends with:\n" + "\n".join(text.splitlines()[-30:])

    def close(self) -> None:
        """No more orders; then end whatever is left, by its id."""
        if self._link is not None:
            self._lines.close()
            self._link.close()
        self._listener.close()
        for number, patience in ((None, 10.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            if number is not None:
                for process_id in _descendants() - self._others:
                    _signal(process_id, number)
            if self._gone(time.monotonic() + patience):
                break
        self._log.close()

    def _gone(self, until: float) -> bool:
        while remaining := _descendants() - self._others:
            for process in self._started:
                process.poll()
            for process_id in remaining - {process.pid for process in self._started}:
                _reap(process_id)
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wide_listeners() -> dict[str, str]:
    """Sockets of this machine that listen on more than loopback, as /proc shows open files."""
    found = {}
    # Addresses are in hex, four bytes at a time in the machine's order: 127.0.0.1, and in IPv6
    # the same and ::1.
    nearby = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            address, _, port = fields[1].partition(":")
            if fields[3] == _LISTENS and address not in nearby:
                found[f"socket:[{fields[9]}]"] = f"port {int(port, 16)}"
    return found


def _open_files(process_id: int) -> list[str]:
    found = []
    try:
        for place in Path(f"/proc/{process_id}/fd").iterdir():
            found.append(str(place.readlink()))
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return found  # gone, or closed to its own user
    return found


def _signal(process_id: int, number: int) -> None:
    try:
        os.kill(process_id, number)
    except ProcessLookupError:
        return


def _reap(process_id: int) -> None:
    try:
        os.waitpid(process_id, os.WNOHANG)
    except ChildProcessError:
        return


def _descendants() -> set[int]:
    """The ids of all processes that this one started, and theirs."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The command's name may hold spaces and brackets; the parent's id is second after it.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for process_id in children.get(waiting.pop(), []):
            found.add(process_id)
            waiting.append(process_id)
    return found
