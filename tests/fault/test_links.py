"""Links between machines on bad days: cuts, restarts, hangs, floods, strangers and noise."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import grpc
import grpc.aio
import pytest
import torch

from authority import Authority, admit, authority, hub_identity, identity_of
from colonnade.core.errors import (
    ColonnadeError,
    IdentityRefused,
    NoAnswer,
    PartyFailed,
    PartyRestarted,
    StorageError,
    TableUnreadable,
)
from colonnade.core.parties import Parties, Patience
from colonnade.core.verbs import verb
from colonnade.fabrics.grpc.agent import Agent
from colonnade.fabrics.grpc.event_loop import run_there
from colonnade.fabrics.grpc.frames import (
    CallBody,
    FrameKind,
    Hello,
    Notice,
    Opening,
    decode_frames,
    encode_frame,
)
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.identity import HUB_NAME, Identity
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.link_settings import METHOD, LinkSpec
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from fault.fuzzing import corrupted, sample_messages
from fault.proxy import Proxy
from messages import says
from networks import QUICK, AgentThread
from probes import ProbeParty

SECONDS = 30.0


class PausableParty(ProbeParty):
    """Stands still in ``pause`` until let go."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.has_paused = threading.Event()
        self.may_go_on = threading.Event()

    @verb
    def pause(self) -> float:
        self.has_paused.set()
        assert self.may_go_on.wait(SECONDS)
        return 1.0


class Net:
    """A hub, and one party behind a proxy."""

    def __init__(self) -> None:
        self._closing: list[Callable[[], None]] = []
        self.hub = Hub(identity=hub_identity(), admit=admit, links=QUICK)
        self.proxy = Proxy(self.hub.port)
        self.party = PausableParty(name="a")

    def agent(self, party: ProbeParty | None = None, **settings: Any) -> AgentThread:
        made = AgentThread(party or self.party, self.proxy.address, **settings)
        self._closing.append(made.stop)
        return made

    def fabric(self, names: tuple[str, ...] = ("a",), **settings: Any) -> GrpcFabric:
        made = GrpcFabric(Session(self.hub, names, purpose="test", **settings))
        self._closing.append(made.close)
        return made

    def close(self) -> None:
        self.party.may_go_on.set()
        for close in reversed(self._closing):
            close()
        self.hub.close()
        self.proxy.close()


@pytest.fixture
def net() -> Iterator[Net]:
    made = Net()
    yield made
    made.close()


def ask(fabric: GrpcFabric, verb: str, *arguments: Any, **settings: Any) -> dict[str, Any]:
    return fabric.run(Parties(fabric).ask(verb, *arguments, **settings))


class TestCuts:
    @pytest.mark.parametrize("offset", [1, 300, 900, 2000, 3500, 6000, 9000, 14000])
    def test_nothing_is_lost_and_nothing_happens_twice(self, net: Net, offset: int) -> None:
        agent = net.agent()
        fabric = net.fabric()
        parties = Parties(fabric)
        assert fabric.run(parties.ask("total")) == {"a": 0.0}
        net.proxy.cut_after(offset, refusals=1)
        payload = torch.arange(200.0)
        for number in range(30):
            fabric.run(parties.tell("accumulate", float(number)))
            echoed = fabric.run(parties.ask("echo", payload))["a"]
            assert torch.equal(echoed, payload)
        assert net.proxy.was_cut.is_set()
        assert net.proxy.num_cuts == 1
        assert net.party.history == [float(number) for number in range(30)]
        assert parties.num_dropped == 0
        assert net.hub.status()["a"].num_connects == agent.agent.status.num_connects == 2

    def test_a_call_that_nothing_follows_is_sent_by_itself(self, net: Net) -> None:
        net.agent()
        fabric = net.fabric()
        parties = Parties(fabric)
        assert fabric.run(parties.ask("total")) == {"a": 0.0}
        fabric.run(parties.tell("accumulate", 1.0))
        eventually(lambda: net.party.history == [1.0])

    def test_many_cuts_in_a_row(self, net: Net) -> None:
        net.agent()
        fabric = net.fabric()
        parties = Parties(fabric)
        fabric.run(parties.ask("total"))
        for number in range(12):
            net.proxy.cut_after(173 * number, refusals=1)
            for step in range(8):
                fabric.run(parties.tell("accumulate", float(number * 8 + step)))
                fabric.run(parties.ask("echo", torch.ones(100)))
            assert net.proxy.was_cut.is_set()
        assert net.party.history == [float(number) for number in range(96)]
        assert net.proxy.num_cuts == 12

    def test_a_reply_that_was_ready_during_the_cut_arrives_after_it(self, net: Net) -> None:
        net.agent()
        fabric = net.fabric()
        parties = Parties(fabric)
        parties.start("a", "pause")
        parties.start("a", "total")
        assert fabric.run(parties.arrival(deadline=fabric.now())) is None
        assert net.party.has_paused.wait(SECONDS)
        net.proxy.cut()
        assert net.proxy.was_cut.wait(SECONDS)
        net.party.may_go_on.set()
        assert ask_in_vain(fabric, parties)
        net.proxy.restore()
        arrivals = [fabric.run(parties.arrival()).value for _ in range(2)]
        assert arrivals == [1.0, 0.0]

    def test_a_cable_that_is_pulled_out_is_noticed_and_replaced(self) -> None:
        links = LinkSpec(keepalive=0.2, ping_timeout=0.2, backoff=0.02, backoff_most=0.2)
        hub = Hub(identity=hub_identity(), admit=admit, links=links)
        proxy = Proxy(hub.port)
        party = PausableParty(name="a")
        agent = AgentThread(party, proxy.address, links)
        fabric = GrpcFabric(Session(hub, ["a"], purpose="test"))
        try:
            assert ask(fabric, "total") == {"a": 0.0}
            proxy.freeze()
            parties = Parties(fabric)
            fabric.run(parties.tell("accumulate", 5.0))
            assert ask_in_vain(fabric, parties)
            eventually(lambda: not hub.status()["a"].is_connected)
            proxy.restore()
            assert ask(fabric, "total") == {"a": 5.0}
            assert party.history == [5.0]
        finally:
            fabric.close()
            agent.stop()
            hub.close()
            proxy.close()

    def test_a_slow_link_is_only_slow(self) -> None:
        """A message takes longer than keep-alive; it is not mistaken for a dead machine."""
        # Long enough for a busy machine to confirm, shorter than the message takes.
        links = LinkSpec(keepalive=0.2, keepalive_timeout=1.5, backoff=0.02, backoff_most=0.2)
        hub = Hub(identity=hub_identity(), admit=admit, links=links)
        proxy = Proxy(hub.port)
        agent = AgentThread(PausableParty(name="a"), proxy.address, links)
        fabric = GrpcFabric(Session(hub, ["a"], purpose="test"))
        try:
            assert ask(fabric, "total") == {"a": 0.0}
            proxy.slow_down(300_000)
            sent = torch.randn(100, 1000)
            assert torch.equal(ask(fabric, "echo", sent)["a"], sent)
            assert proxy.seconds_slowed > 1.7
            assert hub.status()["a"].num_connects == 1
        finally:
            fabric.close()
            agent.stop()
            hub.close()
            proxy.close()


def ask_in_vain(fabric: GrpcFabric, parties: Parties) -> bool:
    return fabric.run(parties.ask("total", deadline=fabric.now() + 50)) == {}


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what must come; the link's own threads bring it about."""
    waiting = threading.Event()
    for _ in range(int(SECONDS * 100)):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not come")


class TestRestarts:
    def test_a_party_that_comes_back_as_another_process_is_noticed(self, net: Net) -> None:
        first = net.agent()
        fabric = net.fabric()
        parties = Parties(fabric)
        fabric.run(parties.tell("accumulate", 1.0))
        assert fabric.run(parties.ask("total")) == {"a": 1.0}
        first.stop()
        net.agent(PausableParty(name="a"))
        with pytest.raises(PartyRestarted, match="'a'") as caught:
            fabric.run(parties.ask("total"))
        assert caught.value.party == "a"
        with pytest.raises(PartyRestarted):
            fabric.run(parties.ask("total"))

        fresh = net.fabric()
        assert ask(fresh, "total") == {"a": 0.0}
        assert net.hub.status()["a"].num_restarts == 1

    def test_a_hub_that_comes_back_begins_a_new_session(self, net: Net) -> None:
        net.agent()
        fabric = net.fabric()
        assert ask(fabric, "total") == {"a": 0.0}
        fabric.run(Parties(fabric).tell("accumulate", 1.0))
        fabric.close()
        port = net.hub.port
        net.hub.close()

        net.hub = Hub(
            identity=hub_identity(), admit=admit, links=QUICK, address=f"127.0.0.1:{port}"
        )
        # The same process still: what it did for the old hub it has not forgotten.
        assert ask(net.fabric(), "total") in ({"a": 1.0}, {"a": 0.0})

    def test_a_session_that_is_over_is_not_answered_in_the_next(self, net: Net) -> None:
        net.agent()
        old = net.fabric()
        parties = Parties(old)
        parties.start("a", "pause")
        assert old.run(parties.arrival(deadline=old.now())) is None
        assert net.party.has_paused.wait(SECONDS)
        fresh = net.fabric()
        late = Parties(fresh)
        late.start("a", "total")
        assert fresh.run(late.arrival(deadline=fresh.now() + 20)) is None
        net.party.may_go_on.set()
        arrival = fresh.run(late.arrival())
        assert (arrival.party, arrival.value) == ("a", 0.0)
        assert late.num_dropped == 0

    def test_a_party_that_comes_later_gets_everything_that_waits(self, net: Net) -> None:
        fabric = net.fabric()
        parties = Parties(fabric)
        fabric.run(parties.tell("accumulate", 2.0))
        parties.start("a", "total")
        assert net.hub.wait_for(["a"], timeout=0.01) == ("a",)
        net.agent()
        assert fabric.run(parties.arrival()).value == 2.0
        assert net.hub.wait_for(["a"], timeout=SECONDS) == ()


class TestHangs:
    def test_stop_names_the_party(self, net: Net) -> None:
        net.agent()
        fabric = net.fabric()
        patient = Parties(fabric, Patience(timeout=60))
        with pytest.raises(NoAnswer, match=says("'a'", "'pause'")) as caught:
            fabric.run(patient.ask("pause"))
        assert caught.value.parties == ("a",)

    def test_continue_goes_on_without_it(self, net: Net) -> None:
        net.agent()
        net.agent(ProbeParty(name="b"))
        fabric = net.fabric(("a", "b"))
        parties = Parties(fabric, Patience(timeout=300, then="continue"))
        assert list(fabric.run(parties.ask("total"))) == ["a", "b"]
        fabric.run(parties.ask("pause", among=["a"]))
        assert fabric.run(parties.ask("total")) == {"b": 0.0}
        net.party.may_go_on.set()
        eventually(lambda: len(fabric.run(parties.ask("total"))) == 2)
        # While it was away it was not asked again: the one open call told that it is back.
        assert parties.num_dropped == 1
        assert parties.attendance.late == {"a": 1, "b": 0}
        assert parties.attendance.left_out["a"] >= 2
        assert parties.attendance.left_out["b"] == 0
        assert parties.attendance.held_up["a"] >= 300

    def test_a_wait_until_a_tick_ends_as_that_tick_begins(
        self, net: Net, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pulled: list[float] = []
        pull = Session.pull

        def noted(session: Session, timeout: float | None, num_wanted: int = 1) -> bool:
            assert timeout is not None
            pulled.append(timeout)
            return pull(session, timeout, num_wanted)

        monkeypatch.setattr(Session, "pull", noted)
        fabric = net.fabric()
        tick = fabric.now() + 20
        fabric.run(Parties(fabric).wait_until(tick))
        assert fabric.now() >= tick
        # The tick before it is waited for, and no part of the tick itself.
        assert 0 < max(pulled) <= 0.020

    def test_wait_waits(self, net: Net) -> None:
        net.agent()
        fabric = net.fabric()
        timer = threading.Thread(
            target=lambda: net.party.has_paused.wait(SECONDS) and net.party.may_go_on.set()
        )
        timer.start()
        assert ask(fabric, "pause") == {"a": 1.0}
        timer.join()

    @pytest.mark.parametrize("verb", ["keep", "settle"])
    def test_checkpoints_do_not_wait_for_ever(self, net: Net, verb: str) -> None:
        net.agent()
        fabric = net.fabric(patience=Patience(timeout=60))
        Parties(fabric).start("a", "pause")
        actions: dict[str, Callable[[], Any]] = {
            "keep": lambda: fabric.run(Parties(fabric, Patience(timeout=60)).ask("keep", "tag")),
            "settle": lambda: fabric.run(fabric.settle()),
        }
        with pytest.raises(NoAnswer, match="'a'"):
            actions[verb]()


class TestOwnFiles:
    """Where a party keeps its files is its own business; that they fail it is not."""

    ERRORS: ClassVar[dict[ColonnadeError, str]] = {
        StorageError("/srv/my data/run/1.json: damaged: line 3"): "1.json: damaged: line 3",
        StorageError("C:\\runs\\1.json: damaged"): "1.json: damaged",
        StorageError("/srv/a: b/1.json: damaged"): "its storage failed; see its log",
        StorageError("/srv/key: run: chmod 600 /srv/key"): "its storage failed; see its log",
        StorageError("party 'a' has no vault"): "party 'a' has no vault",
        TableUnreadable("/srv/telco.csv: not CSV (Ms. X)"): "its table can't be read; see its log",
    }

    @pytest.mark.parametrize(("error", "told"), ERRORS.items(), ids=map(str, range(len(ERRORS))))
    def test_the_label_holder_is_told_what_failed_and_not_where(
        self, net: Net, error: ColonnadeError, told: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Forgetful(ProbeParty):
            @verb
            def read(self) -> int:
                raise error

        net.agent(Forgetful(name="a"))
        with pytest.raises(PartyFailed) as caught:
            ask(net.fabric(), "read")
        assert str(caught.value).endswith(f"(read): {type(error).__name__}: {told}")
        assert str(error) in caplog.text

    def test_the_same_when_a_session_begins(
        self, net: Net, caplog: pytest.LogCaptureFixture
    ) -> None:
        def no_respondent(purpose: str) -> ProbeParty:
            raise StorageError("/srv/telco/key: not a key")

        agent = Agent(
            identity=identity_of("a"),
            address=net.proxy.address,
            respondent_for=no_respondent,
            links=QUICK,
        )
        serving = threading.Thread(target=agent.serve, daemon=True)
        serving.start()
        with pytest.raises(PartyFailed, match=says("'a'", "StorageError: key")):
            ask(net.fabric(), "total")
        agent.stop()
        serving.join(SECONDS)
        assert "/srv/telco/key: not a key" in caplog.text


class TestFlood:
    SMALL = LinkSpec(message_bytes=8192, outbox_bytes=16384, backoff=0.02, backoff_most=0.2)

    def flooded(self, patience: Patience) -> tuple[Hub, AgentThread, GrpcFabric, PausableParty]:
        hub = Hub(identity=hub_identity(), admit=admit, links=self.SMALL)
        party = PausableParty(name="a")
        agent = AgentThread(party, f"127.0.0.1:{hub.port}", self.SMALL)
        fabric = GrpcFabric(Session(hub, ["a"], purpose="test", patience=patience))
        Parties(fabric).start("a", "pause")
        return hub, agent, fabric, party

    def test_a_party_that_takes_nothing_up_holds_the_sender_back(self) -> None:
        hub, agent, fabric, party = self.flooded(Patience(timeout=60))
        parties = Parties(fabric)
        for _ in range(4):
            fabric.run(parties.tell("hold", torch.ones(1000)))
        with pytest.raises(NoAnswer, match=says("'a'", 16384)):
            fabric.run(parties.tell("hold", torch.ones(1000)))
        party.may_go_on.set()
        fabric.close()
        agent.stop()
        hub.close()

    def test_a_run_that_goes_on_without_gives_calls_up(self) -> None:
        hub, agent, fabric, party = self.flooded(Patience(timeout=20, then="continue"))
        parties = Parties(fabric)
        for number in range(12):
            fabric.run(parties.tell("accumulate", float(number)))
            fabric.run(parties.tell("hold", torch.ones(1000)))
        assert fabric.num_lost > 0
        party.may_go_on.set()
        eventually(lambda: "a" in fabric.run(parties.ask("total", deadline=fabric.now() + 500)))
        # What was not given up came in order, and once.
        assert party.history == sorted(set(party.history))
        fabric.close()
        agent.stop()
        hub.close()

    def test_a_sender_that_waits_goes_on_when_there_is_room(self) -> None:
        hub, agent, fabric, party = self.flooded(Patience())
        threading.Timer(0.05, party.may_go_on.set).start()
        parties = Parties(fabric)
        for _ in range(20):
            fabric.run(parties.tell("accumulate", 1.0))
            fabric.run(parties.tell("hold", torch.ones(1000)))
        assert fabric.run(parties.ask("total")) == {"a": 20.0}
        fabric.close()
        agent.stop()
        hub.close()

    def test_a_message_that_is_too_large_is_refused_by_its_sender(self) -> None:
        hub, agent, fabric, party = self.flooded(Patience())
        party.may_go_on.set()
        parties = Parties(fabric)
        with pytest.raises(Exception, match=says("'hold'", "'a'", 8192, "link.message_bytes")):
            fabric.run(parties.tell("hold", torch.ones(5000)))
        party.held = torch.ones(5000)
        with pytest.raises(Exception, match=says("'a'", "ProtocolError", 8192, "message_bytes")):
            fabric.run(parties.ask("lend"))
        assert fabric.run(parties.ask("total")) == {"a": 0.0}
        fabric.close()
        agent.stop()
        hub.close()


class TestIdentities:
    def refused(self, net: Net, identity: Identity) -> Exception:
        agent = Agent(
            identity=identity,
            address=f"127.0.0.1:{net.hub.port}",
            respondent_for=lambda purpose: net.party,
            links=QUICK,
        )
        with pytest.raises(IdentityRefused) as caught:
            agent.serve()
        return caught.value

    def test_a_name_that_is_not_the_certificates(self, net: Net) -> None:
        real = identity_of("b")
        liar = Identity(
            name="a", authority=real.authority, certificate=real.certificate, key=real.key
        )
        error = self.refused(net, liar)
        assert "belongs to 'b', and the hello says 'a'" in str(error)

    def test_the_reason_of_whoever_admits_is_told(self) -> None:
        def strict(certificate: bytes) -> str:
            raise IdentityRefused(f"the certificate of '{admit(certificate)}' was revoked")

        net = Net()
        net.hub.close()
        net.hub = Hub(identity=hub_identity(), admit=strict, links=QUICK)
        assert "'a' was revoked" in str(self.refused(net, identity_of("a")))
        net.close()

    def test_a_party_that_is_revoked_while_connected_is_hung_up_on(self, net: Net) -> None:
        agent = net.agent()
        assert net.hub.wait_for(["a"], SECONDS) == ()
        net.hub.disconnect("a", "the certificate of 'a' was revoked")
        agent.join()
        assert isinstance(agent.error, IdentityRefused)
        assert "revoked" in str(agent.error)

    @pytest.mark.parametrize("kind", ["foreign", "expired"])
    def test_tls_refuses(self, net: Net, kind: str) -> None:
        if kind == "foreign":
            foreign = Authority("elsewhere").identity("a")
            identity = Identity(
                name="a",
                authority=identity_of("a").authority,
                certificate=foreign.certificate,
                key=foreign.key,
            )
        else:
            identity = authority().identity("a", expired=True)
        agent = Agent(
            identity=identity,
            address=net.proxy.address,
            respondent_for=lambda purpose: net.party,
            links=QUICK,
        )
        thread = threading.Thread(target=agent.serve)
        thread.start()
        eventually(lambda: agent.status.last_error != "")
        agent.stop()
        thread.join()
        assert agent.status.num_connects == 0
        assert net.hub.wait_for(["a"], timeout=0.01) == ("a",)

    def test_a_hub_of_another_federation_gets_no_hello(self, net: Net) -> None:
        stranger = Hub(identity=Authority("elsewhere").hub(), admit=admit, links=QUICK)
        agent = AgentThread(net.party, f"127.0.0.1:{stranger.port}")
        eventually(lambda: agent.agent.status.last_error != "")
        assert agent.agent.status.num_connects == 0
        agent.stop()
        stranger.close()

    def test_a_party_can_not_pose_as_the_hub(self, net: Net) -> None:
        impostor = Hub(identity=identity_of("b"), admit=admit, links=QUICK)
        agent = AgentThread(net.party, f"127.0.0.1:{impostor.port}")
        eventually(lambda: agent.agent.status.last_error != "")
        assert agent.agent.status.num_connects == 0
        agent.stop()
        impostor.close()

    def test_a_second_process_of_a_party_waits_outside(self, net: Net) -> None:
        net.agent()
        fabric = net.fabric()
        assert ask(fabric, "total") == {"a": 0.0}
        second = net.agent(PausableParty(name="a"))
        eventually(lambda: "connected already" in second.agent.status.last_error)
        assert ask(fabric, "total") == {"a": 0.0}

    def test_a_renewed_certificate_is_used_from_the_next_dial_on(self, net: Net) -> None:
        agent = net.agent()
        fabric = net.fabric()
        fabric.run(Parties(fabric).tell("accumulate", 1.0))
        assert ask(fabric, "total") == {"a": 1.0}
        agent.agent.renew(authority().identity("a"))
        net.hub.renew(authority().hub())
        agent.agent.reconnect()
        eventually(lambda: net.hub.status()["a"].num_connects >= 2)
        assert ask(fabric, "total") == {"a": 1.0}
        with pytest.raises(IdentityRefused):
            agent.agent.renew(identity_of("b"))


class RawParty:
    """Speaks gRPC and whatever it is told to, on the hub's port."""

    def __init__(self, port: int, name: str = "fuzz") -> None:
        self._port = port
        self._identity = identity_of(name)

    def exchange(self, *messages: bytes) -> list[bytes]:
        """Send all of them on one stream; everything that came back until the hub closed it."""
        return run_there(self._exchange(messages), timeout=SECONDS)

    async def _exchange(self, messages: tuple[bytes, ...]) -> list[bytes]:
        identity = self._identity
        credentials = grpc.ssl_channel_credentials(
            identity.authority, identity.key, identity.certificate
        )
        options = [("grpc.ssl_target_name_override", HUB_NAME)]
        received = []
        address = f"127.0.0.1:{self._port}"
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            stream = channel.stream_stream(METHOD)()
            try:
                for message in messages:
                    await stream.write(message)
                await stream.done_writing()
                while (message := await stream.read()) is not grpc.aio.EOF:
                    received.append(message)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
        return received


def refusal(messages: list[bytes]) -> Notice:
    (frame,) = decode_frames(messages[-1])
    assert isinstance(frame.body, Notice), frame
    return frame.body


HELLO = encode_frame(FrameKind.HELLO, Hello("fuzz", 77, 0))


class TestNoise:
    @pytest.mark.parametrize(
        ("messages", "complaint"),
        [
            ([b"\0" * 10], "announced"),
            ([b""], "empty message"),
            ([sample_messages()[4]], "begins with HELLO"),
            ([HELLO + HELLO], "begins with HELLO alone"),
            ([HELLO, b"noise" * 20], "begins with"),
            ([HELLO, HELLO[:30]], "announced"),
        ],
    )
    def test_the_stream_ends_with_a_named_error(
        self, net: Net, messages: list[bytes], complaint: str
    ) -> None:
        notice = refusal(RawParty(net.hub.port).exchange(*messages))
        assert notice.kind == "ProtocolError"
        assert complaint in notice.message

    @pytest.mark.parametrize(
        ("message", "complaint"),
        [
            (sample_messages()[6], "call 1, which was never made"),
            (encode_frame(FrameKind.ACKNOWLEDGE, seen=9), "call 9, which was never made"),
            (sample_messages()[4], "does not send CALL"),
            (encode_frame(FrameKind.REFUSE, Notice("ProtocolError", "x")), "refused a message: x"),
        ],
    )
    def test_what_a_party_may_not_say_in_a_session(
        self, net: Net, message: bytes, complaint: str
    ) -> None:
        fabric = net.fabric(("fuzz",))
        session = fabric._session._queues["fuzz"].session
        opened = encode_frame(FrameKind.OPEN, Opening(session, "test"))
        notice = refusal(RawParty(net.hub.port).exchange(HELLO, opened + message))
        assert complaint in notice.message

    def test_the_hub_goes_on_among_noise(self, net: Net) -> None:
        net.agent()
        fabric = net.fabric(("a", "fuzz"))
        parties = Parties(fabric)
        session = fabric._session._queues["fuzz"].session
        opened = encode_frame(FrameKind.OPEN, Opening(session, "test"))
        raw = RawParty(net.hub.port)
        samples = sample_messages()
        for seed in range(60):
            noise = corrupted(samples[seed % len(samples)], seed)
            raw.exchange(HELLO, opened, noise)
        assert fabric.run(parties.ask("total", among=["a"])) == {"a": 0.0}

    def test_bytes_that_are_not_even_tls(self, net: Net) -> None:
        for seed in range(40):
            with socket.create_connection(("127.0.0.1", net.hub.port)) as raw:
                raw.sendall(corrupted(sample_messages()[0], seed) or b"\0")
        net.agent()
        assert ask(net.fabric(), "total") == {"a": 0.0}


class FakeHub:
    """Says to the first party that dials whatever it is told to."""

    def __init__(self, *messages: bytes) -> None:
        self.received: list[bytes] = []
        self.is_over = threading.Event()
        self._messages = messages
        self.port = run_there(self._start())

    async def _start(self) -> int:
        self._server = grpc.aio.server()
        service, _, method = METHOD[1:].partition("/")
        handler = grpc.stream_stream_rpc_method_handler(self._connected)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        identity = hub_identity()
        credentials = grpc.ssl_server_credentials(
            [(identity.key, identity.certificate)], identity.authority, require_client_auth=True
        )
        port: int = self._server.add_secure_port("127.0.0.1:0", credentials)
        await self._server.start()
        return port

    async def _connected(self, _: Any, context: Any) -> None:
        try:
            if (message := await context.read()) is grpc.aio.EOF:
                return
            self.received.append(message)
            for message in self._messages:
                await context.write(message)
            while (message := await context.read()) is not grpc.aio.EOF:
                self.received.append(message)
        finally:
            self.is_over.set()

    def close(self) -> None:
        async def stop() -> None:
            await self._server.stop(None)

        run_there(stop())


WELCOME = encode_frame(FrameKind.WELCOME, Opening(0, ""))
OPEN = encode_frame(FrameKind.OPEN, Opening(5, "test"))


def call(number: int, verb: str = "accumulate", *arguments: Any) -> bytes:
    return encode_frame(FrameKind.CALL, CallBody(verb, arguments, 0, True), id=number)


class TestWhatAnAgentRefuses:
    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """This hub acknowledges nothing, which an agent that ends would wait for."""
        monkeypatch.setattr("colonnade.fabrics.grpc.agent.LEAVE_SECONDS", 0.1)

    @pytest.mark.parametrize(
        ("messages", "complaint"),
        [
            ([WELCOME, call(1, "total")], "before any session"),
            ([WELCOME, OPEN, call(2, "total")], "call 2 out of order; after 0 comes 1"),
            ([WELCOME, OPEN, call(1, "total"), call(3, "total")], "after 1 comes 2"),
            ([WELCOME, OPEN, sample_messages()[6]], "does not send REPLY"),
            ([WELCOME, OPEN, b"noise" * 9], "begins with"),
            ([WELCOME, OPEN, call(1)[:-3]], "announced"),
        ],
    )
    def test_the_stream_ends_with_a_named_error(
        self, messages: list[bytes], complaint: str
    ) -> None:
        hub = FakeHub(*messages)
        party = PausableParty(name="a")
        agent = AgentThread(party, f"127.0.0.1:{hub.port}")
        assert hub.is_over.wait(SECONDS)
        agent.stop()
        hub.close()
        notices = [
            frame.body
            for message in hub.received
            for frame in decode_frames(message)
            if isinstance(frame.body, Notice)
        ]
        assert any(complaint in notice.message for notice in notices)
        assert agent.error is None

    def test_a_call_that_comes_twice_is_executed_once(self) -> None:
        twice = call(1, "accumulate", 4.0)
        hub = FakeHub(WELCOME, OPEN, twice, twice, call(2, "total") + twice, b"end")
        party = PausableParty(name="a")
        agent = AgentThread(party, f"127.0.0.1:{hub.port}")
        assert hub.is_over.wait(SECONDS)
        agent.stop()
        hub.close()
        assert party.history == [4.0]
