"""The callers of ``bench serve``: a closed connection is no end of a measurement."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import colonnade.bench.serving_speed
from colonnade.bench import run_bench
from colonnade.bench.callers import NO_ANSWER, call_at_rate, call_in_turn
from colonnade.core.errors import RunError

_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"predictions":[]}'


@contextmanager
def service(*per_connection: bytes | None) -> Iterator[int]:
    """Answers connections one after the other: each gets its answers, then it is closed.

    The last one goes for every further connection.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            number = 0
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    if not connection.recv(65536):
                        return
                    answer = per_connection[min(number, len(per_connection) - 1)]
                    if answer is not None:
                        connection.sendall(answer)
                number += 1

        thread = threading.Thread(target=serve)
        thread.start()
        port = int(listener.getsockname()[1])
        yield port
        with socket.create_connection(("127.0.0.1", port)):
            pass
        thread.join()


def test_a_connection_that_was_closed_while_idle_is_opened_again() -> None:
    with service(_ANSWER) as port:
        calls = call_in_turn(port, num_requests=5, content=lambda number: {"ids": [number]})
    assert calls.told_statuses() == {"200": 5}


@pytest.mark.parametrize("answer", [None, _ANSWER[:30], _ANSWER[:-3]])
def test_a_request_that_the_service_hangs_up_on_counts_as_failed(answer: bytes | None) -> None:
    with service(answer, _ANSWER) as port:
        calls = call_at_rate(
            port, rate=1000.0, num_requests=1, content=lambda number: {"ids": [number]}
        )
    assert calls.in_order == [NO_ANSWER]
    assert calls.num_failed == 1


def test_a_pipe_that_ends_is_told_as_an_error_and_not_as_ctrl_d(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(fast: bool) -> list[dict[str, object]]:
        raise asyncio.IncompleteReadError(b"", 1)

    monkeypatch.setattr(colonnade.bench.serving_speed, "bench_serve", broken)
    with pytest.raises(RunError, match="one of its processes ended"):
        run_bench("serve")
