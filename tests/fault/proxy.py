"""A TCP proxy on loopback that cuts, freezes, swallows and slows what passes, and says when."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Literal

Fault = Literal["cut", "freeze", "swallow"]


class Proxy:
    """Passes bytes between whoever dials it and a port, until told otherwise.

    ``fail_after`` lets so many more bytes pass and then does one of these, until ``restore``:

    - ``cut``: every connection is closed, and whoever dials is turned away (with ``refusals`` only
      so many times);
    - ``freeze``: connections stay open and nothing passes, like a cable that was pulled out. What
      was on its way arrives when it is plugged in again, as TCP sees to it;
    - ``swallow``: connections stay open and everything is lost, like behind a firewall that has
      forgotten them. Those connections stay mute for good; only new ones work afterwards.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Condition()
        self._left: int | None = None
        self._fault: Fault = "cut"
        self._is_down = False
        self._is_frozen = False
        self._is_swallowing = False
        self._refusals: int | None = None
        self._rate: int | None = None
        self._pairs: list[_Pair] = []
        self._is_closed = False
        self.num_cuts = 0
        self.num_refused = 0
        self.num_bytes = 0
        self.num_swallowed = 0
        self.num_unheard = 0
        self.seconds_slowed = 0.0
        self.was_cut = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def fail_after(self, num_bytes: int, fault: Fault, *, refusals: int | None = None) -> None:
        with self._lock:
            self.was_cut.clear()
            self._left, self._fault, self._refusals = num_bytes, fault, refusals
            if num_bytes <= 0:
                self._fail()

    def cut_after(self, num_bytes: int, *, refusals: int | None = None) -> None:
        self.fail_after(num_bytes, "cut", refusals=refusals)

    def cut(self, *, refusals: int | None = None) -> None:
        self.cut_after(0, refusals=refusals)

    def freeze(self) -> None:
        self.fail_after(0, "freeze")

    def restore(self) -> None:
        with self._lock:
            self._is_down = self._is_frozen = self._is_swallowing = False
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
            pair.hang_up()
        self._pairs.clear()

    def _fail(self) -> None:
        self._left = None
        self.num_cuts += 1
        if self._fault == "cut":
            self._is_down = True
            self._hang_up()
        elif self._fault == "freeze":
            self._is_frozen = True
        else:
            self._is_swallowing = True
            for pair in self._pairs:
                pair.is_mute = True
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
                if self._is_swallowing:
                    # The port never hears of it; whoever dialled waits in vain.
                    self.num_unheard += 1
                    self._pairs.append(_Pair(near))
                    continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            pair = _Pair(near, far)
            with self._lock:
                self._pairs.append(pair)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(pair, source, sink), daemon=True).start()

    def _pump(self, pair: _Pair, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16384):
                sink.sendall(self._passed(pair, data))
        with self._lock:
            # That one end has closed is lost like everything else.
            self._lock.wait_for(lambda: not (self._is_frozen or pair.is_mute) or self._is_closed)
        pair.hang_up()
        with contextlib.suppress(OSError):
            source.close()

    def _passed(self, pair: _Pair, data: bytes) -> bytes:
        """What of it may go on; the rest is lost with the connection."""
        if self._rate is not None:
            time.sleep(len(data) / self._rate)
            self.seconds_slowed += len(data) / self._rate
        with self._lock:
            if self._left is not None:
                left, self._left = self._left, max(0, self._left - len(data))
                if len(data) >= left:
                    self._fail()
                    if self._fault == "cut":
                        return data[:left]
            self._lock.wait_for(lambda: not self._is_frozen or self._is_closed)
            if pair.is_mute:
                self.num_swallowed += len(data)
                return b""
            self.num_bytes += len(data)
        return data


class _Pair:
    """A connection: one end at whoever dialled, one at the port if it came so far."""

    def __init__(self, *ends: socket.socket) -> None:
        self.is_mute = False
        self._ends = ends
        for end in self._ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def hang_up(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if len(self._ends) == 1:
            # No thread waits for this one.
            self._ends[0].close()
