"""The training loop's settings and state: when it ends, how far it is, where the time went."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

from colonnade.core.errors import ConfigError
from colonnade.core.fabric import Fabric

__all__ = ["Event", "LoopState", "Stop", "Timekeeper"]


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When training ends: whichever comes first.

    ``target`` is a quality on the validation part; ``patience`` counts evaluations without a new
    best, after which training ends and goes back to the best. Both look at ``metric``: the task's
    own (accuracy or R²) if not given. Neither ``epochs`` nor ``patience`` ends training before
    ``least_exchanges``, which small tables need. Evaluations come every ``evaluate_every``
    exchanges, once per epoch if not given. ``seconds`` limits the time by the fabric's clock, with
    evaluations and without the time in which no process trained; the exchange under way is
    finished. ``refit`` trains anew on all rows afterwards, validation rows included, for as many
    epochs as were best; ``"auto"`` where that is quick and costs no privacy.
    """

    exchanges: int | None = None
    epochs: int | None = None
    target: float | None = None
    patience: int | None = None
    least_exchanges: int | None = None
    metric: str | None = None
    evaluate_every: int | None = None
    seconds: float | None = None
    refit: bool | Literal["auto"] = False

    def __post_init__(self) -> None:
        if self.exchanges is None and self.epochs is None:
            raise ConfigError("set exchanges or epochs, so that training ends for certain")
        for name in ("exchanges", "epochs", "patience", "least_exchanges", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: must be at least 1, got {value}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ConfigError(f"seconds: must be above 0, got {self.seconds}")
        if self.refit is True and self.patience is None:
            raise ConfigError("refit: needs patience, which finds how long to train on all rows")
        if self.refit is True and self.seconds is not None:
            raise ConfigError("refit: trains twice, and seconds limits one; leave one of them out")

    def num_exchanges(self, per_epoch: int) -> int:
        """How many exchanges there will be at most, if so many go once through the samples."""
        passes = self.epochs and max(self.epochs * per_epoch, self.least_exchanges or 0)
        limits = [self.exchanges, passes]
        return min(limit for limit in limits if limit)

    def is_out_of_patience(self, state: LoopState) -> bool:
        """Whether the last evaluations, as many as patience allows, had no new best."""
        if self.patience is None or state.exchange < (self.least_exchanges or 0):
            return False
        return state.num_without_best >= self.patience


@dataclass
class LoopState:
    """How far training is; part of every checkpoint."""

    exchange: int = 0
    best_quality: float = -math.inf
    best_exchange: int = 0
    num_without_best: int = 0
    # Seconds since the beginning, over all resumes; on a simulated clock, since the first exchange.
    elapsed: float = 0.0
    # Of these: spent on evaluations, on checkpoints, and while no process trained.
    evaluating: float = 0.0
    keeping: float = 0.0
    outages: float = 0.0
    # When this state was kept, by the wall clock; only where time is real.
    kept_at: float | None = None
    # Evaluations and checkpoints that were due while an earlier one was still under way.
    skipped_evaluations: int = 0
    skipped_checkpoints: int = 0
    stopped_by: str = ""

    def is_out_of_time(self, stop: Stop) -> bool:
        """Whether the time that there was for training has passed."""
        return stop.seconds is not None and self.elapsed - self.outages >= stop.seconds


class Event(NamedTuple):
    """One exchange done; with metrics of the validation part when an evaluation came out.

    Attributes:
        exchange: How many exchanges are done.
        loss: Of this one.
        metrics: What came out of an evaluation, if one ended here.
        is_best: Whether that is a new best.
        measured: The exchange that was evaluated; an earlier one, if parties took their time.
        is_asked: Whether an evaluation of this exchange began, or was made.
        skipped: Whom an evaluation waits for that is still under way, so that the one due here was
            left out.
    """

    exchange: int
    loss: float
    metrics: Mapping[str, float] | None
    is_best: bool
    measured: int = 0
    is_asked: bool = False
    skipped: tuple[str, ...] | None = None


class Timekeeper:
    """Keeps a loop's account of time, on the fabric's own clock."""

    def __init__(self, fabric: Fabric, loop: LoopState) -> None:
        self._fabric = fabric
        self._loop = loop
        self._began = fabric.elapsed_seconds()
        self._before = loop.elapsed

    def look(self) -> None:
        """Bring ``elapsed`` up to date, where time passes by itself."""
        if self._fabric.has_real_time:
            self._loop.elapsed = self._before + self._fabric.elapsed_seconds() - self._began

    def offset(self) -> float:
        """What to add to the fabric's seconds to have those of the run.

        Returns:
            Seconds; what was before a resume counts for the run and not for the fabric.
        """
        if self._fabric.has_real_time:
            return self._before - self._began
        return self._loop.elapsed - self._fabric.elapsed_seconds()

    @contextmanager
    def on(self, what: Literal["training", "evaluating", "keeping"]) -> Iterator[None]:
        """Count the time of what is done inside."""
        began = self._fabric.elapsed_seconds()
        try:
            yield
        finally:
            ended = self._fabric.elapsed_seconds()
            took = ended - began
            if what != "training":
                if self._fabric.timeline is not None:
                    self._fabric.timeline.note(None, what, began, ended)
                setattr(self._loop, what, getattr(self._loop, what) + took)
            if not self._fabric.has_real_time:
                self._loop.elapsed += took
            self.look()
