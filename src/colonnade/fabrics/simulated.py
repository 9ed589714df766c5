"""The simulated fabric: real training on a virtual clock of whole ticks.

Each party has a profile: ticks per encoding and per local step, and a link to the label holder with
latency and bandwidth. Links deliver in order; a party does one call after the other.

All times of a call (transfer, queueing, work, transfer back) are computed when it is sent, because
nothing later can change them; only replies wait on the clock. So a party's weights are always those
after its last call, and an evaluation counts work that is under way as done.

Events come in the order of their ticks. At the same tick deliveries come before deadlines, and
deliveries in the order in which they were sent.

Inside, time counts in parts of a tick, one per tick unless told otherwise: durations that were
measured are often shorter than a millisecond. Methods see whole ticks, as on a real clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from colonnade.core.errors import ConfigError, Deadlock
from colonnade.core.fabric import (
    TICKS_PER_SECOND,
    UNBOUNDED,
    Clock,
    EngineWork,
    num_call_bytes,
    num_payload_bytes,
)
from colonnade.core.messages import Call, Reply, pack_reply, unpack_reply
from colonnade.core.respondent import Respondent
from colonnade.core.seeds import derive_seed
from colonnade.core.timeline import State
from colonnade.fabrics.durations import Constant, Duration, Shares, Stopwatch, Utilization
from colonnade.fabrics.in_process import LocalFabric, isolated_call
from colonnade.fabrics.sleeps import Awake, Sleep

__all__ = ["Engine", "Profile", "Simulated", "with_traces"]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The cost of one party's work and of its link, in ticks or the fabric's parts of them.

    ``bandwidth`` is bytes per tick in each direction; None is unlimited. ``sleep`` is the schedule
    of absences; it delays calls that want an answer.
    """

    encode: Duration = field(default_factory=Constant)
    step: Duration = field(default_factory=lambda: Constant(value=1))
    latency: Duration = field(default_factory=Constant)
    bandwidth: int | None = None
    sleep: Sleep = field(default_factory=Awake)

    def __post_init__(self) -> None:
        if self.bandwidth is not None and self.bandwidth < 1:
            raise ConfigError(f"bandwidth: at least 1 byte per tick, got {self.bandwidth}")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The label holder's time for what is not its method's work; everybody waits for it.

    ``exchange`` is what each exchange costs it besides updates (messages, lines), ``evaluation``
    and ``checkpoint`` what each of those does.
    """

    exchange: Duration = field(default_factory=Constant)
    evaluation: Duration = field(default_factory=Constant)
    checkpoint: Duration = field(default_factory=Constant)


def with_traces(profile: Profile, read: Callable[[str, int], tuple[float, ...]]) -> Profile:
    """The profile with recorded traces read in by ``read(name, machine)``."""

    def known(duration: Duration) -> Duration:
        if not isinstance(duration, Utilization) or duration.trace is None:
            return duration
        return replace(duration, values=read(duration.trace, duration.machine), trace=None)

    return replace(
        profile,
        encode=known(profile.encode),
        step=known(profile.step),
        latency=known(profile.latency),
    )


class _VirtualClock:
    """One participant's own time: whole parts of a tick, moved on by its work."""

    def __init__(self, costs: Mapping[str, Stopwatch], parts_per_tick: int) -> None:
        self.part = 0
        self._costs = costs
        self._each = parts_per_tick

    def now(self) -> int:
        return self.part // self._each

    def begin(self) -> None:
        """Nothing: time passes when work is done."""

    def work(self, kind: str) -> None:
        self.part += self._costs[kind].draw(self.part)

    def fits(self, kind: str, deadline: int) -> bool:
        # It ends when the deadline begins, as on a real clock.
        return self.part + self._costs[kind].peek(self.part) <= deadline * self._each

    def num_fitting(self, kind: str, timeout: int) -> int:
        cost, limit = self._costs[kind].constant, timeout * self._each
        if cost is not None:
            return min(limit // cost, UNBOUNDED) if cost else UNBOUNDED
        spent = 0
        for count in range(UNBOUNDED):
            spent += self._costs[kind].peek(self.part + spent, ahead=count)
            if spent > limit:
                return count
        return UNBOUNDED


class _Lane:
    """One direction of a link: one message after the other, never overtaking."""

    def __init__(self, bandwidth: int | None, parts_per_tick: int) -> None:
        self.bandwidth = bandwidth
        self._each = parts_per_tick
        self.free_at = 0
        self.last_delivery = 0

    def deliver(self, part: int, num_bytes: int, latency: int) -> int:
        """When a message that is ready at ``part`` arrives at the other end."""
        begin = max(part, self.free_at)
        transfer = 0
        if self.bandwidth is not None:
            transfer = -(-num_bytes * self._each // self.bandwidth)
        self.free_at = begin + transfer
        self.last_delivery = max(self.free_at + latency, self.last_delivery)
        return self.last_delivery


class _Site:
    """The simulated place of one party: its clock, its link, and when it is free again."""

    def __init__(self, name: str, profile: Profile, seed: int, parts_per_tick: int) -> None:
        self.watches = {
            kind: Stopwatch(getattr(profile, kind), derive_seed(seed, "simulated", name, kind))
            for kind in ("encode", "step", "latency")
        }
        self.clock = _VirtualClock(self.watches, parts_per_tick)
        self.sleep = profile.sleep
        self.num_calls = 0
        self._sleep_shares = Shares(derive_seed(seed, "simulated", name, "sleep"))
        self.down = _Lane(profile.bandwidth, parts_per_tick)
        self.up = _Lane(profile.bandwidth, parts_per_tick)
        self.free_at = 0

    def begins(self, arrives: int, wants_reply: bool) -> int:
        """When a call begins: the party must be free and awake."""
        part = max(arrives, self.free_at)
        if not wants_reply or isinstance(self.sleep, Awake):
            return part
        self.num_calls += 1
        return self.sleep.awake_at(part, self._sleep_shares.at(self.num_calls - 1))

    def state(self) -> dict[str, Any]:
        return {
            "num_calls": self.num_calls,
            "draws": {kind: watch.num_draws for kind, watch in self.watches.items()},
            "free_at": self.free_at,
            "down": [self.down.free_at, self.down.last_delivery],
            "up": [self.up.free_at, self.up.last_delivery],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        for kind, count in state["draws"].items():
            self.watches[kind].num_draws = count
        self.num_calls = state["num_calls"]
        self.free_at = state["free_at"]
        self.down.free_at, self.down.last_delivery = state["down"]
        self.up.free_at, self.up.last_delivery = state["up"]


class Simulated(LocalFabric):
    """Parties in this process, their time and their links on a virtual clock."""

    has_real_time = False
    keeps_calls = True

    def __init__(
        self,
        parties: Mapping[str, Respondent],
        *,
        profiles: Mapping[str, Profile] | None = None,
        default: Profile | None = None,
        fuse: Duration | None = None,
        engine: Engine | None = None,
        parts_per_tick: int = 1,
        local: frozenset[str] = frozenset(),
        seed: int = 0,
    ) -> None:
        super().__init__(parties, local=local)
        own = dict(profiles or {})
        unknown = sorted(set(own) - set(self.names))
        if unknown:
            raise ConfigError(f"fabric.party: no party {unknown}; there are {list(self.names)}")
        default = default or Profile()
        self._each = parts_per_tick
        self._parts_per_second = TICKS_PER_SECOND * parts_per_tick
        self._sites = {}
        for name in self.names:
            profile = own.get(name, default)
            if name in local:
                # No link is between the label holder and its own block.
                profile = replace(profile, latency=Constant(), bandwidth=None)
            self._sites[name] = _Site(name, profile, seed, parts_per_tick)
            self.parties[name].clock = self._sites[name].clock
        self._fuse = Stopwatch(fuse or Constant(), derive_seed(seed, "simulated", "fuse"))
        self._engine = {
            kind: Stopwatch(getattr(engine or Engine(), kind), derive_seed(seed, "simulated", kind))
            for kind in ("exchange", "evaluation", "checkpoint")
        }
        self._clock = _VirtualClock({"fuse": self._fuse}, parts_per_tick)
        self._num_sent = 0
        self._replies: list[tuple[int, int, Reply]] = []

    @property
    def clock(self) -> Clock:
        """The label holder's."""
        return self._clock

    def send(self, call: Call) -> None:
        """Compute all times of the call, run it, and put its reply on the clock."""
        call = isolated_call(call)
        site = self._sites[call.party]
        num_bytes = num_call_bytes(call)
        self.meter.sent(call.party, num_bytes)
        now = self._clock.part
        arrives = site.down.deliver(now, num_bytes, site.watches["latency"].draw(now))
        begins = site.clock.part = site.begins(arrives, call.wants_reply)
        was_free = max(arrives, site.free_at)
        reply = self.parties[call.party].execute(call)
        site.free_at = site.clock.part
        seconds = (site.free_at - begins) / self._parts_per_second
        self.meter.parties[call.party].seconds_computing += seconds
        self._note(call.party, "sending", now, arrives)
        self._note(call.party, "absent", was_free, begins)
        self._note(call.party, "computing", begins, site.free_at)
        if call.wants_reply or reply.failure is not None:
            num_bytes = num_payload_bytes(reply.value)
            self.meter.received(call.party, num_bytes)
            came = site.up.deliver(
                site.free_at, num_bytes, site.watches["latency"].draw(site.free_at)
            )
            self._note(call.party, "sending", site.free_at, came)
            tick = came // self._each
            answer = Reply(reply.id, reply.party, reply.exchange, reply.value, reply.failure, tick)
            heapq.heappush(self._replies, (came, self._num_sent, answer))
            self._num_sent += 1

    async def receive(self, deadline: int | None) -> Reply | None:
        """Let time pass until the next delivery or the deadline, whichever is first."""
        if not self._replies and deadline is None:
            tick = self._clock.now()
            raise Deadlock(
                f"tick {tick}: the label holder waits and nothing is on its way", tick=tick
            )
        # A tick that has begun is not over.
        last = None if deadline is None else (deadline + 1) * self._each - 1
        if not self._replies or (last is not None and self._replies[0][0] > last):
            assert last is not None
            # Parts of a tick pass until the next one begins; whole ticks have no parts.
            until = last + (self._each > 1)
            self._note(None, "waiting", self._clock.part, until)
            self._clock.part = max(self._clock.part, until)
            return None
        came, _, reply = heapq.heappop(self._replies)
        self._note(None, "waiting", self._clock.part, came, reply.party)
        self._clock.part = max(self._clock.part, came)
        return reply

    def last_before(self, tick: int) -> int:
        """The one before, if ticks have parts: a wait for a tick lasts until that has passed."""
        return tick - (self._each > 1)

    def pass_time(self, on: EngineWork) -> None:
        """Move the label holder's clock by what its engine costs."""
        watch = self._engine[on]
        if watch.constant != 0:
            self._clock.part += watch.draw(self._clock.part)

    def _note(
        self, party: str | None, state: State, begin: int, end: int, awaited: str | None = None
    ) -> None:
        if self.timeline is not None:
            span = (begin / self._parts_per_second, end / self._parts_per_second)
            self.timeline.note(party, state, *span, awaited)

    async def settle(self) -> list[Reply]:
        """Failures among the replies on their way; calls are done when sent, so no time passes."""
        waiting = sorted(self._replies, key=_by_arrival)
        return [reply for _, _, reply in waiting if reply.failure is not None]

    def elapsed_seconds(self) -> float:
        """Simulated seconds."""
        return self._clock.part / self._parts_per_second

    def state(self) -> dict[str, Any]:
        """The clock and every reply on its way."""
        return {
            "now": self._clock.part,
            "num_sent": self._num_sent,
            "fuse_draws": self._fuse.num_draws,
            "sites": {name: site.state() for name, site in self._sites.items()},
            "engine_draws": {kind: watch.num_draws for kind, watch in self._engine.items()},
            "replies": [
                {"order": order, "part": part, **pack_reply(reply)}
                for part, order, reply in self._replies
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave."""
        self._clock.part = state["now"]
        self._num_sent = state["num_sent"]
        self._fuse.num_draws = state["fuse_draws"]
        for name, site_state in state["sites"].items():
            self._sites[name].restore(site_state)
        # Checkpoints of an earlier version have whole ticks and no engine.
        for kind, count in state.get("engine_draws", {}).items():
            self._engine[kind].num_draws = count
        replies = [
            (item.get("part", item["tick"]), item["order"], unpack_reply(item))
            for item in state["replies"]
        ]
        heapq.heapify(replies)
        self._replies = replies


def _by_arrival(entry: tuple[int, int, Reply]) -> tuple[int, int]:
    return entry[:2]
