"""Party: a block of columns, an encoder, an optimizer. Neither columns nor weights leave it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import Diverged, ProtocolError, Refused, StorageError
from colonnade.core.fabric import Clock
from colonnade.core.local_optimizers import LocalOptimizer
from colonnade.core.messages import Batch, Call, Value
from colonnade.core.optimizers import OptimizerSpec, optimizer_state, restore_optimizer
from colonnade.core.protection import Encoding, Guard
from colonnade.core.respondent import Respondent
from colonnade.core.seeds import derive_seed, drawing_from
from colonnade.core.task import Task
from colonnade.core.verbs import verb

__all__ = ["Part", "Party", "Replica", "Vault"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a party's block (training, validation, ...), ready for its encoder."""

    features: Tensor
    plan: BatchPlan
    # The row of every position, -1 where the sample is not here; none if all are, in order.
    rows: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Replica:
    """What a party with labels of its own needs to compute the loss by itself."""

    fusion: nn.Module
    task: Task
    parts: Mapping[str, tuple[Tensor, BatchPlan]]

    def loss(self, embeddings: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The loss of a batch under the fusion model as last received."""
        return self.task.loss(self.fusion(embeddings), self.targets(batch))

    def targets(self, batch: Batch) -> Tensor:
        """The encoded labels of a batch."""
        targets, plan = self.parts[batch.part]
        return targets[plan.positions(batch.number)]


class Vault(Protocol):
    """Where a participant keeps its own checkpoints."""

    def keep(self, tag: str, state: Mapping[str, Any]) -> None:
        """Write a state under a tag, wholly or not at all."""

    def retain(self, tags: Collection[str]) -> None:
        """Let go of every state but these."""

    def fetch(self, tag: str) -> dict[str, Any]:
        """Read the state under a tag."""


class Party(Respondent):
    """The silo's half of a method; subclasses add the method's verbs.

    The base has what every method needs: embeddings for prediction, and keeping and restoring
    its own state. ``encode`` and ``step`` are for the verbs of subclasses.
    """

    def __init__(
        self,
        *,
        name: str,
        encoder: nn.Module,
        optimizer: OptimizerSpec,
        parts: Mapping[str, Part],
        seed: int = 0,
        deterministic: bool = False,
        modules: Mapping[str, nn.Module] | None = None,
        replica: Replica | None = None,
        vault: Vault | None = None,
        clock: Clock | None = None,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(name=name, clock=clock)
        self.guard = guard
        # What was encoded for the call under way; only a guard asks for it.
        self._made: list[Encoding] = []
        self._num_inferences = 0
        self.parts = dict(parts)
        self.model = nn.ModuleDict({"encoder": encoder, **(modules or {})})
        self.encoder = encoder
        self._parameters = list(self.model.parameters())
        self.optimizer = optimizer.build(self._parameters)
        self.num_local_steps = 0
        # What a method remembers between exchanges; tensors and plain values only.
        self.memory: dict[str, Any] = {}
        self._seed = derive_seed(seed, "party", name)
        self._deterministic = deterministic
        self._replica = replica
        self._vault = vault
        self._num_encodings = 0
        # The last encoding's graph, kept until a step makes it stale.
        self._pending: tuple[Batch, int, Tensor] | None = None

    # What a method's verbs are made of

    def rows(self, batch: Batch) -> Tensor:
        """This party's features for a batch."""
        part = self.parts.get(batch.part)
        if part is None:
            raise ProtocolError(
                f"party '{self.name}' has no part '{batch.part}'; it has {sorted(self.parts)}"
            )
        positions = part.plan.positions(batch.number)
        if part.rows is None:
            return part.features[positions]
        rows = part.rows[positions]
        if int(rows.min()) < 0:
            raise ProtocolError(
                f"party '{self.name}' has no row for {int((rows < 0).sum())} of {len(rows)} "
                f"samples of batch {batch.number} ('{batch.part}'); ask only those who have them"
            )
        return part.features[rows]

    def encode(self, batch: Batch) -> Tensor:
        """The embedding h_k(θ_k; x_k) with its graph; not computed twice for the same weights."""
        if self._pending is not None and self._pending[0] == batch:
            self._note("encode", self._pending[1], batch, self._pending[2])
            return self._pending[2]
        self.clock.begin()
        self._num_encodings += 1
        embedding = self._forward(batch, self._num_encodings)
        self._pending = (batch, self._num_encodings, embedding)
        self._note("encode", self._num_encodings, batch, embedding)
        self.clock.work("encode")
        return embedding

    def as_release(self, value: Tensor) -> Tensor:
        """Have what was made of the last embedding leave in its place, protected as it would be."""
        if self._made:
            self._made[-1] = self._made[-1]._replace(embedding=value)
        return value

    def step(
        self,
        embedding: Tensor,
        gradient: Tensor,
        further: Iterable[tuple[nn.Parameter, Tensor]] = (),
    ) -> None:
        """One local step: back-propagate dL/dh_k through the encoder and update θ_k.

        ``further`` gives the gradients of own parameters that the embedding does not depend on.
        """
        if gradient.shape != embedding.shape:
            raise ProtocolError(
                f"gradient of shape {tuple(gradient.shape)} for an embedding of shape "
                f"{tuple(embedding.shape)}"
            )
        self.clock.begin()
        for parameter in self._parameters:
            parameter.grad = None
        torch.autograd.backward(embedding, gradient)
        for parameter, own_gradient in further:
            parameter.grad = own_gradient
        self.optimizer.step()
        self._pending = None
        self.num_local_steps += 1
        self.clock.work("step")

    @property
    def replica(self) -> Replica:
        """Labels and fusion model, where the parties agreed to share labels."""
        if self._replica is None:
            raise ProtocolError(f"party '{self.name}' has no labels; they are private here")
        return self._replica

    def own_randomness(self) -> AbstractContextManager[None]:
        """Within it, dropout and the like draw from this party's own stream."""
        return drawing_from(derive_seed(self._seed, "own", self._num_encodings))

    def begin_local_steps(self) -> None:
        """Tell an optimizer that minds exchanges that one begins (Flex-VFL, section IV)."""
        if isinstance(self.optimizer, LocalOptimizer):
            self.optimizer.begin_exchange()

    # The door

    def entering(self, call: Call) -> None:
        """Forget what was encoded for the call before; an order to add up is for the guard."""
        self._made.clear()
        if call.summand is not None:
            self._own_guard().add_up(call.summand)

    def leaving(self, call: Call, value: Value) -> Value:
        """Let the guard look at what leaves."""
        if self.guard is None:
            return value
        try:
            return self.guard.leaving(call, value, self._made)
        finally:
            self._made.clear()

    def refused(self, call: Call, error: Refused) -> None:
        """Have the guard note a refusal."""
        if self.guard is not None:
            self.guard.refused(call, error)

    # Verbs of every party

    @verb
    def infer(self, batch: Batch) -> Tensor:
        """The embedding for prediction: evaluation mode, no graph, no simulated time."""
        if self.guard is not None:
            self._num_inferences += 1
            self.guard.encoding("infer", self._num_inferences, batch)
        self.model.eval()
        try:
            with torch.no_grad():
                embedding: Tensor = self.encoder(self.rows(batch))
        finally:
            self.model.train()
        self._note("infer", self._num_inferences, batch, embedding)
        return embedding

    @verb
    def refresh(self, batch: Batch) -> Tensor:
        """The embedding as training sees it, without starting anything that awaits a gradient."""
        self._num_encodings += 1
        with torch.no_grad():
            embedding = self._forward(batch, self._num_encodings)
        self._note("encode", self._num_encodings, batch, embedding)
        self.clock.work("encode")
        return embedding

    @verb
    def privacy_spent(self) -> Mapping[str, float]:
        """What the releases so far amount to; empty without a guarantee."""
        return {} if self.guard is None else self.guard.spent()

    @verb
    def seal(self) -> Mapping[str, Tensor]:
        """Make the ledger last; how many entries it has, and the last one's hash."""
        sealed = {} if self.guard is None else self.guard.seal()
        if not sealed:
            return {}
        head = torch.frombuffer(bytearray.fromhex(sealed["head"]), dtype=torch.uint8)
        return {"entries": torch.tensor(sealed["entries"]), "head": head}

    @verb
    def offer_key(self) -> Mapping[str, Tensor]:
        """A fresh public key for sums that hide what is added, signed."""
        return self._own_guard().offer_key()

    @verb
    def accept_keys(self, keys: Mapping[str, Tensor]) -> None:
        """Agree on secrets with the other parties, whose keys these are."""
        self._own_guard().accept_keys(keys)

    @verb
    def local_steps(self) -> int:
        """How many local steps this party has done."""
        return self.num_local_steps

    @verb
    def keep(self, tag: str) -> None:
        """Write own state to own vault; weights that are no longer finite are refused."""
        if not all(torch.isfinite(parameter).all() for parameter in self._parameters):
            raise Diverged(
                f"exchange {self.exchange}: the weights of party '{self.name}' are no longer "
                "finite; lower its learning rate",
                exchange=self.exchange,
                party=self.name,
            )
        self._own_vault().keep(tag, self.state())

    @verb
    def retain(self, newest: str, best: str) -> None:
        """Let go of every kept state but these two."""
        self._own_vault().retain((newest, best))

    @verb
    def fetch(self, tag: str) -> None:
        """Go back to a state in own vault."""
        self.restore(self._own_vault().fetch(tag))

    # State

    def state(self) -> dict[str, Any]:
        """Everything that training changes."""
        pending = self._pending
        return {
            "model": self.model.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "memory": self.memory,
            "num_local_steps": self.num_local_steps,
            "num_encodings": self._num_encodings,
            "pending": pending and [pending[0].part, pending[0].number, pending[1]],
            "guard": None
            if self.guard is None
            else {"num_inferences": self._num_inferences, **self.guard.state()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave; an encoding that awaited its gradient is made anew."""
        self.model.load_state_dict(state["model"])
        restore_optimizer(self.optimizer, state["optimizer"])
        self.memory = dict(state["memory"])
        self.num_local_steps = state["num_local_steps"]
        self._num_encodings = state["num_encodings"]
        self._pending = None
        if self.guard is not None and state.get("guard") is not None:
            self._num_inferences = state["guard"]["num_inferences"]
            self.guard.restore(state["guard"])
        # A federation that only predicts has no training part, and nothing awaits a gradient.
        if state["pending"] is not None and state["pending"][0] in self.parts:
            buffers = {name: item.clone() for name, item in self.model.named_buffers()}
            part, batch_number, number = state["pending"]
            batch = Batch(part, batch_number)
            self._pending = (batch, number, self._forward(batch, number))
            # Encoding again moved running statistics (batch norm) a second time: put them back,
            # past autograd's bookkeeping, since the graph made just now does not read them.
            for name, buffer in self.model.named_buffers():
                buffer.data.copy_(buffers[name])

    def _own_vault(self) -> Vault:
        if self._vault is None:
            raise StorageError(f"party '{self.name}' has no place to keep checkpoints")
        return self._vault

    def _own_guard(self) -> Guard:
        if self.guard is None:
            raise ProtocolError(f"party '{self.name}' has no protection that could do this")
        return self.guard

    def _note(self, purpose: str, number: int, batch: Batch, embedding: Tensor) -> None:
        if self.guard is not None:
            plan = self.parts[batch.part].plan
            self._made.append(Encoding(purpose, number, batch, plan, embedding))

    def _forward(self, batch: Batch, number: int) -> Tensor:
        """Encode in training mode; dropout and the like draw from this party's own stream."""
        rows = self.rows(batch)
        if self.guard is not None:
            self.guard.encoding("encode", number, batch)
        if self._deterministic:
            embedding: Tensor = self.encoder(rows)
            return embedding
        with drawing_from(derive_seed(self._seed, "encode", number)):
            embedding = self.encoder(rows)
        return embedding
