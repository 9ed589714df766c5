"""The one event loop of a process's links."""

from __future__ import annotations

import subprocess
import sys

# Lanes of an agent begin at the same time, each in a thread of its own.
TOGETHER = """
import sys, threading
from colonnade.fabrics.grpc.event_loop import event_loop
sys.setswitchinterval(1e-6)
found, start = set(), threading.Barrier(16)
def ask():
    start.wait()
    found.add(event_loop())
threads = [threading.Thread(target=ask) for _ in range(16)]
[item.start() for item in threads]
[item.join() for item in threads]
print(len(found))
"""


def test_threads_that_ask_at_the_same_time_get_the_same_loop() -> None:
    """News on another loop would wake nobody: a reply waited for the next sweep, 20 ms."""
    said = subprocess.run(
        [sys.executable, "-c", TOGETHER], check=True, capture_output=True, text=True
    )
    assert said.stdout == "1\n"
