"""Federation: a method, a label holder and parties on a fabric; it trains and predicts.

Measuring quality is not in here: see ``quality.evaluation``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from colonnade.core.batches import BatchPlan
from colonnade.core.checkpoints import Checkpoints
from colonnade.core.doors import Door
from colonnade.core.errors import DataError, MissingBlock, NoAnswer, Refused
from colonnade.core.evaluations import Evaluations, Measured
from colonnade.core.fabric import Fabric
from colonnade.core.label_holder import LabelHolder, LabelPart
from colonnade.core.loop import Event, LoopState, Stop, Timekeeper
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, Method
from colonnade.core.parties import Parties, Patience
from colonnade.core.party import Part
from colonnade.core.predictions import Predicted, Predictions, joined
from colonnade.core.presence import Presence
from colonnade.core.respondent import Agreed
from colonnade.core.snapshot import Snapshot
from colonnade.core.sums import Sums
from colonnade.core.task import LOWER_IS_BETTER
from colonnade.core.window import Question, ask_in_window

__all__ = ["Event", "Federation", "LoopState", "OtherParts", "Predicted", "Predictions", "Stop"]


@dataclass(frozen=True, kw_only=True)
class OtherParts:
    """Samples that a federation was not made with: features by party and part, labels, presence.

    One object per request; nobody changes it.
    """

    features: Mapping[str, Mapping[str, Part]]
    labels: Mapping[str, LabelPart] = field(default_factory=dict)
    presence: Mapping[str, Presence] = field(default_factory=dict)


class Evaluate(Protocol):
    """Measures the quality of a federation on one of its parts."""

    def __call__(
        self, federation: Federation, part: str, found: Predictions | None = None
    ) -> Mapping[str, float]:
        """Metrics by name; of predictions that were made already, if ``found`` is given."""


@dataclass
class Federation:
    """A method, its label holder, and its parties on a fabric."""

    method: Method
    holder: LabelHolder
    fabric: Fabric
    patience: Patience = field(default_factory=Patience)
    sums: Sums | None = None
    door: Door | None = None
    # The parties that keep an account of the privacy they spend.
    accounting: tuple[str, ...] = ()
    agreed: Agreed | None = None  # types and widths of what the parties send, where known

    def __post_init__(self) -> None:
        self.parties = self._parties(self.fabric, self.patience)

    def aside(self, *, needs_all: bool = False) -> Parties:
        """The same parties for evaluation, prediction and checkpoints: not counted as training.

        Args:
            needs_all: Whether a party that does not answer in time is an error whatever the run's
                patience says.
        """
        patience = replace(self.patience, then="stop") if needs_all else self.patience
        return self.beside(self.fabric.aside(), patience)

    def beside(
        self, fabric: Fabric, patience: Patience, plans: Mapping[str, BatchPlan] | None = None
    ) -> Parties:
        """The same parties over a fabric beside that of training, with a patience of its own.

        Beside a simulated clock parties answer as fast as the machine is: nobody's patience ends.
        """
        if not self.fabric.has_real_time:
            patience = replace(patience, timeout=None)
        parties = self._parties(fabric, patience)
        parties.plans = {**parties.plans, **(plans or {})}
        parties.exchange = self.parties.exchange
        parties.trains, parties.holds_up = False, not self.waits_for_nobody
        if not self.fabric.answers_at_once:
            # Whoever is away for training is away for everything else too.
            parties.attendance = self.parties.attendance
        return parties

    @property
    def waits_for_nobody(self) -> bool:
        """Whether evaluations and checkpoints go on beside training, for as long as they take."""
        return self.method.info.tolerates_slow and not self.fabric.answers_at_once

    def over(self, parts: OtherParts) -> Federation:
        """The same federation over other samples, for one prediction; nothing of it is changed."""
        holder = self.holder.over(parts.labels, parts.presence)
        return replace(self, holder=holder, fabric=self.fabric.aside(parts.features))

    def ask_all(self, verb: str, *arguments: Any) -> dict[str, Any]:
        """Every party's answer to a question that is no part of training; all must answer."""
        return self.fabric.run(self.aside(needs_all=True).ask(verb, *arguments))

    def _parties(self, fabric: Fabric, patience: Patience) -> Parties:
        verbs = {**Checkpoints.verbs, **Door.verbs, **self.method.party.verbs}
        plans = {part: item.plan for part, item in self.holder.parts.items()}
        return Parties(
            fabric,
            patience,
            sums=self.sums,
            door=self.door,
            verbs=verbs,
            agreed=self.agreed,
            plans=plans,
            presence=self.holder.presence,
        )

    @property
    def exchanges_per_epoch(self) -> int:
        """How many exchanges go once through the training part."""
        num_batches = self.holder.parts["train"].plan.num_batches
        return self.method.exchanges_per_epoch(num_batches, len(self.fabric.names))

    def num_exchanges(self, stop: Stop) -> int:
        """How many exchanges there will be at most."""
        return stop.num_exchanges(self.exchanges_per_epoch)

    def train(
        self,
        stop: Stop,
        state: LoopState,
        evaluate: Evaluate,
        timekeeper: Timekeeper | None = None,
    ) -> Iterator[Event]:
        """Train until told to stop, yielding after every exchange.

        Between two yields nothing is half done: a caller may keep a checkpoint there, or leave.

        Args:
            stop: When to stop.
            state: How far training is; brought up to date.
            evaluate: Measures the quality on the validation part.
            timekeeper: Counts the time of exchanges and evaluations.
        """
        last = self.num_exchanges(stop)
        every = stop.evaluate_every or self.exchanges_per_epoch
        time = timekeeper or Timekeeper(self.fabric, state)
        beside = Evaluations(self, lambda found: evaluate(self, "validation", found), time)
        if state.exchange == 0:
            self.fabric.run(self.method.begin(self.holder, self.parties))
            time.look()
        if state.is_out_of_time(stop):
            state.stopped_by = state.stopped_by or "time"
        while state.exchange < last and not state.stopped_by:
            self.holder.exchange = self.parties.exchange = state.exchange
            batch = Batch("train", state.exchange)
            with time.on("training"):
                self.fabric.run(self.method.exchange(self.holder, self.parties, batch))
                self.fabric.pass_time("exchange")
            state.exchange += 1
            is_last = state.exchange == last or state.is_out_of_time(stop)
            if is_last:
                self._give_time()
            is_due = "validation" in self.holder.parts and (state.exchange % every == 0 or is_last)
            with time.on("evaluating"):
                if self.waits_for_nobody and not is_last:
                    event = self._look_at(beside, is_due, stop, state)
                else:
                    event = self._measure_now(is_due, evaluate, stop, state)
            if is_last and state.exchange < last:
                state.stopped_by = state.stopped_by or "time"
            yield event
        beside.give_up()
        self._give_time()
        try:
            self.fabric.run(self.parties.settle())
        except NoAnswer:
            if not self.waits_for_nobody:
                raise
        time.look()
        state.stopped_by = state.stopped_by or "length"

    def _give_time(self) -> None:
        """At the end of a run that waits for nobody: the last questions are for everybody."""
        if self.waits_for_nobody:
            self.patience = self.patience.at_the_end()
            self.parties.attendance.forgive()

    def _measure_now(self, is_due: bool, evaluate: Evaluate, stop: Stop, state: LoopState) -> Event:
        """Evaluate, with everybody waiting for it."""
        event = Event(state.exchange, self.holder.last_loss, None, False)
        if not is_due:
            return event
        try:
            metrics = evaluate(self, "validation")
        except MissingBlock:
            if not self.waits_for_nobody:
                raise
            # Somebody is away at the end of a run that goes on without.
            state.skipped_evaluations += 1
            return event._replace(skipped=self.parties.attendance.away)
        self.fabric.pass_time("evaluation")
        is_best = self._judge(Measured(state.exchange, metrics), stop, state)
        return event._replace(
            metrics=metrics, is_best=is_best, measured=state.exchange, is_asked=True
        )

    def _look_at(self, beside: Evaluations, is_due: bool, stop: Stop, state: LoopState) -> Event:
        """What came of the evaluation under way; and begin another if it is time for one."""
        event = Event(state.exchange, self.holder.last_loss, None, False)
        if (found := beside.look()) is not None:
            is_best = self._judge(found, stop, state)
            event = event._replace(metrics=found.metrics, is_best=is_best, measured=found.exchange)
        if is_due or beside.is_owed:
            if beside.ask(state.exchange):
                return event._replace(is_asked=True)
            state.skipped_evaluations += 1
            return event._replace(skipped=beside.waits_for)
        return event

    def _watched(self, metrics: Mapping[str, float], stop: Stop) -> float:
        """The metric that decides; more is better."""
        name = stop.metric or self.holder.task.quality_name
        if name not in metrics:
            raise DataError(
                f"stop.metric: '{name}' can't be measured on the validation part, which lacks a "
                "class; use a larger one, or another metric"
            )
        return -metrics[name] if name in LOWER_IS_BETTER else metrics[name]

    def _judge(self, found: Measured, stop: Stop, state: LoopState) -> bool:
        quality = self._watched(found.metrics, stop)
        is_best = quality > state.best_quality
        if is_best:
            state.best_quality, state.best_exchange = quality, found.exchange
            state.num_without_best = 0
        else:
            state.num_without_best += 1
        sign = -1 if stop.metric in LOWER_IS_BETTER else 1
        if stop.target is not None and quality >= sign * stop.target:
            state.stopped_by = "target"
        elif stop.is_out_of_patience(state):
            state.stopped_by = "patience"
        return is_best

    def predictions(
        self,
        part: str,
        plan: BatchPlan,
        *,
        each: bool = False,
        known: Mapping[int, Answer] | None = None,
        finished: Callable[[int, Answer], None] | None = None,
    ) -> Predictions:
        """Predict every sample of a part; batches are in flight together (``core.window``).

        Args:
            part: Its name.
            plan: Its batches.
            each: Whether every party's own predictions are wanted too.
            known: Answers of batches that need not be asked for again, by number.
            finished: Told the number and the answer of every other batch, as it ends.

        Returns:
            Raw outputs in the part's order: its batches may be shuffled, its samples are not.
        """
        return self.fabric.run(
            self.predicting(part, plan, each=each, known=known, finished=finished)
        )

    async def predicting(
        self,
        part: str,
        plan: BatchPlan,
        *,
        each: bool,
        known: Mapping[int, Answer] | None = None,
        finished: Callable[[int, Answer], None] | None = None,
        refused: Callable[[int, Refused], None] | None = None,
    ) -> Predictions:
        """The same for whoever has other things to do meanwhile; see ``predictions``.

        ``refused`` is told the number of every batch that a party refused, which is left out then.
        Without it a refusal is raised.
        """
        answers = dict(known or {})

        def end(number: int, answer: Answer | None) -> None:
            if answer is None:
                return
            answers[number] = answer
            if finished is not None:
                finished(number, answer)

        async def ask(parties: Parties, number: int) -> Answer | None:
            batch = Batch(part, number)
            try:
                return await self.method.predict(self.holder, parties, batch, each=each)
            except Refused as error:
                # A sum that lacks a part is begun anew by whoever asked for it.
                if refused is None or self.sums is not None:
                    raise
                refused(number, error)
                return None

        wanted = [number for number in range(plan.num_batches) if number not in answers]
        fabric = self.fabric.aside()
        # Where parts of a sum are masked, the first one agrees on keys for all.
        num_first = int(self.sums is not None or len(wanted) == 1)
        if fabric.is_immediate:
            num_first = len(wanted)
        # One for all: an answer too late for its batch is known by its number.
        parties = self.beside(fabric, self.patience, {part: plan})
        for number in wanted[:num_first]:
            end(number, await ask(parties, number))
        if wanted[num_first:]:
            await self._in_window(part, plan, wanted[num_first:], ask, end)
        return joined(self.holder, self.fabric.names, part, plan, answers)

    async def _in_window(
        self,
        part: str,
        plan: BatchPlan,
        numbers: Sequence[int],
        ask: Callable[[Parties, int], Coroutine[Any, Any, Answer | None]],
        end: Callable[[int, Answer | None], None],
    ) -> None:
        def question(number: int) -> Question[Answer | None]:
            def begin(fabric: Fabric) -> Coroutine[Any, Any, Answer | None]:
                return ask(self.beside(fabric, self.patience, {part: plan}), number)

            return Question(num_rows=plan.num_positions(number), begin=begin)

        await ask_in_window(
            self.fabric.aside(),
            [question(number) for number in numbers],
            finished=lambda place, answer: end(numbers[place], answer),
        )

    def snapshot(self) -> Snapshot:
        """The label holder's and the fabric's state at this moment; parties keep their own."""
        own = {"holder": self.holder.state(), "parties": self.parties.state()}
        return Snapshot(self.fabric, own)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``snapshot`` gave."""
        self.holder.restore(state["holder"])
        self.parties.restore(state["parties"])
        self.fabric.restore(state["fabric"])
        self.fabric.meter.restore(state["meter"])
