"""Flex-VFL and its kin: local steps on one snapshot, as many as each party manages.

Paper: Castiglia et al. 2023, Algorithms 1 and 2, section IV (local optimizers), section VII A
(P-BCD, Sync-Min, Sync-Max). Departures:

1. ``labels = "private"`` (the default) replaces the snapshot by dL/dh_k, which stays fixed over the
   local steps, as the paper suggests after Liu et al.; ``"shared"`` is the paper's own form, for
   parties that have the labels already. Labels never cross a link in either.
2. A party that does not answer is not assumed away: its last known embedding of that batch stands
   in, or, before there is one, the exchange is left out and counted.
3. For adaptive optimizers (Adam and so on) the weights w stand at 1; for lasting momentum they are
   those of momentum that starts anew. The exponent of the proximal weights is τ - 1 - t, as the
   paper's own recursion gives, not the τ - t + 1 of its last line.
4. The first exchange of Adaptive Flex-VFL takes τ from how many steps fit by the clock, in place of
   a dummy exchange. A real clock knows that after its first step: that one has the rate of τ = 1.
5. On a simulated clock where the label holder's work costs nothing, it takes as many steps as the
   fastest party. Nobody takes more than 1000.
6. Adaptive Flex-VFL with ``pace = "now"`` (ours) takes τ from how many steps fit by the clock in
   every exchange, not in the first only. Algorithm 2 uses the exchange before: a party that wakes
   up then takes many steps with the rate of few.
7. On the simulated clock, whether another step fits is a question of its ``step`` cost; the
   encoding that it begins with may end after the deadline. In the paper's time units encoding costs
   nothing of its own.

Legend: Φ: snapshot of all embeddings and the fusion model; τ_k: local steps of party k; w̄_k: the
largest of its weights; A_k: its configured learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from colonnade.core.errors import ConfigError, MissingBlock
from colonnade.core.fabric import UNBOUNDED, Clock
from colonnade.core.label_holder import LabelHolder
from colonnade.core.local_optimizers import step_weights
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo, Needs
from colonnade.core.parties import Parties, each
from colonnade.core.party import Party
from colonnade.core.releases import Count, Derivative, Embedding, Weights
from colonnade.core.verbs import verb
from colonnade.parts.embedding_table import EmbeddingTable
from colonnade.parts.method_memory import LeftOut
from colonnade.parts.split_step import predict_by_fusion

__all__ = ["PBCD", "AdaptiveFlex", "Flex", "SyncVFL"]

# Work that costs no time on a simulated clock would fit for ever.
_MOST_STEPS = 1000

Labels = Literal["private", "shared"]
# How learning rates follow the pace: not at all, that of the exchange before, that of this one.
_FIXED, _BY_LAST, _BY_NOW = range(3)


def steps_within(clock: Clock, kind: str, num_steps: int, timeout: int) -> Iterator[int]:
    """``num_steps`` of them, or, if that is 0, as many as fit; at least one."""
    deadline = clock.now() + timeout
    step = 0
    while step == 0 or (
        step < num_steps if num_steps else step < _MOST_STEPS and clock.fits(kind, deadline)
    ):
        yield step
        step += 1


def num_fitting(clock: Clock, kind: str, timeout: int) -> int:
    """How many of them that will be, as far as one can tell."""
    return min(max(1, clock.num_fitting(kind, timeout)), _MOST_STEPS)


def adapted_rate(optimizer: torch.optim.Optimizer, configured: float, num_steps: int) -> float:
    """η_k = A_k / (τ_k w̄_k) (Algorithm 2)."""
    return configured / (num_steps * max(step_weights(optimizer, num_steps)))


class Upload(TypedDict):
    """An embedding, and how many local steps fit into the timeout now."""

    embedding: Embedding
    fitting: Count


@dataclass
class Pace:
    """How many local steps the last exchange had, and the learning rate of the settings."""

    num_steps: int = 0
    configured_rate: float | None = None

    def adapt(self, optimizer: torch.optim.Optimizer, estimate: int, adaptive: int) -> bool:
        """Set η = A / (τ w̄); ``estimate`` is τ of this exchange, as far as the clock can tell.

        Returns:
            Whether that is a mere guess: on a real clock nobody knows before the first step of all.
        """
        group = optimizer.param_groups[0]
        if self.configured_rate is None:
            self.configured_rate = group["lr"]
        num_steps = estimate if adaptive == _BY_NOW else self.num_steps or estimate
        group["lr"] = adapted_rate(optimizer, self.configured_rate, num_steps)
        return self.num_steps == 0 and estimate == 1

    def take(
        self, step: int, optimizer: torch.optim.Optimizer, guessed: bool, fitting: Callable[[], int]
    ) -> None:
        """Count a step; after the first of all the rate follows what is known by then."""
        self.num_steps = step + 1
        if guessed and step == 0:
            self.adapt(optimizer, fitting(), _BY_NOW)


class FlexParty(Party):
    """The silo's half: local steps on one batch until the timeout."""

    @verb
    def embed(self, batch: Batch, timeout: int) -> Upload:
        """Send h_k(θ_k; x_k), and how many local steps fit into the timeout now."""
        fitting = num_fitting(self.clock, "step", timeout)
        return {"embedding": self.encode(batch), "fitting": torch.tensor(fitting)}

    @verb
    def descend(
        self, batch: Batch, gradient: Derivative, num_steps: int, timeout: int, adaptive: int
    ) -> None:
        """Local steps with dL/dh_k as received (labels private)."""
        take = self._begin(timeout, adaptive)
        for step in steps_within(self.clock, "step", num_steps, timeout):
            self.step(self.encode(batch), gradient)
            take(step)

    @verb
    def descend_knowing_labels(
        self,
        batch: Batch,
        snapshot: Mapping[str, Embedding],
        fusion: Mapping[str, Weights],
        num_steps: int,
        timeout: int,
        adaptive: int,
    ) -> None:
        """Local steps on Φ: own embedding fresh, the others' and the fusion model stale."""
        take = self._begin(timeout, adaptive)
        replica = self.replica
        replica.fusion.load_state_dict(fusion)
        for step in steps_within(self.clock, "step", num_steps, timeout):
            embedding = self.encode(batch)
            leaf = embedding.detach().requires_grad_()
            with self.own_randomness():
                loss = replica.loss({**snapshot, self.name: leaf}, batch)
            (gradient,) = torch.autograd.grad(loss, leaf)
            self.step(embedding, gradient)
            take(step)

    def _begin(self, timeout: int, adaptive: int) -> Callable[[int], None]:
        """Set the rate for this exchange; what to call after every step."""
        self.begin_local_steps()
        fitting = partial(num_fitting, self.clock, "step", timeout)
        pace, guessed = self.memory.recall(Pace), False
        if adaptive != _FIXED:
            guessed = pace.adapt(self.optimizer, fitting(), adaptive)
        return partial(pace.take, optimizer=self.optimizer, guessed=guessed, fitting=fitting)


async def flexible_exchange(
    holder: LabelHolder,
    parties: Parties,
    batch: Batch,
    *,
    labels: Labels,
    timeout: int,
    wanted: Literal["one", "fixed", "min", "max", "all"],
    num_steps: int = 0,
    adaptive: int = _FIXED,
) -> None:
    """Algorithm 1, lines 3 to 16; ``wanted`` says how τ_k is chosen."""
    # The synchronous ones wait as the run's patience says; Flex goes on without the silent.
    limit = parties.deadline() if wanted == "all" else None
    uploads = await parties.ask("embed", batch, timeout, deadline=limit)
    embeddings = {name: item["embedding"] for name, item in uploads.items()}
    fitting = [int(item["fitting"]) for item in uploads.values()]
    _complete(holder, parties, batch, embeddings)
    steps = {
        "one": 1,
        "fixed": num_steps,
        "min": min(fitting, default=1),
        "max": max(fitting, default=1),
        "all": 0,
    }[wanted]
    own_steps = steps
    if wanted == "all" and holder.clock.num_fitting("fuse", timeout) >= UNBOUNDED:
        # The label holder's work costs nothing on this clock: let it keep up with the fastest.
        own_steps = max(fitting, default=1)
    holder.begin_local_steps()
    pace, guessed = holder.memory.recall(Pace), False
    own_fitting = partial(num_fitting, holder.clock, "fuse", timeout)
    if adaptive != _FIXED:
        guessed = pace.adapt(holder.optimizer, own_steps or own_fitting(), adaptive)
    began, own_began = parties.now(), holder.clock.now()
    present = tuple(uploads)
    try:
        gradients = holder.gradients(embeddings, batch)
    except MissingBlock:
        holder.memory.recall(LeftOut).count += 1
        return
    loss = holder.last_loss
    # Everybody is to be done when the timeout is over, and some of it has passed.
    how = steps, max(1, timeout - (holder.clock.now() - own_began)), adaptive
    if labels == "private":
        own = each({name: gradients[name] for name in present})
        await parties.tell("descend", batch, own, *how, among=present)
    else:
        fusion = dict(holder.fusion.state_dict())
        await parties.tell("descend_knowing_labels", batch, embeddings, fusion, *how, among=present)
    # The parties begin now, not when the label holder has taken its own steps. Where the rate goes
    # by the steps of the exchange before, nothing else may take their time.
    parties.hand_out(has_time=adaptive != _BY_LAST)
    left = max(1, timeout - (holder.clock.now() - own_began))
    for step in steps_within(holder.clock, "fuse", own_steps, left):
        if step:
            holder.gradients(embeddings, batch)
        holder.step()
        pace.take(step, holder.optimizer, guessed, own_fitting)
    holder.last_loss = loss  # of the exchange's start, as for every other method
    if wanted in ("min", "all"):
        # The exchange lasts until the timeout, whoever is done before.
        await parties.wait_until(began + timeout)


def _complete(
    holder: LabelHolder, parties: Parties, batch: Batch, embeddings: dict[str, Tensor]
) -> None:
    """Remember who answered; let the last known embedding stand in for who did not."""
    table = EmbeddingTable(holder)
    for name, embedding in embeddings.items():
        table.write(name, batch, embedding)
    for name in parties.names:
        if name not in embeddings and table.knows(name, batch):
            embeddings |= table.read(batch, [name], fresh=())
    table.advance()


def _checked_timeout(timeout: int) -> None:
    if timeout < 1:
        raise ConfigError(f"timeout: at least 1 tick, got {timeout}")


def _info(name: str, summary: str, *, tolerates_slow: bool = False) -> MethodInfo:
    paper = "Flex-VFL (Castiglia et al. 2023)"
    return MethodInfo(name=name, paper=paper, summary=summary, tolerates_slow=tolerates_slow)


class _FlexFamily(Method):
    """What the four have in common: who knows the labels."""

    party = FlexParty
    predict = predict_by_fusion
    labels: Labels

    @property
    def needs(self) -> Needs:
        """Labels at the parties, if they are shared."""
        return Needs(labels=self.labels)

    @property
    def most_local_steps(self) -> int:
        """As many as fit into the timeout, up to a limit."""
        return _MOST_STEPS

    def findings(self, holder: LabelHolder) -> Mapping[str, Any]:
        """How many exchanges were left out because a block had never been seen."""
        return {"num_left_out": holder.memory.recall(LeftOut).count}


@dataclass(frozen=True, kw_only=True)
class PBCD(_FlexFamily):
    """Parallel block coordinate descent: τ_k = 1 for all."""

    info = _info("pbcd", "one local step each per exchange (Flex with τ = 1)")

    labels: Labels = "private"

    @property
    def most_local_steps(self) -> int:
        """One."""
        return 1

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """One step everywhere."""
        await flexible_exchange(holder, parties, batch, labels=self.labels, timeout=0, wanted="one")


@dataclass(frozen=True, kw_only=True)
class SyncVFL(_FlexFamily):
    """The same number of local steps everywhere.

    ``steps = "fixed"``: ``local_steps``; ``"min"``: as many as the slowest manages within the
    timeout; ``"max"``: as many as the fastest manages, and everybody waits for the slowest.
    """

    info = _info(
        "sync_vfl",
        "the same number of local steps everywhere: fixed, the slowest's or the fastest's",
    )

    labels: Labels = "private"
    steps: Literal["fixed", "min", "max"] = "fixed"
    local_steps: int = 5
    timeout: int = 20

    def __post_init__(self) -> None:
        _checked_timeout(self.timeout)
        if self.local_steps < 1:
            raise ConfigError(f"local_steps: must be at least 1, got {self.local_steps}")

    @property
    def most_local_steps(self) -> int:
        """A number, or as many as fit."""
        return self.local_steps if self.steps == "fixed" else _MOST_STEPS

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """Equal τ."""
        await flexible_exchange(
            holder,
            parties,
            batch,
            labels=self.labels,
            timeout=self.timeout,
            wanted=self.steps,
            num_steps=self.local_steps,
        )


@dataclass(frozen=True, kw_only=True)
class Flex(_FlexFamily):
    """Every party takes as many local steps as it manages before the timeout (Algorithm 1)."""

    info = _info(
        "flex", "local steps until a timeout, as many as each party manages", tolerates_slow=True
    )

    labels: Labels = "private"
    timeout: int = 20

    def __post_init__(self) -> None:
        _checked_timeout(self.timeout)

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """Algorithm 1, lines 3 to 16."""
        await flexible_exchange(
            holder, parties, batch, labels=self.labels, timeout=self.timeout, wanted="all"
        )


@dataclass(frozen=True, kw_only=True)
class AdaptiveFlex(_FlexFamily):
    """Flex with learning rates A_k / (τ_k w̄_k) (Algorithm 2).

    ``pace`` says whose τ_k: that of the exchange before, or that which fits now.
    """

    info = _info(
        "adaptive_flex",
        "Flex with learning rates fitted to each party's last pace",
        tolerates_slow=True,
    )

    labels: Labels = "private"
    timeout: int = 20
    pace: Literal["last", "now"] = "last"

    def __post_init__(self) -> None:
        _checked_timeout(self.timeout)

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """Algorithm 2, lines 4 to 18."""
        await flexible_exchange(
            holder,
            parties,
            batch,
            labels=self.labels,
            timeout=self.timeout,
            wanted="all",
            adaptive=_BY_LAST if self.pace == "last" else _BY_NOW,
        )
