"""The label holder's endpoint: parties dial in here, each keeps one stream.

A session is one use of the links (a training, an alignment): calls are numbered within it, kept
until the party has taken them up, and sent again after a cut. A party that comes back as another
process has lost its half of the session, which is told to whoever waits for it.
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
from colonnade.fabrics.grpc.event_loop import event_loop, run_there
from colonnade.fabrics.grpc.frames import (
    Hello,
    Kind,
    Notice,
    Opening,
    decode_frames,
    encode_frame,
)
from colonnade.fabrics.grpc.identity import Identity
from colonnade.fabrics.grpc.lines import Line
from colonnade.fabrics.grpc.posts import Arrivals, Post
from colonnade.fabrics.grpc.settings import METHOD, SWEEP_SECONDS, LinkSpec
from colonnade.fabrics.grpc.streams import Link, LinkStatus, Stream

__all__ = ["Admit", "Hub"]

# A peer's certificate (PEM) to the name that it stands for; or IdentityRefused.
Admit = Callable[[bytes], str]

_LOG = logging.getLogger("colonnade.hub")


class Hub:
    """Listens for parties; everything but the public methods runs on the event loop.

    ``admit`` decides who a certificate belongs to; TLS has already checked that the federation's
    authority signed it and that it has not expired. ``handlers`` answer other calls over the same
    links, with the same certificates.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        admit: Admit,
        address: str = "127.0.0.1:0",
        links: LinkSpec | None = None,
        handlers: Sequence[grpc.GenericRpcHandler] = (),
    ) -> None:
        self.links = links or LinkSpec()
        self._handlers = tuple(handlers)
        self._identity = identity
        self._admit = admit
        self._known: dict[str, Link] = {}
        self._changed = threading.Condition()
        self.port = run_there(self._start(address))

    # From the thread that runs the method

    def open(
        self, parties: Iterable[str], *, purpose: str, arrivals: Arrivals, clock: Clock
    ) -> dict[str, Post]:
        """Begin a session with these parties; whoever is not there yet joins when it comes."""
        session = secrets.randbits(63) | 1
        posts = {
            name: Post(
                party=name,
                session=session,
                purpose=purpose,
                arrivals=arrivals,
                clock=clock,
                spec=self.links,
            )
            for name in parties
        }
        run_there(self._open(posts))
        return posts

    def close_session(self, posts: Mapping[str, Post]) -> None:
        """End a session; calls under way are forgotten."""
        run_there(self._close_session(posts))

    def wake(self, posts: Mapping[str, Post]) -> None:
        """Have what was sent written out."""
        event_loop().call_soon_threadsafe(self._wake, posts)

    def status(self) -> dict[str, LinkStatus]:
        """How every link that was ever there is doing."""
        return {name: replace(link.status) for name, link in sorted(self._known.items())}

    def wait_for(self, names: Iterable[str], timeout: float | None = None) -> tuple[str, ...]:
        """Wait until all of them are connected; those who are not when the time is over."""
        wanted = sorted(names)

        def absent() -> tuple[str, ...]:
            known = self._known
            return tuple(
                name for name in wanted if name not in known or not known[name].status.is_connected
            )

        with self._changed:
            self._changed.wait_for(lambda: not absent(), timeout)
            return absent()

    def disconnect(self, name: str, reason: str) -> None:
        """Refuse a party that is connected, e.g. because its certificate was revoked."""
        run_there(self._disconnect(name, reason))

    def renew(self, identity: Identity) -> None:
        """Use another certificate from now on; links are cut for a moment and made anew.

        gRPC could ask for the certificate at every handshake instead. But it asks from threads of
        its own, and has crashed doing so.
        """
        if identity != self._identity:
            self._identity = identity
            run_there(self._listen_anew())

    def close(self) -> None:
        """Hang up on everybody and stop listening."""
        run_there(self._stop())

    # On the event loop

    async def _start(self, address: str) -> int:
        host, _, _ = address.rpartition(":")
        port = await self._listen(address)
        self._address = f"{host}:{port}"
        self._sweeping = asyncio.ensure_future(self._sweep())
        return port

    async def _listen(self, address: str) -> int:
        self._server = grpc.aio.server(options=[*self.links.options(), ("grpc.so_reuseport", 0)])
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
            raise ConfigError(f"hub.address: can't listen on {address}: {error}") from error
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
        await self._server.stop(None)

    async def _open(self, posts: Mapping[str, Post]) -> None:
        for name, post in posts.items():
            link = self._known.setdefault(name, Link(name))
            self._let_go(link)
            link.post = post
            if link.stream is not None:
                self._begin(link.stream, post)

    def _begin(self, stream: Stream, post: Post) -> None:
        post.incarnation = stream.incarnation
        post.outbox.rewind(0)
        opening = Opening(post.session, post.purpose)
        stream.control.append(encode_frame(Kind.OPEN, opening))
        stream.has_news.set()

    def _let_go(self, link: Link) -> None:
        if link.post is not None:
            link.post.outbox.close()
            link.post = None

    async def _close_session(self, posts: Mapping[str, Post]) -> None:
        for name, post in posts.items():
            link = self._known[name]
            if link.post is post:
                self._let_go(link)
                if link.stream is not None:
                    link.stream.control.append(
                        encode_frame(Kind.CLOSE, Opening(post.session, post.purpose))
                    )
                    link.stream.has_news.set()
            post.outbox.close()

    def _wake(self, posts: Mapping[str, Post]) -> None:
        for name, post in posts.items():
            stream = self._known[name].stream
            if stream is not None and post.outbox.has_unsent:
                stream.has_news.set()

    async def _sweep(self) -> None:
        """Write out what waits for company that does not come."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for link in self._known.values():
                post, stream = link.post, link.stream
                if post is None or stream is None:
                    continue
                if post.outbox.has_unsent or post.seen > post.acknowledged:
                    stream.has_news.set()

    async def _disconnect(self, name: str, reason: str) -> None:
        link = self._known.get(name)
        if link is None or link.stream is None:
            return
        stream = link.stream
        # From now on nothing of it is heard; it hangs up when it has heard why.
        link.detach()
        await stream.end(encode_frame(Kind.REFUSE, Notice("IdentityRefused", reason)))

    async def _connected(self, _: Any, context: Any) -> None:
        """One stream of one party, from its hello to its end."""
        link: Link | None = None
        stream: Stream | None = None
        line = Line(context)
        try:
            name = self._admitted(context)
            async with asyncio.timeout(self.links.hello_timeout):
                hello, received = await self._hello(line, name)
            link = self._known.setdefault(name, Link(name))
            stream = Stream(line, hello)
            await line.write(self._attach(link, stream, hello, received))
            stream.writing = asyncio.ensure_future(
                link.write(stream, self.links.message_bytes // 2)
            )
            await link.read(stream)
        except ColonnadeError as error:
            await self._refuse(line, link, stream, error)
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

    async def _hello(self, line: Line, name: str) -> tuple[Hello, int]:
        message = await line.read()
        if message is grpc.aio.EOF:
            raise EOFError
        frame, *rest = decode_frames(message)
        hello = frame.body
        if frame.kind is not Kind.HELLO or not isinstance(hello, Hello) or rest:
            raise ProtocolError(f"a stream begins with HELLO alone, not with {frame.kind.name}")
        if hello.name != name:
            raise IdentityRefused(
                f"the certificate belongs to '{name}', and the hello says '{hello.name}'"
            )
        return hello, frame.seen

    def _attach(self, link: Link, stream: Stream, hello: Hello, received: int) -> bytes:
        """Make it the party's stream; gives the welcome."""
        if link.stream is not None:
            if link.stream.incarnation != stream.incarnation:
                raise RunError(
                    f"party '{link.name}' is connected already, by another process; stop that one, "
                    "or wait until its connection is found dead"
                )
            # A read under way is not cancelled: the old stream ends by itself, unheard.
            link.stream.is_ending = True
            link.stream.has_news.set()
        link.stream = stream
        post = link.post
        if post is None:
            welcome, seen = Opening(0, ""), 0
        else:
            welcome, seen = Opening(post.session, post.purpose), post.seen
        if post is not None:
            post.acknowledged = 0
            if hello.session == post.session:
                post.outbox.rewind(received)
            elif post.incarnation in (None, stream.incarnation):
                self._begin(stream, post)
            else:
                link.status.num_restarts += 1
                post.lose()
        stream.has_news.set()
        link.status.num_connects += 1
        link.status.is_connected = True
        _LOG.info("party '%s' is connected", link.name)
        with self._changed:
            self._changed.notify_all()
        return encode_frame(Kind.WELCOME, welcome, seen=seen)

    async def _refuse(
        self, line: Line, link: Link | None, stream: Stream | None, error: ColonnadeError
    ) -> None:
        kind = type(error).__name__
        _LOG.warning("%s refused: %s: %s", "a peer" if link is None else link.name, kind, error)
        if link is not None:
            link.status.num_refused += 1
            link.status.last_error = f"{kind}: {error}"
        if isinstance(error, IdentityRefused) and error.may_pass:
            kind = RunError.__name__  # so the party goes on dialling
        notice = encode_frame(Kind.REFUSE, Notice(kind, str(error)))
        if stream is not None and stream.writing is not None:
            await stream.end(notice)
        else:
            with contextlib.suppress(Exception):
                await line.write(notice)
