"""The label holder's endpoint: parties dial in here, each keeps one stream per lane.

A session is one use of the links of one lane (a training, an alignment). Calls are numbered within
a session, kept until the party has taken them up, and sent again after a cut. A party that comes
back as another process has lost its half of the session; the session's fabric is told so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from colonnade.core.errors import (
    ColonnadeError,
    ConfigError,
    IdentityRefused,
    ProtocolError,
    RunError,
)
from colonnade.core.fabric import Clock
from colonnade.fabrics.grpc.arrivals import Arrivals
from colonnade.fabrics.grpc.call_queue import CallQueue
from colonnade.fabrics.grpc.event_loop import do_there, run_there
from colonnade.fabrics.grpc.frames import (
    RELEASE,
    FrameKind,
    Hello,
    Notice,
    Opening,
    decode_frames,
    encode_frame,
)
from colonnade.fabrics.grpc.front import Front, FrontLimits
from colonnade.fabrics.grpc.identity import Identity
from colonnade.fabrics.grpc.link_settings import METHOD, MOST_LANES, SWEEP_SECONDS, LinkSpec
from colonnade.fabrics.grpc.party_links import LinkStatus, PartyLink, PartyStream
from colonnade.fabrics.grpc.stream_operations import StreamOperations

__all__ = ["Admit", "Hub"]

# Gives the name that a peer's certificate (PEM) is for, or raises IdentityRefused.
Admit = Callable[[bytes], str]

_LOG = logging.getLogger("colonnade.hub")


class Hub:
    """Listens for parties; everything but the public methods runs on the event loop.

    ``admit`` gives the name that a certificate is for; TLS has already checked that the
    federation's authority signed it and that it has not expired. ``handlers`` answer other calls
    at the same address, with the same certificates. With ``front`` strangers are held to these
    numbers of connections before they reach gRPC. ``note`` is told when a session begins and ends.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        admit: Admit,
        address: str = "127.0.0.1:0",
        links: LinkSpec | None = None,
        handlers: Sequence[grpc.GenericRpcHandler] = (),
        front: FrontLimits | None = None,
        note: Callable[[str, Mapping[str, Any]], None] = lambda event, fields: None,
    ) -> None:
        self.links = links or LinkSpec()
        self._handlers = tuple(handlers)
        self._identity = identity
        self._admit = admit
        self._note = note
        # By party and lane.
        self._known: dict[tuple[str, int], PartyLink] = {}
        self._changed = threading.Condition()
        self.front = (
            None if front is None else Front(front, gone_after=self.links.keepalive_timeout)
        )
        self.port = run_there(self._start(address))

    @property
    def identity(self) -> Identity:
        """The identity that it shows to parties."""
        return self._identity

    # From the thread that runs the method

    def open(
        self,
        parties: Iterable[str],
        *,
        purpose: str,
        arrivals: Arrivals,
        clock: Clock,
        lane: int = 0,
    ) -> dict[str, CallQueue]:
        """Begin a session with these parties; a party that connects later joins it then."""
        opening = Opening(secrets.randbits(63) | 1, purpose)
        parties = tuple(parties)
        self._note("session began", {"purpose": purpose, "parties": list(parties)})
        queues = {
            name: CallQueue(
                name, opening, arrivals=arrivals, clock=clock, spec=self.links, lane=lane
            )
            for name in parties
        }
        run_there(self._open(queues))
        return queues

    def close_session(self, queues: Mapping[str, CallQueue]) -> None:
        """End a session; calls under way are dropped."""
        run_there(self._close_session(queues))
        for opening in {calls.opening for calls in queues.values()}:
            self._note("session ended", {"purpose": opening.purpose, "parties": list(queues)})

    def wake(self, queues: Mapping[str, CallQueue]) -> None:
        """Have the queued calls written to the streams."""
        do_there(self._wake, queues)

    def status(self) -> dict[str, LinkStatus]:
        """The status of every party since the hub began, over all its links."""
        found: dict[str, LinkStatus] = {}
        for (name, _), link in sorted(self._known.items()):
            found[name] = found.get(name, LinkStatus()).beside(link.status)
        return found

    def owed_seconds(self) -> dict[str, float]:
        """How long each party has owed an answer by now, on the lane where it is longest."""
        found: dict[str, float] = {}
        for (name, _), link in sorted(self._known.items()):
            owed = 0.0 if link.calls is None else link.calls.owed_seconds
            found[name] = max(found.get(name, 0.0), owed)
        return found

    def wait_for(
        self, names: Iterable[str], timeout: float | None = None, *, lane: int = 0
    ) -> tuple[str, ...]:
        """Wait until all are connected; returns those that are not when the time is over."""
        wanted = sorted(names)

        def absent() -> tuple[str, ...]:
            links = {name: self._known.get((name, lane)) for name in wanted}
            return tuple(
                name for name, link in links.items() if link is None or not link.status.is_connected
            )

        with self._changed:
            self._changed.wait_for(lambda: not absent(), timeout)
            return absent()

    def disconnect(self, name: str, reason: str, *, for_good: bool = True) -> None:
        """Refuse a party that is connected, e.g. because its certificate was revoked.

        Unless it is for good, the party's agent goes on dialling.
        """
        run_there(self._disconnect(name, reason, "IdentityRefused" if for_good else "RunError"))

    def renew(self, identity: Identity) -> None:
        """Use another certificate from now on; this cuts the links for a moment.

        gRPC could ask for the certificate at every handshake instead, but it asks from threads of
        its own and has crashed doing so.
        """
        if identity != self._identity:
            self._identity = identity
            run_there(self._listen_anew())

    def close(self) -> None:
        """End all streams and stop listening."""
        run_there(self._stop())

    # On the event loop

    async def _start(self, address: str) -> int:
        if self.front is None:
            host, _, _ = address.rpartition(":")
            port = await self._listen(address)
            self._address = f"{host}:{port}"
        else:
            self._address = f"unix:{self.front.socket}"
            port = await self.front.start(address)
            await self._listen(self._address)
        self._sweeping = asyncio.ensure_future(self._sweep())
        return port

    async def _listen(self, address: str) -> int:
        hello = int(self.links.hello_timeout * 1000)
        self._server = grpc.aio.server(
            options=[
                *self.links.options(),
                ("grpc.so_reuseport", 0),
                # Whoever has not shown a certificate by then, or calls nobody, has to go.
                ("grpc.server_handshake_timeout_ms", hello),
                ("grpc.max_connection_idle_ms", max(60_000, hello)),
                ("grpc.max_concurrent_streams", 8),
            ]
        )
        handler = grpc.stream_stream_rpc_method_handler(self._connected)
        service, _, method = METHOD[1:].partition("/")
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}), *self._handlers)
        )
        own = self._identity
        credentials = grpc.ssl_server_credentials(
            [(own.key, own.certificate)], own.authority, require_client_auth=True
        )
        try:
            port: int = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ConfigError(f"hub.address: can't listen behind {address}: {error}") from error
        await self._server.start()
        return port

    async def _listen_anew(self) -> None:
        await self._server.stop(None)
        for pause in (0.0, 0.1, 0.3, 1.0, 3.0):
            await asyncio.sleep(pause)
            try:
                await self._listen(self._address)
            except ConfigError as error:
                _LOG.warning("%s", error)
            else:
                return
        raise RunError(f"{self._address}: the hub can't listen there any more; start it again")

    async def _stop(self) -> None:
        self._sweeping.cancel()
        if self.front is not None:
            await self.front.stop()
        await self._server.stop(None)

    async def _open(self, queues: Mapping[str, CallQueue]) -> None:
        for name, calls in queues.items():
            link = self._link(name, calls.lane)
            self._end_calls(link)
            link.calls = calls
            if link.stream is not None:
                self._begin(link.stream, calls)

    def _link(self, name: str, lane: int) -> PartyLink:
        return self._known.setdefault((name, lane), PartyLink(name, lane))

    def _begin(self, stream: PartyStream, calls: CallQueue) -> None:
        calls.incarnation = stream.incarnation
        calls.outbox.rewind(0)
        stream.send(encode_frame(FrameKind.OPEN, calls.opening))

    def _end_calls(self, link: PartyLink) -> None:
        if link.calls is not None:
            link.calls.outbox.close()
            link.calls = None

    async def _close_session(self, queues: Mapping[str, CallQueue]) -> None:
        for name, calls in queues.items():
            link = self._link(name, calls.lane)
            if link.calls is calls:
                self._end_calls(link)
                if link.stream is not None:
                    link.stream.send(encode_frame(FrameKind.CLOSE, calls.opening))
            calls.outbox.close()

    def _wake(self, queues: Mapping[str, CallQueue]) -> None:
        for name, calls in queues.items():
            stream = self._link(name, calls.lane).stream
            if stream is not None and calls.outbox.has_unsent:
                stream.has_news.set()

    async def _sweep(self) -> None:
        """Write out calls and acknowledgements that nothing else has sent along."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for link in self._known.values():
                calls, stream = link.calls, link.stream
                if calls is None or stream is None:
                    continue
                if calls.outbox.has_unsent or calls.seen > calls.acknowledged:
                    stream.has_news.set()

    async def _disconnect(self, name: str, reason: str, kind: str) -> None:
        for link in [link for (known, _), link in self._known.items() if known == name]:
            stream = link.stream
            if stream is not None:
                # From now on its frames are dropped; the party ends it when it has the reason.
                link.detach()
                await stream.end(encode_frame(FrameKind.REFUSE, Notice(kind, reason)))

    async def _connected(self, _: Any, context: Any) -> None:
        """One stream of one party, from its hello to its end."""
        link: PartyLink | None = None
        stream: PartyStream | None = None
        wire = StreamOperations(context)
        try:
            name = self._admitted(context)
            async with asyncio.timeout(self.links.hello_timeout):
                hello, lane, received = await self._hello(wire, name)
            link = self._link(name, lane)
            stream = PartyStream(wire, hello)
            await wire.write(self._attach(link, stream, hello, received))
            stream.writing = asyncio.ensure_future(
                link.write(stream, self.links.message_bytes // 2)
            )
            await link.read(stream)
        except ColonnadeError as error:
            await self._refuse(wire, link, stream, error)
        except (TimeoutError, EOFError) as error:
            _LOG.info("a stream ended: %s", type(error).__name__)
        finally:
            if stream is not None:
                if link is not None and link.stream is stream:
                    link.detach()
                await stream.end()

    def _admitted(self, context: Any) -> str:
        certificate = context.auth_context().get("x509_pem_cert", [b""])[0]
        if not certificate:
            raise IdentityRefused("no certificate; every party needs one of this federation")
        return self._admit(certificate)

    async def _hello(self, wire: StreamOperations, name: str) -> tuple[Hello, int, int]:
        message = await wire.read()
        if message is grpc.aio.EOF:
            raise EOFError
        frame, *rest = decode_frames(message)
        hello = frame.body
        if frame.kind is not FrameKind.HELLO or not isinstance(hello, Hello) or rest:
            raise ProtocolError(f"a stream begins with HELLO alone, not with {frame.kind.name}")
        if hello.name != name:
            raise IdentityRefused(
                f"the certificate belongs to '{name}', and the hello says '{hello.name}'"
            )
        if frame.id >= MOST_LANES:
            raise ProtocolError(f"lane {frame.id}; a party has at most {MOST_LANES}")
        return hello, frame.id, frame.seen

    def _attach(self, link: PartyLink, stream: PartyStream, hello: Hello, received: int) -> bytes:
        """Make it the party's stream; returns the WELCOME frame."""
        if link.stream is not None:
            if link.stream.incarnation != stream.incarnation:
                raise RunError(
                    f"party '{link.name}' is connected already, by another process; stop that one, "
                    "or wait until its connection is found dead"
                )
            # A read under way is not cancelled: the old stream ends by itself, its frames dropped.
            link.stream.is_ending = True
            link.stream.has_news.set()
        link.stream = stream
        calls = link.calls
        welcome, seen = Opening(0, ""), 0
        if calls is not None:
            welcome, seen = calls.opening, calls.seen
            calls.acknowledged = 0
            if hello.session == calls.session:
                calls.outbox.rewind(received)
            elif calls.incarnation in (None, stream.incarnation):
                self._begin(stream, calls)
            else:
                link.status.num_restarts += 1
                calls.lose()
        stream.has_news.set()
        link.status.num_connects += 1
        link.status.is_connected = True
        _LOG.info("party '%s' is connected", link.name)
        with self._changed:
            self._changed.notify_all()
        link.status.release = hello.release
        if hello.release != RELEASE:
            _LOG.warning(
                "party '%s' runs colonnade %s, this hub %s", link.name, hello.release, RELEASE
            )
        return encode_frame(FrameKind.WELCOME, replace(welcome, release=RELEASE), seen=seen)

    async def _refuse(
        self,
        wire: StreamOperations,
        link: PartyLink | None,
        stream: PartyStream | None,
        error: ColonnadeError,
    ) -> None:
        kind = type(error).__name__
        _LOG.warning("%s refused: %s: %s", "a peer" if link is None else link.name, kind, error)
        if link is not None:
            link.status.num_refused += 1
            link.status.last_error = f"{kind}: {error}"
        if isinstance(error, IdentityRefused) and error.may_pass:
            kind = RunError.__name__  # so that the party goes on dialling
        notice = encode_frame(FrameKind.REFUSE, Notice(kind, str(error)))
        if stream is not None and stream.writing is not None:
            await stream.end(notice)
        else:
            with contextlib.suppress(Exception):
                await wire.write(notice)
