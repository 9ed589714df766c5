"""Strangers on the network: silent calls, idle connections, many of them.

Before, 32 silent calls blocked enrolment, and 300 idle connections left a hub of 256 files without
one to read revocations with. All traffic stays on loopback, and ends with the test.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from colonnade.core.errors import IdentityRefused
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.agent import Agent
from colonnade.fabrics.grpc.event_loop import run_there
from colonnade.fabrics.grpc.front import Front, FrontLimits
from colonnade.fabrics.grpc.identity import HUB_NAME
from colonnade.federate.certificates import key_pem, new_key
from colonnade.federate.enrolment import enrolment_service, request_enrolment
from colonnade.federate.invitations import invite
from membership import SetClock, make_federation, make_member
from networks import QUICK

HERE = Path(__file__).parent
ENROL = "/colonnade.membership.v1/Enrol"
STRANGER = "127.0.0.2"


@pytest.mark.attack(
    what="32 silent calls at the enrolment service",
    has="nothing but its address",
    before="nobody could enrol",
    now="parties enrol meanwhile",
)
def test_silent_calls_do_not_block_enrolment(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    service = enrolment_service(federation.directory, address="127.0.0.1:0")
    port = service.start()
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    with ExitStack() as around:
        around.callback(service.stop, 0)
        around.callback(over.set)
        credentials = grpc.ssl_channel_credentials(federation.authority_certificate)
        for number in range(8):
            options = [
                ("grpc.ssl_target_name_override", HUB_NAME),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.client_id", number),
            ]
            channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials, options=options)
            around.callback(channel.close)
            grpc.channel_ready_future(channel).result(20)
            for _ in range(4):
                channel.stream_unary(ENROL).future(nothing())
        assert service.front.status.num_open == 8
        invitation = invite(federation, "telco", tmp_path / "telco.invitation")
        invitation = replace(invitation, enrolment=f"127.0.0.1:{port}")
        identity = request_enrolment(invitation, key_pem(new_key()))
        assert identity.name == "telco"


@pytest.mark.attack(
    what="300 idle connections to a hub of 256 files",
    has="nothing but its address",
    before="no party was accepted, no revocation read",
    now="parties connect and revocations take effect",
)
def test_idle_connections_do_not_starve_a_hub_of_256_files(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    identity = make_member(federation, "telco")
    hub = subprocess.Popen(
        [sys.executable, str(HERE / "hub_with_few_files.py"), str(federation.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert hub.stdin is not None
    assert hub.stdout is not None
    agent: Agent | None = None
    strangers: list[socket.socket] = []
    try:
        port = int(hub.stdout.readline())
        for _ in range(300):
            stranger = socket.socket()
            strangers.append(stranger)
            stranger.bind((STRANGER, 0))
            stranger.settimeout(20)
            stranger.connect(("127.0.0.1", port))
        agent = Agent(
            identity=identity,
            address=f"127.0.0.1:{port}",
            respondent_for=lambda _: Respondent(name="telco"),
            links=QUICK,
        )
        ends: list[BaseException | None] = []

        def serve() -> None:
            try:
                agent.serve()
                ends.append(None)
            except IdentityRefused as error:
                ends.append(error)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        hub.stdin.write("strangers\n")
        hub.stdin.flush()
        assert hub.stdout.readline() == "absent ()\n"
        # The register could be read: the party is told that it was revoked.
        thread.join(60)
        assert isinstance(ends[0], IdentityRefused)
        hub.stdin.write("noticed\n")
        hub.stdin.flush()
        assert int(hub.stdout.readline()) <= 64
        assert hub.wait(60) == 0
    finally:
        if agent is not None:
            agent.stop()
        for stranger in strangers:
            stranger.close()
        hub.kill()
        hub.wait()
        hub.stdin.close()
        hub.stdout.close()


@contextmanager
def front_before_an_echo(
    limits: FrontLimits, before_passing: Callable[[], Awaitable[None]] | None = None
) -> Iterator[tuple[Front, int]]:
    front = Front(limits, before_passing=before_passing)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while content := await reader.read(1024):
            writer.write(content)
        writer.close()

    async def start() -> tuple[asyncio.Server, int]:
        inner = await asyncio.start_unix_server(echo, str(front.socket))
        return inner, await front.start("127.0.0.1:0")

    inner, port = run_there(start())

    async def stop() -> None:
        inner.close()
        await front.stop()

    try:
        yield front, port
    finally:
        run_there(stop())


def connected(port: int, address: str = "127.0.0.1") -> socket.socket:
    made = socket.socket()
    made.settimeout(20)
    made.bind((address, 0))
    made.connect(("127.0.0.1", port))
    return made


def is_answered(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"hello")
        return connection.recv(5) == b"hello"
    except OSError:
        return False


def test_an_address_has_its_share_and_no_more() -> None:
    with front_before_an_echo(FrontLimits(per_address=3)) as (front, port), ExitStack() as around:
        first = [around.enter_context(connected(port, STRANGER)) for _ in range(3)]
        assert all(map(is_answered, first))
        assert not is_answered(around.enter_context(connected(port, STRANGER)))
        assert front.status.num_turned_away == {"address": 1}
        assert is_answered(around.enter_context(connected(port)))
        # One of three ends: one more may come, not three.
        first[0].shutdown(socket.SHUT_WR)
        assert first[0].recv(1) == b""
        while front.status.num_open > 3:  # the front notes the end a moment after we do
            run_there(asyncio.sleep(0))
        assert is_answered(around.enter_context(connected(port, STRANGER)))
        assert not is_answered(around.enter_context(connected(port, STRANGER)))


def test_there_is_a_total() -> None:
    with front_before_an_echo(FrontLimits(total=2)) as (front, port), ExitStack() as around:
        for address in ("127.0.0.2", "127.0.0.3"):
            assert is_answered(around.enter_context(connected(port, address)))
        assert not is_answered(around.enter_context(connected(port, "127.0.0.4")))
        assert front.status.num_turned_away == {"total": 1}


def test_new_connections_of_an_address_are_counted_by_the_minute() -> None:
    with front_before_an_echo(FrontLimits(per_minute=5)) as (front, port):
        for _ in range(5):
            with connected(port, STRANGER) as made:
                assert is_answered(made)
        with connected(port, STRANGER) as made:
            assert not is_answered(made)
        assert front.status.num_turned_away == {"rate": 1}
        with connected(port) as made:
            assert is_answered(made)


def test_whoever_says_nothing_is_let_go() -> None:
    with (
        front_before_an_echo(FrontLimits(first_byte_seconds=0.05)) as (front, port),
        connected(port) as made,
    ):
        assert made.recv(1) == b""
        assert front.status.num_silent == 1


@pytest.mark.parametrize("size", [1, 70_000, 3_000_000])
def test_everything_passes_in_both_directions(size: int) -> None:
    content = os.urandom(size)
    with front_before_an_echo(FrontLimits()) as (_, port), connected(port) as made:
        sending = threading.Thread(target=made.sendall, args=(content,))
        sending.start()
        came = bytearray()
        while len(came) < size:
            came += made.recv(65536)
        sending.join()
        assert bytes(came) == content
