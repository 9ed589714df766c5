"""The result card: the headline beside what a guess, the label holder alone and all reach."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.core.task import Task
from colonnade.quality.intervals import interval_of

__all__ = ["CARD", "CardRow", "ResultCard", "card_row", "guess", "guess_row"]

# The file of a run directory that holds it.
CARD = "card.json"

_NAMES = {
    "auc": "AUC",
    "r2": "R²",
    "average_precision": "average precision",
    "macro_f1": "macro-F1",
    "f1": "F1",
}


@dataclass(frozen=True, kw_only=True)
class CardRow:
    """One model's quality, and the interval that 95 of 100 other samples would give."""

    who: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ResultCard:
    """What to look at first.

    Attributes:
        metric: The headline's name, as in ``Task.measure``.
        part: The held-out part.
        num_samples: How many samples it has.
        rows: A guess, the label holder alone if it has columns, and all together.
        note: What is missing from the rows, and why.
    """

    metric: str
    part: str
    num_samples: int
    rows: tuple[CardRow, ...]
    note: str = ""

    @property
    def title(self) -> str:
        """What the numbers are."""
        name = _NAMES.get(self.metric, self.metric)
        return f"{name} on {self.num_samples} {self.part} samples (95 % interval)"

    def lines(self) -> list[str]:
        """The card for a terminal."""
        width = max(len(row.who) for row in self.rows)
        said = [self.title]
        said += [f"  {row.who:<{width}}  {_shown(row)}" for row in self.rows]
        return [*said, *([f"  {self.note}"] if self.note else [])]

    def html(self) -> str:
        """The card for a notebook or a page."""
        rows = "".join(
            f"<tr><td>{html.escape(row.who)}</td><td>{row.value:.3f}</td>"
            f"<td>{_interval(row)}</td></tr>"
            for row in self.rows
        )
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return f"<table><caption>{html.escape(self.title)}</caption>{rows}</table>{note}"

    def plain(self) -> dict[str, Any]:
        """As JSON's types, for a file."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> ResultCard:
        """What ``plain`` gave; KeyError, TypeError or ValueError if it is something else."""
        rows = tuple(
            CardRow(
                who=str(row["who"]),
                **{key: _number(row[key]) for key in ("value", "low", "high")},
            )
            for row in plain["rows"]
        )
        return cls(
            metric=str(plain["metric"]),
            part=str(plain["part"]),
            num_samples=int(plain["num_samples"]),
            rows=rows,
            note=str(plain["note"]),
        )


def card_row(who: str, metric: str, task: Task, outputs: Tensor, values: Any) -> CardRow:
    """Measure one model."""
    value = task.measure(outputs, values).get(metric, float("nan"))
    low, high = interval_of(metric, task, outputs, values)
    return CardRow(who=who, value=value, low=low, high=high)


def guess_row(metric: str, task: Task, train: Any, values: Any) -> CardRow:
    """What the same answer for everybody reaches: the commonest class, or the mean."""
    who, outputs = guess(task, train, len(values))
    return card_row(who, metric, task, outputs, values)


def guess(task: Task, train: Any, num_samples: int) -> tuple[str, Tensor]:
    """The same answer for everybody.

    Args:
        task: The task.
        train: The training part's labels.
        num_samples: How many answers to give.

    Returns:
        What the answer is, in words, and the raw outputs.
    """
    shape = (num_samples, task.num_outputs)
    if task.kind == "regression":
        return "the mean", torch.zeros(shape)
    shares = torch.tensor([float(np.mean(np.asarray(train) == item)) for item in task.classes])
    logits = shares.clamp_min(1e-6).log()
    if task.kind == "binary":
        logits = (logits[1] - logits[0])[None]
    return "the commonest class", logits.expand(shape)


def _shown(row: CardRow) -> str:
    return f"{_bound(row.value)}  ({_interval(row)})"


def _interval(row: CardRow) -> str:
    if math.isnan(row.low) and math.isnan(row.high):
        return "no interval"
    return f"{_bound(row.low)} to {_bound(row.high)}"


def _bound(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
