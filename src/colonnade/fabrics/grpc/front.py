"""A front before a gRPC listener: it accepts connections, within caps and deadlines.

gRPC accepts every connection that comes and gives it a file handle, so a stranger with a few
hundred silent connections leaves none for parties, the register and the ledger. The front holds
strangers to a share: so many connections in all, so many of one address, so many new ones of one
address in a minute, and a deadline for the first byte. Only a connection that has said something
is passed on, byte by byte, to the listener's socket in a private directory. TLS is between the
party and the listener: the front sees ciphertext.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import resource
import socket
import tempfile
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from colonnade.core.errors import ConfigError

__all__ = ["Front", "FrontLimits", "FrontStatus"]

# File handles kept back for register, ledger, logs, run directory and Python itself.
RESERVED_FILES = 64
# A connection's own, the front's end of the inner one, and the listener's end.
_FILES_EACH = 3
_MINUTE_SECONDS = 60.0
# Addresses whose new connections are counted; the oldest are forgotten first.
_MOST_ADDRESSES = 4096


@dataclass(frozen=True, kw_only=True)
class FrontLimits:
    """How many connections there may be.

    Attributes:
        total: In all; fewer where the process may open few files.
        per_address: Of one address at a time.
        per_minute: New ones of one address in a minute.
        first_byte_seconds: How long a connection may be silent at its beginning.
    """

    total: int = 1024
    per_address: int = 64
    per_minute: int = 600
    first_byte_seconds: float = 5.0


@dataclass
class FrontStatus:
    """Counts for metrics."""

    num_open: int = 0
    num_accepted: int = 0
    num_silent: int = 0
    num_turned_away: Counter[str] = field(default_factory=Counter)


class Front:
    """Listens at an address and passes connections on to a socket; lives on an event loop.

    ``before_passing`` is awaited before a connection that has said something is passed on. A peer
    whose machine confirms nothing for ``gone_after`` seconds is gone.
    """

    def __init__(
        self,
        limits: FrontLimits | None = None,
        *,
        before_passing: Callable[[], Awaitable[None]] | None = None,
        gone_after: float = 10.0,
    ) -> None:
        self.limits = limits or FrontLimits()
        self._before_passing = before_passing
        self._gone_after = gone_after
        self.status = FrontStatus()
        self._place = tempfile.TemporaryDirectory(prefix="colonnade-")
        # Only this user may enter the directory.
        self.socket = Path(self._place.name) / "listener.sock"
        self._open: Counter[str] = Counter()
        self._recent: dict[str, deque[float]] = {}
        self._passing: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def start(self, address: str) -> int:
        """Listen at HOST:PORT; returns the port."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        loop = asyncio.get_running_loop()
        try:
            if host == "::" and socket.has_dualstack_ipv6():
                own = socket.create_server(
                    (host, int(port)), family=socket.AF_INET6, dualstack_ipv6=True
                )
                self._listener = await loop.create_server(self._made, sock=own)
            else:
                self._listener = await loop.create_server(self._made, host, int(port))
        except (OSError, ValueError, OverflowError) as error:
            self._place.cleanup()
            raise ConfigError(
                f"hub.address: can't listen on {address}; another command of this federation may "
                f"hold the port (train, predict, evaluate, serve, or enrol --renewals): {error}"
            ) from error
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Accept no more, wait a little for what is open, and end it."""
        if self._listener is not None:
            self._listener.close()
        if self._passing and grace_seconds:
            await asyncio.wait(self._passing, timeout=min(grace_seconds, 1.0))
        for task in list(self._passing):
            task.cancel()
        if self._passing:
            await asyncio.wait(self._passing, timeout=5)
        self._place.cleanup()

    @property
    def most_open(self) -> int:
        """Connections that may be open at a time: within the limit on files too."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return self.limits.total
        own = _FILES_EACH * self.status.num_open
        free = files - RESERVED_FILES - max(0, _num_open_files() - own)
        return max(1, min(self.limits.total, free // _FILES_EACH))

    def _refusal(self, address: str) -> str:
        """Why a new connection is turned away; empty if it is not."""
        if self.status.num_open >= self.most_open:
            return "total"
        if self._open[address] >= self.limits.per_address:
            return "address"
        now = time.monotonic()
        recent = self._recent.pop(address, deque())
        while recent and now - recent[0] > _MINUTE_SECONDS:
            recent.popleft()
        self._recent[address] = recent
        while len(self._recent) > _MOST_ADDRESSES:
            del self._recent[next(iter(self._recent))]
        if len(recent) >= self.limits.per_minute:
            return "rate"
        recent.append(now)
        return ""

    def _made(self) -> _End:
        return _End(self._arrived)

    def _arrived(self, end: _End) -> None:
        """Somebody has connected; from here on a task of its own deals with it."""
        address = _address_of(end.transport)
        refusal = self._refusal(address)
        if refusal:
            self.status.num_turned_away[refusal] += 1
            end.transport.abort()
            return
        self.status.num_accepted += 1
        self.status.num_open += 1
        self._open[address] += 1
        task = asyncio.ensure_future(self._accepted(end, address))
        self._passing.add(task)

    async def _accepted(self, end: _End, address: str) -> None:
        try:
            await self._pass_on(end)
        except (OSError, asyncio.CancelledError):
            pass  # either side has gone, or the hub ends
        finally:
            end.transport.abort()
            task = asyncio.current_task()
            assert task is not None
            self._passing.discard(task)
            self.status.num_open -= 1
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    async def _pass_on(self, outer: _End) -> None:
        try:
            async with asyncio.timeout(self.limits.first_byte_seconds):
                await outer.has_begun.wait()
        except TimeoutError:
            self.status.num_silent += 1
            return
        if outer.has_ended.is_set():
            return
        self._let_the_kernel_notice(outer.transport)
        if self._before_passing is not None:
            await self._before_passing()
        loop = asyncio.get_running_loop()
        _, inner = await loop.create_unix_connection(_End, str(self.socket))
        try:
            outer.join(inner)
            ways = [asyncio.ensure_future(end.has_ended.wait()) for end in (outer, inner)]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                # The other way may still have last words.
                await asyncio.wait(ways, timeout=1.0)
            finally:
                for way in ways:
                    way.cancel()
        finally:
            inner.transport.abort()

    def _let_the_kernel_notice(self, transport: asyncio.Transport) -> None:
        """Have a peer found dead that confirms nothing; it tells slow from dead."""
        connection = transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(self._gone_after * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


class _End(asyncio.Protocol):
    """One end of a connection that is passed on: what comes in goes out at the other end.

    Until it is joined to another end, it reads once and no more. Reading stops while the other
    end's peer takes nothing.
    """

    transport: asyncio.Transport

    def __init__(self, arrived: Callable[[_End], None] = lambda end: None) -> None:
        self._arrived = arrived
        self._first = b""
        self._other: asyncio.Transport | None = None
        # Something came, or the end of it.
        self.has_begun = asyncio.Event()
        self.has_ended = asyncio.Event()

    def join(self, other: _End) -> None:
        """Pass on what has come already, and all that comes from now on, both ways."""
        self._other, other._other = other.transport, self.transport
        for end, there in ((self, other), (other, self)):
            there.transport.write(end._first)
            end._first = b""
            if end.has_ended.is_set():
                _end_writing(there.transport)
            else:
                end.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It begins."""
        # By what it does: other event loops than asyncio's own have transports of another class.
        self.transport = cast(asyncio.Transport, transport)
        self._arrived(self)

    def data_received(self, data: bytes) -> None:
        """Hand it on."""
        if self._other is not None:
            self._other.write(data)
            return
        self._first += data
        self.transport.pause_reading()
        self.has_begun.set()

    def eof_received(self) -> bool:
        """This way is over; the other one goes on."""
        self._is_over()
        return True

    def connection_lost(self, _: Exception | None) -> None:
        """Both ways are over."""
        self._is_over()

    def _is_over(self) -> None:
        if not self.has_ended.is_set():
            self.has_ended.set()
            self.has_begun.set()
            if self._other is not None:
                _end_writing(self._other)

    def pause_writing(self) -> None:
        """Its peer takes nothing: nothing more is read for it."""
        if self._other is not None and not self._other.is_closing():
            self._other.pause_reading()

    def resume_writing(self) -> None:
        """Its peer takes more."""
        if self._other is not None and not self._other.is_closing():
            self._other.resume_reading()


def _end_writing(transport: asyncio.Transport) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        if not transport.is_closing():
            transport.write_eof()


def _address_of(transport: asyncio.Transport) -> str:
    """Whom a connection counts for: an IPv4 address, or an IPv6 network of 64 bits."""
    peer = transport.get_extra_info("peername")
    if not peer:
        return "unknown"
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


def _num_open_files() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return RESERVED_FILES // 2  # not known on this system
