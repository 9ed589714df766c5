"""Party: a block of columns, an encoder, an optimizer. Neither columns nor weights leave it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from colonnade.core.batches import Batches, BatchPlan
from colonnade.core.checkpoints import Checkpoints, Vault
from colonnade.core.doors import Door
from colonnade.core.errors import Diverged, ProtocolError
from colonnade.core.evaluation_mode import Evaluation, by_running_statistics
from colonnade.core.fabric import Clock
from colonnade.core.local_optimizers import LocalOptimizer
from colonnade.core.memory import Memory
from colonnade.core.messages import Batch
from colonnade.core.optimizers import OptimizerSpec, optimizer_state, restore_optimizer
from colonnade.core.protection import Encoding, Notes
from colonnade.core.releases import Embedding
from colonnade.core.replica import Replica
from colonnade.core.respondent import Respondent
from colonnade.core.seeds import derive_seed, drawing_from
from colonnade.core.verbs import verb

__all__ = ["Part", "Party"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a party's block (training, validation, ...), ready for its encoder."""

    features: Tensor
    plan: BatchPlan
    # The row of every position, -1 where the sample is not here; none if all are, in order.
    rows: Tensor | None = None
    # The person of every position, for the account; below 0 where the sample is not here.
    people: Tensor | None = None

    @cached_property
    def own(self) -> Batches:
        """The plan's batches with the positions that are here."""
        return self.plan if self.rows is None else self.plan.own(self.rows >= 0)


class Party(Respondent):
    """The silo's half of a method; subclasses add the method's verbs.

    ``encode``, ``step``, ``infer`` and ``evaluating`` are what a method's verbs are made of. An
    embedding passes the party's door as soon as it is made, so a method never holds one that is
    not protected.

    Args:
        name: Its name in the federation.
        encoder: Its network from features to an embedding.
        optimizer: The settings of its optimizer.
        parts: Its samples, by part.
        seed: The run's seed; the party derives its own stream from it.
        deterministic: Whether its networks draw nothing, so that no stream needs to be set.
        modules: Further networks, such as a head, by name.
        replica: Labels and fusion model, where labels are shared.
        vault: Where it keeps checkpoints.
        clock: Its clock; the machine's if not given.
        door: What everything that leaves it passes.
        label_holder: Who sends it calls.
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
        door: Door | None = None,
        label_holder: str = "",
    ) -> None:
        self._checkpoints = Checkpoints(self, vault)
        aids = (self._checkpoints,)
        super().__init__(name=name, clock=clock, door=door, aids=aids, label_holder=label_holder)
        self.parts = dict(parts)
        self.model = nn.ModuleDict({"encoder": encoder, **(modules or {})})
        self.encoder = encoder
        self.evaluating = Evaluation(self.model)
        self._parameters = list(self.model.parameters())
        self.dtype = next((item.dtype for item in self._parameters), None)
        self.optimizer = optimizer.build(self._parameters)
        self._optimizing = optimizer
        self.num_local_steps = 0
        self.memory = Memory()
        self._seed = derive_seed(seed, "party", name)
        self._deterministic = deterministic
        self._replica = replica
        self._num_encodings = 0
        self._last_batch = Batch("", 0)
        # The last encoding's graph, kept until a step makes it stale.
        self._pending: tuple[Encoding, Tensor] | None = None

    def settle_in(self, vault: Vault, ledger: Notes | None = None) -> None:
        """Give the party its place: a vault for checkpoints, and a ledger if it keeps one."""
        self._checkpoints.vault = vault
        if ledger is None:
            return
        self.door.write_to(ledger)
        for entry in ledger.entries():
            for name, part, number in entry.get("released", ()):
                if part in self.parts:
                    left = self._encoding("recalled", 0, Batch(part, number))
                    self.door.take_up(bytes.fromhex(name), left)

    def over(self, parts: Mapping[str, Part]) -> Self:
        """The same party over other samples: for one prediction, with nothing shared to change.

        Args:
            parts: The samples to predict, by part.

        Returns:
            A party with the same weights and the same door, and these parts alone.
        """
        view = copy.copy(self)
        view.parts = dict(parts)
        view._pending = None
        return view

    # What a method's verbs are made of

    def rows(self, batch: Batch) -> Tensor:
        """This party's features for a batch.

        Args:
            batch: The samples.

        Returns:
            A row per sample that the party has, in the batch's order.

        Raises:
            ProtocolError: If the party does not have the part, or no sample of the batch.
            Refused: If the party's time for the run is over.
        """
        self.watch()
        part = self._part(batch)
        self.rests_on(batch)
        self._last_batch = batch
        if part.rows is None:
            return part.plan.taken(part.features, batch.number)
        positions = part.own.positions(batch.number)
        if not len(positions):
            raise ProtocolError(
                f"party '{self.name}' has none of the samples of batch {batch.number} "
                f"('{batch.part}'); ask only those who have some"
            )
        return part.features[part.rows[positions]]

    def rests_on(self, batch: Batch) -> None:
        """Charge this answer to the people of a ``batch``, whose rows an earlier call read."""
        self._read.append(self._encoding("read", 0, batch))

    def own_places(self, batch: Batch) -> Tensor:
        """Where in a batch the samples are that the party has.

        Args:
            batch: The samples.

        Returns:
            A place per row of ``rows``, ascending.
        """
        part = self._part(batch)
        every = part.plan.positions(batch.number)
        if part.rows is None:
            return torch.arange(len(every))
        return (part.rows[every] >= 0).nonzero()[:, 0]

    def encode(self, batch: Batch) -> Tensor:
        """The embedding h_k(θ_k; x_k) with its graph; not computed twice for the same weights.

        Args:
            batch: The samples.

        Returns:
            A row per sample that the party has, as its protections let it be used.

        Raises:
            ProtocolError: If the party does not have the part, or no sample of the batch.
        """
        if self._pending is not None and self._pending[0].batch == batch:
            self._made.append(self._pending[0])
            self._last_batch = batch
            return self._pending[1]
        self.clock.begin()
        self._num_encodings += 1
        encoding = self._encoding("encode", self._num_encodings, batch)
        embedding = self._forward(encoding)
        self._pending = (encoding, embedding)
        self._made.append(encoding)
        self.clock.work("encode")
        return embedding

    def step(
        self,
        embedding: Tensor,
        gradient: Tensor,
        further: Sequence[tuple[nn.Parameter, Tensor]] = (),
        *,
        batch: Batch | None = None,
    ) -> None:
        """One local step: back-propagate dL/dh_k through the encoder and update θ_k.

        Args:
            embedding: What ``encode`` gave, or something made of it.
            gradient: The derivative of the loss by it, of the same shape.
            further: Gradients of own parameters that the embedding does not depend on.
            batch: The samples, if they are not those of the last embedding.

        Raises:
            ProtocolError: If the shapes differ.
            Refused: If the party takes no more steps in this call.
        """
        if gradient.shape != embedding.shape:
            raise ProtocolError(
                f"gradient of shape {tuple(gradient.shape)} for an embedding of shape "
                f"{tuple(embedding.shape)}"
            )
        if self.step_rules is not None:
            self.step_rules.take_step()
        self.watch()
        self.clock.begin()
        for parameter in self._parameters:
            parameter.grad = None
        if self.door.on_steps is None:
            torch.autograd.backward(embedding, gradient)
        else:
            of = self._encoding("step", self.num_local_steps, batch or self._last_batch)
            self.door.on_steps.differentiate(embedding, gradient, self._parameters, of, further)
        for parameter, own_gradient in further:
            parameter.grad = own_gradient
        if self._optimizing.is_plain:
            self.optimizer.step()
        else:
            self._optimizing.step(self.optimizer, self.exchange)
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
        """Have dropout and the like draw from this party's own stream.

        Returns:
            A context manager.
        """
        return drawing_from(derive_seed(self._seed, "own", self._num_encodings))

    def begin_local_steps(self) -> None:
        """Tell an optimizer with state per exchange that one begins (Flex-VFL, section IV)."""
        if isinstance(self.optimizer, LocalOptimizer):
            self.optimizer.begin_exchange()

    # Verbs of every party

    @verb
    def infer(self, batch: Batch) -> Embedding:
        """Send the embedding for prediction: evaluation mode, no graph, no simulated time.

        Args:
            batch: The samples.

        Returns:
            A row per sample.
        """
        encoding = self._encoding("infer", self.door.number_inference(), batch)
        with self.evaluating():
            embedding = self.door.encoded(self.encoder(self.rows(batch)), encoding)
        self._made.append(encoding)
        return embedding

    @verb
    def refresh(self, batch: Batch) -> Embedding:
        """Send the embedding as training sees it; nothing waits for its gradient.

        Args:
            batch: The samples.

        Returns:
            A row per sample.
        """
        self._num_encodings += 1
        encoding = self._encoding("encode", self._num_encodings, batch)
        with torch.no_grad():
            embedding = self._forward(encoding)
        self._made.append(encoding)
        self.clock.work("encode")
        return embedding

    @verb
    def local_steps(self) -> int:
        """Count the local steps that this party has done.

        Returns:
            The number.
        """
        return self.num_local_steps

    # State

    def refuse_non_finite(self) -> None:
        """Check the weights.

        Raises:
            Diverged: If they are no longer finite.
        """
        if not all(torch.isfinite(parameter).all() for parameter in self._parameters):
            raise Diverged(
                f"exchange {self.exchange + 1}: the weights of party '{self.name}' are no longer "
                "finite; lower its learning rate",
                exchange=self.exchange + 1,
                party=self.name,
            )

    def state(self) -> dict[str, Any]:
        """Everything that training changes.

        Returns:
            Plain values and tensors, for a checkpoint.
        """
        waiting = self._pending and self._pending[0]
        return {
            "model": self.model.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "memory": self.memory.state(),
            "num_local_steps": self.num_local_steps,
            "num_encodings": self._num_encodings,
            "pending": waiting and [waiting.batch.part, waiting.batch.number, waiting.number],
            "door": self.door.state(),
            "paid": self.step_rules and self.step_rules.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave; an encoding that awaited its gradient is made anew."""
        self.model.load_state_dict(state["model"])
        restore_optimizer(self.optimizer, state["optimizer"])
        self.memory.restore(state["memory"])
        self.num_local_steps = state["num_local_steps"]
        self._num_encodings = state["num_encodings"]
        self._pending = None
        if self.step_rules is not None:
            self.step_rules.restore(state.get("paid") or ())
        self.door.restore(state["door"])
        # A federation that only predicts has no training part, and nothing awaits a gradient.
        if state["pending"] is not None and state["pending"][0] in self.parts:
            buffers = {name: item.clone() for name, item in self.model.named_buffers()}
            part, batch_number, number = state["pending"]
            encoding = self._encoding("encode", number, Batch(part, batch_number))
            self._pending = (encoding, self._forward(encoding))
            # Encoding again moved running statistics (batch norm) a second time: put them back,
            # past autograd's bookkeeping, since the graph made just now does not read them.
            for name, buffer in self.model.named_buffers():
                buffer.data.copy_(buffers[name])

    def _part(self, batch: Batch) -> Part:
        part = self.parts.get(batch.part)
        if part is None:
            raise ProtocolError(
                f"party '{self.name}' has no part '{batch.part}'; it has {sorted(self.parts)}"
            )
        return part

    def _encoding(self, purpose: str, number: int, batch: Batch) -> Encoding:
        part = self._part(batch)
        return Encoding(purpose, number, batch, part.own, part.people)

    def _forward(self, encoding: Encoding) -> Tensor:
        """Encode in training mode; dropout and the like draw from this party's own stream."""
        rows = self.rows(encoding.batch)
        is_lone = len(rows) == 1 and self._part(encoding.batch).rows is not None
        with (
            nullcontext()
            if self._deterministic
            else drawing_from(derive_seed(self._seed, "encode", encoding.number)),
            by_running_statistics(self.encoder) if is_lone else nullcontext(),
        ):
            embedding: Tensor = self.encoder(rows)
        return embedding if self.door.is_open else self.door.encoded(embedding, encoding)
