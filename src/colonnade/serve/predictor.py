"""The seat between HTTP and prediction: who answers a gathered list of ids by a deadline.

Ids are text here; a caller gets its own back as it wrote them. Times are seconds of the monotonic
clock. A predictor is called by one thread at a time, off the event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

__all__ = ["Outcome", "Predictor", "Provenance", "ServedExchange", "ServedModel", "Unanswered"]


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What callers may know of a model.

    Attributes:
        name: Its name in paths.
        version: The name of its run and a digest of its weights.
        kind: ``binary``, ``multiclass`` or ``regression``.
        label: The label's name.
        classes: The classes, in the order of probabilities.
        parties: Whose blocks it uses.
        tolerates_missing: Whether it answers without some of them.
        is_blinded: Whether parties' embeddings are only known as a sum, so that none can be kept.
    """

    name: str
    version: str
    kind: Literal["binary", "multiclass", "regression"]
    label: str
    classes: tuple[Any, ...]
    parties: tuple[str, ...]
    tolerates_missing: bool
    is_blinded: bool = False


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """A party's share in one answer: how old its embedding is, and whether it was kept."""

    age: float
    is_cached: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The answer for one id.

    Attributes:
        value: The label, or the number.
        probabilities: By class, in the model's order; none for a number.
        confidence: The calibrated probability of the label; none for a number.
        spread: The error to expect of a number; none for a label.
        parties: By party whose block was used, where its embedding comes from.
    """

    value: Any
    probabilities: tuple[float, ...] | None
    confidence: float | None
    spread: float | None
    parties: Mapping[str, Provenance]


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    """Why there is no answer for one id.

    ``unknown``: no party has it. ``away``: a party that the model needs did not answer.
    ``missing``: a party that the model needs does not have it. ``refused``: a party that the model
    needs refuses it by its own rules, such as a cap on queries.
    """

    reason: Literal["unknown", "away", "missing", "refused"]
    parties: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServedExchange:
    """One exchange: an outcome for every id, in order, and who took how long.

    ``seconds`` has the parties that were asked and answered; ``silent`` those that did not. A
    predictor that can tell without an exchange when a silent party is there again names it in
    ``sought``, and in ``back`` once it is.
    """

    outcomes: Sequence[Outcome | Unanswered]
    seconds: Mapping[str, float] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    sought: frozenset[str] = frozenset()
    back: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ObservedRows:
    """What is known of the rows that a party served, against those that it was trained on.

    Attributes:
        rows: Over how many rows.
        far: How many have values far outside the training range; none if not known.
        input_drift: How far the mean of its inputs has moved, in deviations.
        embedding_drift: The same for its embeddings.
    """

    rows: int = 0
    far: int | None = None
    input_drift: float | None = None
    embedding_drift: float | None = None


class Predictor(Protocol):
    """One version of a model, ready to answer."""

    @property
    def model(self) -> ServedModel:
        """What it is."""

    def predict(
        self, ids: Sequence[str], *, deadline: float, without: Collection[str]
    ) -> ServedExchange:
        """Answer for these ids.

        Args:
            ids: Sample ids as text, none twice.
            deadline: When to answer with whoever came, on the monotonic clock.
            without: Parties not to wait for, unless they are known to be back: they did not
                answer before.

        Returns:
            An outcome for every id.
        """

    def predict_here(
        self, ids: Sequence[str], *, deadline: float, without: Collection[str]
    ) -> Coroutine[Any, Any, ServedExchange] | None:
        """The same on the event loop that calls, or None if that would hold the loop up.

        ``ids``, ``deadline`` and ``without`` are as in ``predict``.

        Returns:
            To be awaited once, or None: then ``predict`` is called in a thread.
        """

    def warm_up(self) -> None:
        """Answer for nobody once, so that the first caller does not wait for caches."""

    def away(self) -> Mapping[str, str]:
        """Parties that can't be asked now, and why; no ids and no values."""

    def observed(self) -> Mapping[str, ObservedRows]:
        """By party, what is known of the rows that it served."""

    def close(self) -> None:
        """Let go of what it holds."""
