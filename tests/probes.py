"""What the fabrics' contract is tried out with: a party with telling verbs, a bench, some noise."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import DataError
from colonnade.core.fabric import Clock, Fabric
from colonnade.core.messages import Batch, Call, Reply
from colonnade.core.parties import Parties
from colonnade.core.party import Part, Party
from colonnade.core.snapshot import Snapshot
from colonnade.core.verbs import verb
from colonnade.fabrics.durations import Constant, Uniform
from colonnade.fabrics.in_process import InProcess
from colonnade.fabrics.simulated import Profile, Simulated
from federations import PLAIN_SGD, MemoryVault, features_of, mlp, seeded_module
from networks import LoopbackFabric


class ProbeParty(Party):
    """A party whose verbs try out what a fabric must and must not do."""

    def __init__(self, *, name: str, **settings: Any) -> None:
        plan = BatchPlan(8, 4, seed=0, shuffle=True)
        part = Part(features=features_of(name, 8, 3, 0, torch.float32), plan=plan)
        super().__init__(
            name=name,
            encoder=seeded_module(lambda: mlp()(3), torch.float32, 0, "weights", name),
            optimizer=PLAIN_SGD,
            parts={"train": part},
            deterministic=True,
            vault=MemoryVault(),
            **settings,
        )
        self.history: list[float] = []
        self.held = torch.arange(4.0)

    @verb
    def echo(self, value: Tensor) -> Tensor:
        return value

    @verb
    def hold(self, value: Tensor) -> None:
        self.held = value

    @verb
    def lend(self) -> Tensor:
        return self.held

    @verb
    def scribble(self, value: Tensor) -> None:
        value.fill_(-1.0)

    @verb
    def embed(self, batch: Batch) -> Tensor:
        return self.encode(batch)

    @verb
    def accumulate(self, value: float) -> None:
        self.history.append(value)

    @verb
    def note(self, text: str) -> None:
        """Nothing comes of it."""

    @verb
    def total(self) -> float:
        return float(sum(self.history))

    @verb
    def last(self) -> float:
        return self.history[-1]

    @verb
    def work(self, steps: int) -> int:
        for _ in range(steps):
            self.clock.work("step")
        return steps

    @verb
    def table(self) -> Mapping[str, Tensor]:
        return {"held": self.held, "twice": 2.0 * self.held}

    @verb
    def scores(self, values: Mapping[str, float]) -> Mapping[str, float]:
        return {key: 2.0 * value for key, value in values.items()}

    @verb
    def refuse(self) -> None:
        raise DataError("column 'age' is missing; add it to the block")

    @verb
    def crash(self) -> None:
        raise ValueError("could not convert string to float: 'Ms. Secret, born 1971'")

    @verb
    def smuggle(self) -> object:
        return object()

    @verb
    def mislabel(self) -> Mapping[str, float]:
        return {7: 1.0}  # type: ignore[dict-item]

    def _private(self) -> Tensor:
        return self.held

    def public_but_no_verb(self) -> Tensor:
        return self.held


NAMES = ("a", "b", "c")
BATCH = Batch("train", 0)
Build = Callable[..., Fabric]


def simulated_backwards(parties: Mapping[str, Party], **settings: Any) -> Fabric:
    """The first party has the longest link, so that replies come in reverse."""
    latencies = zip(sorted(parties), (30, 20, 10), strict=False)
    profiles = {name: Profile(latency=Constant(value=ticks)) for name, ticks in latencies}
    return Simulated(parties, profiles=profiles, **settings)


def simulated_erratic(parties: Mapping[str, Party], **settings: Any) -> Fabric:
    default = Profile(encode=Uniform(low=0, high=9), latency=Uniform(low=0, high=50), bandwidth=7)
    return Simulated(parties, default=default, seed=5, **settings)


FABRICS: Mapping[str, Build] = {
    "in_process": InProcess,
    "simulated": simulated_backwards,
    "simulated_erratic": simulated_erratic,
    "grpc": LoopbackFabric,
}
VIRTUAL = {"simulated", "simulated_erratic"}
# Parties that answer at the same time, so in no certain order among themselves.
APART = {"grpc"}


class Bench:
    """A fabric under test with its parties in reach, past the links, for checking only."""

    open: ClassVar[list[Bench]] = []

    def __init__(self, kind: str, *, wrap: Callable[[Fabric], Fabric] | None = None, **settings):
        self.kind = kind
        # Listed in no particular order: a fabric sorts its parties.
        self.behind = {name: ProbeParty(name=name) for name in ("b", "c", "a")}
        self.fabric = FABRICS[kind](self.behind, **settings)
        if wrap is not None:
            self.fabric = wrap(self.fabric)
        self.parties = Parties(self.fabric)
        self.open.append(self)

    @classmethod
    def close_all(cls) -> None:
        while cls.open:
            cls.open.pop().fabric.close()

    def ask(self, verb: str, *arguments: Any, **settings: Any) -> dict[str, Any]:
        return self.fabric.run(self.parties.ask(verb, *arguments, **settings))

    def tell(self, verb: str, *arguments: Any, **settings: Any) -> None:
        self.fabric.run(self.parties.tell(verb, *arguments, **settings))

    def arrival(self, deadline: int | None = None) -> Any:
        return self.fabric.run(self.parties.arrival(deadline))

    def checkpoint(self) -> dict[str, Any]:
        """What is in flight, as a run would keep it."""
        snapshot = Snapshot(self.fabric, {"parties": self.parties.state()})
        self.fabric.run(Parties(snapshot.cut.aside).ask("local_steps"))
        return copy.deepcopy(snapshot.whole())


class Wrapped(Fabric):
    """Another fabric, passed on as it is; for tests that get in between."""

    def __init__(self, inner: Fabric) -> None:
        super().__init__(inner.names)
        self.inner, self.meter = inner, inner.meter

    @property
    def clock(self) -> Clock:
        return self.inner.clock

    def send(self, call: Call) -> None:
        self.inner.send(call)

    async def receive(self, deadline: int | None) -> Reply | None:
        return await self.inner.receive(deadline)

    async def settle(self) -> list[Reply]:
        return await self.inner.settle()

    def elapsed_seconds(self) -> float:
        return self.inner.elapsed_seconds()

    def aside(self) -> Fabric:
        return self.inner.aside()

    async def keep(self, tag: str) -> None:
        await self.inner.keep(tag)

    async def retain(self, newest: str, previous: str, best: str) -> None:
        await self.inner.retain(newest, previous, best)

    async def fetch(self, tag: str) -> None:
        await self.inner.fetch(tag)

    def state(self) -> dict[str, Any]:
        return self.inner.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self.inner.restore(state)

    def close(self) -> None:
        self.inner.close()


class Noisy(Wrapped):
    """Strays before every reply, and the reply itself twice."""

    def __init__(self, inner: Fabric) -> None:
        super().__init__(inner)
        self._queue: deque[Reply] = deque()

    async def receive(self, deadline: int | None) -> Reply | None:
        if self._queue:
            return self._queue.popleft()
        reply = await self.inner.receive(deadline)
        if reply is None:
            return None
        other = "a" if reply.party != "a" else "b"
        self._queue += [
            Reply(reply.id, other, reply.exchange, torch.zeros(1), tick=reply.tick),
            reply,
            reply,
        ]
        return Reply(reply.id + 1000, reply.party, reply.exchange, "stray", tick=reply.tick)


def assert_plain(value: Any) -> None:
    """Only what a checkpoint can hold: tensors, JSON's scalars, lists, and text keys."""
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)
        for item in value.values():
            assert_plain(item)
    elif isinstance(value, list):
        for item in value:
            assert_plain(item)
    else:
        assert value is None or isinstance(value, Tensor | str | int | float | bool)
