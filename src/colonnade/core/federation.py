"""Federation: a method, a label holder and parties on a fabric; training and evaluation of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from colonnade.core.batches import BatchPlan
from colonnade.core.each import Predicted, measure_each
from colonnade.core.errors import ConfigError, Diverged
from colonnade.core.fabric import Fabric
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method
from colonnade.core.parties import Parties, Patience
from colonnade.core.protection import Reader
from colonnade.core.sums import Sums

__all__ = ["Event", "Federation", "LoopState", "Predictions", "Stop"]


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When training ends: whichever comes first.

    ``target`` is a quality on the validation part; ``patience`` counts evaluations without a new
    best, after which training ends and goes back to the best. Evaluations come every
    ``evaluate_every`` exchanges, once per epoch if not given.
    """

    exchanges: int | None = None
    epochs: int | None = None
    target: float | None = None
    patience: int | None = None
    evaluate_every: int | None = None

    def __post_init__(self) -> None:
        if self.exchanges is None and self.epochs is None:
            raise ConfigError("set exchanges or epochs, so that training ends for certain")
        for name in ("exchanges", "epochs", "patience", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: must be at least 1, got {value}")


@dataclass
class LoopState:
    """How far training is; part of every checkpoint."""

    exchange: int = 0
    best_quality: float = -math.inf
    best_exchange: int = 0
    num_without_best: int = 0
    # Seconds spent in exchanges, on the fabric's clock; evaluations and checkpoints don't count.
    elapsed: float = 0.0
    stopped_by: str = ""


class Event(NamedTuple):
    """One exchange done; with metrics of the validation part when it was evaluated."""

    exchange: int
    loss: float
    metrics: Mapping[str, float] | None
    is_best: bool


class Predictions(NamedTuple):
    """Raw outputs of the federation in the part's order, and of every party by itself."""

    outputs: Tensor
    each: dict[str, Predicted]


@dataclass
class Federation:
    """Everything that trains together."""

    method: Method
    holder: LabelHolder
    fabric: Fabric
    patience: Patience = field(default_factory=Patience)
    sums: Sums | None = None
    read: Reader | None = None

    def __post_init__(self) -> None:
        self.parties = Parties(self.fabric, self.patience, sums=self.sums, read=self.read)

    def aside(self) -> Parties:
        """The same parties for evaluation and prediction."""
        return Parties(self.fabric.aside(), self.patience, sums=self.sums, read=self.read)

    @property
    def exchanges_per_epoch(self) -> int:
        """How many exchanges go once through the training part."""
        num_batches = self.holder.parts["train"].plan.num_batches
        return self.method.exchanges_per_epoch(num_batches, len(self.fabric.names))

    def num_exchanges(self, stop: Stop) -> int:
        """How many exchanges there will be at most."""
        limits = [stop.exchanges, stop.epochs and stop.epochs * self.exchanges_per_epoch]
        return min(limit for limit in limits if limit)

    def train(self, stop: Stop, state: LoopState) -> Iterator[Event]:
        """Train until told to stop, yielding after every exchange.

        Between two yields nothing is half done: a caller may keep a checkpoint there, or leave.
        """
        last = self.num_exchanges(stop)
        every = stop.evaluate_every or self.exchanges_per_epoch
        if state.exchange == 0:
            self.fabric.run(self.method.begin(self.holder, self.parties))
        while state.exchange < last and not state.stopped_by:
            self.holder.exchange = self.parties.exchange = state.exchange
            batch = Batch("train", state.exchange)
            before = self.fabric.elapsed_seconds()
            self.fabric.run(self.method.exchange(self.holder, self.parties, batch))
            state.elapsed += self.fabric.elapsed_seconds() - before
            state.exchange += 1
            metrics, is_best = None, False
            if "validation" in self.holder.parts and (
                state.exchange % every == 0 or state.exchange == last
            ):
                metrics = self.evaluate("validation")
                is_best = self._judge(metrics[self.holder.task.quality_name], stop, state)
            yield Event(state.exchange, self.holder.last_loss, metrics, is_best)
        self.fabric.run(self.parties.settle())
        state.stopped_by = state.stopped_by or "length"

    def _judge(self, quality: float, stop: Stop, state: LoopState) -> bool:
        is_best = quality > state.best_quality
        if is_best:
            state.best_quality, state.best_exchange = quality, state.exchange
            state.num_without_best = 0
        else:
            state.num_without_best += 1
        if stop.target is not None and quality >= stop.target:
            state.stopped_by = "target"
        elif stop.patience is not None and state.num_without_best >= stop.patience:
            state.stopped_by = "patience"
        return is_best

    def outputs(self, part: str, plan: BatchPlan) -> Tensor:
        """Raw outputs for every sample of a part, in the part's order."""
        return self.fabric.run(self._outputs(part, plan))

    async def _outputs(self, part: str, plan: BatchPlan) -> Tensor:
        parties = self.aside()
        numbers = range(plan.num_batches)
        rows = [
            await self.method.predict(self.holder, parties, Batch(part, number))
            for number in numbers
        ]
        return _in_order(rows, plan)

    def outputs_each(self, part: str, plan: BatchPlan) -> dict[str, Predicted]:
        """Raw outputs of every party with a predictor of its own, for the samples that it has."""
        return self.fabric.run(self._outputs_each(part, plan))

    async def _outputs_each(self, part: str, plan: BatchPlan) -> dict[str, Predicted]:
        parties = self.aside()
        found: dict[str, list[Predicted]] = {}
        for number in range(plan.num_batches):
            positions = plan.positions(number)
            answers = await self.method.predict_each(self.holder, parties, Batch(part, number))
            for name, outputs in answers.items():
                found.setdefault(name, []).append(Predicted(positions, outputs))
        return _joined(found)

    def predictions(self, part: str, plan: BatchPlan) -> Predictions:
        """What ``outputs`` and ``outputs_each`` give, asking once where that is enough."""
        return self.fabric.run(self._predictions(part, plan))

    async def _predictions(self, part: str, plan: BatchPlan) -> Predictions:
        method, holder, parties = self.method, self.holder, self.aside()
        rows: list[Tensor] = []
        found: dict[str, list[Predicted]] = {}
        for number in range(plan.num_batches):
            batch = Batch(part, number)
            each = await method.predict_each(holder, parties, batch)
            row = method.answer_from(holder, parties, batch, each) if each else None
            rows.append(await method.predict(holder, parties, batch) if row is None else row)
            for name, outputs in each.items():
                found.setdefault(name, []).append(Predicted(plan.positions(number), outputs))
        return Predictions(_in_order(rows, plan), _joined(found))

    def evaluate(self, part: str) -> dict[str, float]:
        """Loss and every metric of the task on one part."""
        labels = self.holder.parts[part]
        outputs, each = self.predictions(part, labels.plan)
        if not torch.isfinite(outputs).all():
            raise self.fabric.run(self._diverged(part))
        task = self.holder.task
        measured = {
            "loss": task.loss(outputs, labels.targets).item(),
            **task.measure(outputs, labels.values),
        }
        return {**measured, **measure_each(task, each, labels.values)} if each else measured

    async def _diverged(self, part: str) -> Diverged:
        """Whose numbers are no longer finite: a party's embeddings, or else the fusion model's."""
        # Of a sum nobody can tell whose it was; a party whose own numbers are wild says so itself.
        parties, batch = self.aside(), Batch(part, 0)
        here = self.holder.observed(batch, parties.names)
        asked = {} if self.sums else await parties.ask("infer", batch, among=here)
        wild = [name for name, item in asked.items() if not torch.isfinite(item).all()]
        who = wild[0] if wild else self.holder.name
        exchange = self.holder.exchange
        return Diverged(
            f"exchange {exchange}: predictions on the {part} part are no longer finite, from "
            f"'{who}' on; lower its learning rate",
            exchange=exchange,
            party=who,
        )

    def state(self) -> dict[str, Any]:
        """The label holder's and the fabric's state; parties keep their own."""
        return {
            "holder": self.holder.state(),
            "parties": self.parties.state(),
            "fabric": self.fabric.state(),
            "meter": self.fabric.meter.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave."""
        self.holder.restore(state["holder"])
        self.parties.restore(state["parties"])
        self.fabric.restore(state["fabric"])
        self.fabric.meter.restore(state["meter"])


def _in_order(rows: Sequence[Tensor], plan: BatchPlan) -> Tensor:
    """Outputs of all batches in the part's order: its batches may be shuffled, labels are not."""
    order = torch.cat([plan.positions(number) for number in range(plan.num_batches)])
    return torch.cat(list(rows))[order.argsort()]


def _joined(found: Mapping[str, Sequence[Predicted]]) -> dict[str, Predicted]:
    return {
        name: Predicted(*(torch.cat(item) for item in zip(*found[name], strict=True)))
        for name in sorted(found)
    }
