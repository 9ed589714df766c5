"""A TCP proxy on loopback that cuts, freezes and slows what passes, and says when it did."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Proxy:
    """Passes bytes between whoever dials it and a port, until told otherwise.

    ``cut_after`` lets so many more bytes pass and then cuts every connection; nobody gets through
    until ``restore``, or until ``refusals`` dials were turned away. ``freeze`` keeps connections
    open and passes nothing, like a cable that was pulled out.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Condition()
        self._left: int | None = None
        self._is_down = False
        self._is_frozen = False
        self._refusals: int | None = None
        self._rate: int | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_closed = False
        self.num_cuts = 0
        self.num_refused = 0
        self.num_bytes = 0
        self.was_cut = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut_after(self, num_bytes: int, *, refusals: int | None = None) -> None:
        with self._lock:
            self.was_cut.clear()
            self._left, self._refusals = num_bytes, refusals
            if num_bytes <= 0:
                self._cut()

    def cut(self, *, refusals: int | None = None) -> None:
        self.cut_after(0, refusals=refusals)

    def freeze(self) -> None:
        with self._lock:
            self._is_frozen = True

    def restore(self) -> None:
        with self._lock:
            self._is_down = self._is_frozen = False
            self._left = None
            self._lock.notify_all()

    def slow_down(self, bytes_per_second: int | None) -> None:
        self._rate = bytes_per_second

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
            self._hang_up()
        # A thread in accept() is woken up by a last connection.
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
        self._accepting.join(5)
        self._listener.close()

    def _hang_up(self) -> None:
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def _cut(self) -> None:
        self._left = None
        self._is_down = True
        self.num_cuts += 1
        self._hang_up()
        self.was_cut.set()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            with self._lock:
                if self._is_closed:
                    near.close()
                    return
                if self._is_down:
                    self.num_refused += 1
                    near.close()
                    if self._refusals is not None:
                        self._refusals -= 1
                        self._is_down = self._refusals > 0
                    continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16384):
                sink.sendall(self._passed(data))
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            source.close()

    def _passed(self, data: bytes) -> bytes:
        """What of it may go on; the rest is lost with the connection."""
        if self._rate is not None:
            time.sleep(len(data) / self._rate)
        with self._lock:
            self._lock.wait_for(lambda: not self._is_frozen or self._is_closed)
            if self._left is not None:
                if len(data) >= self._left:
                    data = data[: self._left]
                    self._cut()
                    return data
                self._left -= len(data)
            self.num_bytes += len(data)
        return data
