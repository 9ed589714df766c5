"""What is to be predicted: binary, one of several classes, or a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, DataError
from colonnade.core.own_code import OwnCode

__all__ = ["LOSSES", "LOWER_IS_BETTER", "Task", "TaskKind", "infer_kind"]

TaskKind = Literal["binary", "multiclass", "regression"]
Array = np.ndarray[Any, Any]

LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
    "cross_entropy": functional.cross_entropy,
    "squared_error": functional.mse_loss,
    "absolute_error": functional.l1_loss,
    "huber": functional.huber_loss,
}

_DEFAULT_LOSS: Mapping[str, str] = {
    "binary": "binary_cross_entropy",
    "multiclass": "cross_entropy",
    "regression": "squared_error",
}
_ALLOWED_LOSSES: Mapping[str, tuple[str, ...]] = {
    "binary": ("binary_cross_entropy",),
    "multiclass": ("cross_entropy",),
    "regression": ("squared_error", "absolute_error", "huber"),
}
# More whole numbers than this are no classes, unless the settings say so.
_MOST_CLASSES = 10
_METRICS: Mapping[str, tuple[str, ...]] = {
    "binary": (
        *("accuracy", "f1", "precision", "recall"),
        *("macro_f1", "auc", "average_precision"),
    ),
    "multiclass": ("accuracy", "f1", "precision", "recall", "auc"),
    "regression": ("r2", "rmse", "mae"),
}
# Metrics of which less is better.
LOWER_IS_BETTER = frozenset({"loss", "rmse", "mae"})
_QUALITY: Mapping[str, str] = {"binary": "accuracy", "multiclass": "accuracy", "regression": "r2"}


@dataclass(frozen=True, kw_only=True)
class Task:
    """The kind of target, how it is encoded for the network, its loss and its metrics."""

    kind: TaskKind
    loss_name: str
    classes: tuple[Any, ...] = ()
    center: float = 0.0
    scale: float = 1.0
    # What a sample of each class counts in the loss; all alike if not given.
    class_weights: tuple[float, ...] = ()
    # Whether every target is followed by what its sample counts in the loss.
    weighted: bool = False
    # A loss and metrics of the caller's own.
    own_loss: OwnCode | None = None
    own_metrics: Mapping[str, OwnCode] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        kind: TaskKind,
        train_values: Array,
        *,
        loss: str | OwnCode | None = None,
        class_weights: Mapping[str, float] | Literal["none", "balanced"] = "none",
        weights: Array | None = None,
        metrics: Mapping[str, OwnCode] | None = None,
    ) -> Task:
        """Learn the classes, or centre and scale, from the training part's labels.

        Args:
            kind: The kind of target.
            train_values: The labels of the training part.
            loss: The loss by its name, or the caller's own.
            class_weights: "balanced" has every class count alike in the loss, however many samples
                it has; the mean weight over the training part is 1. Or what classes count, by
                name; 1 if not named.
            weights: What each of the labels counts, if not all alike.
            metrics: Metrics of the caller's own.

        Returns:
            The task.

        Raises:
            ConfigError: Loss, metrics or class weights don't fit the kind.
            DataError: The labels don't.
        """
        for taken in sorted({"loss", *_METRICS[kind]} & {*(metrics or {})}):
            raise ConfigError(f"metrics: '{taken}' is measured already; give yours another name")
        own_loss = loss if isinstance(loss, OwnCode) else None
        own: dict[str, Any] = {
            "own_loss": own_loss,
            "own_metrics": dict(metrics or {}),
            "weighted": weights is not None,
        }
        name = loss if isinstance(loss, str) else _DEFAULT_LOSS[kind]
        if name not in _ALLOWED_LOSSES[kind]:
            hint = nearest(name, _ALLOWED_LOSSES[kind])
            raise ConfigError(f"label_holder.loss: '{name}' does not fit a {kind} target{hint}")
        if kind == "regression":
            if class_weights != "none":
                raise ConfigError(
                    "label_holder.class_weights: needs classes; a regression has none"
                )
            center, scale = _center_and_scale(_as_numbers(train_values), weights)
            return cls(kind=kind, loss_name=name, center=center, scale=scale, **own)
        try:
            distinct, codes = np.unique(train_values, return_inverse=True)
            counts = np.bincount(codes, weights)
            classes = tuple(_plain(item) for item in distinct)
        except TypeError as error:
            raise DataError(
                "labels: a mixture of texts and numbers; write every label the same way"
            ) from error
        if len(classes) < 2:
            raise DataError(
                f"labels: the training part has {len(classes)} class(es) {list(classes)}; "
                "at least two are needed"
            )
        if kind == "binary" and len(classes) != 2:
            raise DataError(
                f"labels: a binary target has two classes, this one has {len(classes)}; "
                'set task = "multiclass"'
            )
        by_class = _class_weights(class_weights, classes, counts)
        return cls(kind=kind, loss_name=name, classes=classes, class_weights=by_class, **own)

    @property
    def num_outputs(self) -> int:
        """Width of the network's last layer."""
        return len(self.classes) if self.kind == "multiclass" else 1

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Everything that is measured; some need samples of every class."""
        return ("loss", *_METRICS[self.kind], *self.own_metrics)

    @property
    def quality_name(self) -> str:
        """The metric that stopping and tables use; higher is better."""
        return _QUALITY[self.kind]

    def encode(self, values: Array, dtype: torch.dtype, weights: Array | None = None) -> Tensor:
        """Labels as the loss wants them; ``weights`` stand behind them where samples have some."""
        if self.kind == "regression":
            scaled = (_as_numbers(values) - self.center) / self.scale
            targets = torch.tensor(scaled, dtype=dtype)[:, None]
        elif self.kind == "binary":
            targets = torch.tensor(self._codes(values), dtype=dtype)[:, None]
        else:
            targets = torch.tensor(self._codes(values), dtype=torch.int64)
        if not self.weighted:
            return targets
        counted = np.ones(len(values)) if weights is None else weights
        beside = torch.tensor(counted, dtype=dtype)[:, None]
        return torch.cat([targets.to(dtype).view(len(values), -1), beside], dim=1)

    def _apart(self, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Targets, and what their samples count, if not all alike."""
        if not self.weighted:
            return targets, None
        own = targets[:, 0].long() if self.kind == "multiclass" else targets[:, :-1]
        return own, targets[:, -1]

    @property
    def loss_function(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The mean loss over a batch, of outputs and targets."""
        return LOSSES[self.loss_name] if self._is_plain else self.loss

    @property
    def _is_plain(self) -> bool:
        """Whether torch's own mean is the loss."""
        return not self.class_weights and not self.weighted and self.own_loss is None

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over the batch."""
        if self._is_plain:
            return LOSSES[self.loss_name](outputs, targets)
        return self.losses(outputs, targets).mean()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample by itself."""
        targets, counted = self._apart(targets)
        if self.own_loss is None:
            found = LOSSES[self.loss_name](outputs, targets, reduction="none")
        else:
            found = _own_losses(self.own_loss, outputs, targets)
        found = found.flatten(1).mean(1) if found.dim() > 1 else found
        if counted is not None:
            found = found * counted
        if not self.class_weights:
            return found
        weights = torch.tensor(self.class_weights, dtype=found.dtype)
        return found * weights[targets.long().flatten()]

    def weighed(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The losses of rows that don't all count alike.

        Args:
            outputs: A row per sample, or several of one.
            targets: As many.
            weights: What each row counts in the sum that is minimised.

        Returns:
            The weighted mean loss, and the derivative of the weighted sum by the outputs.
        """
        leaf = outputs.detach().requires_grad_()
        total = (self.losses(leaf, targets) * weights).sum()
        (gradient,) = torch.autograd.grad(total, leaf)
        return total.detach() / weights.sum(), gradient

    def probabilities(self, outputs: Tensor) -> Array:
        """Class probabilities, one column per class."""
        if self.kind == "regression":
            raise ConfigError("a regression target has no class probabilities; use predict")
        if self.kind == "binary":
            found = np.empty((len(outputs), 2))
            found[:, 1] = torch.sigmoid(outputs[:, 0]).double().numpy()
            found[:, 0] = 1.0 - found[:, 1]
            return found
        scores: Array = torch.softmax(outputs.double(), dim=1).numpy()
        return scores

    def decide(self, outputs: Tensor) -> Array:
        """Predicted labels in their original form."""
        if self.kind == "regression":
            numbers: Array = outputs[:, 0].double().numpy() * self.scale + self.center
            return numbers
        decided: Array = self._classes[self.places(outputs)]
        return decided

    def places(self, outputs: Tensor) -> Array:
        """The place of every predicted label among the classes."""
        codes = outputs.argmax(dim=1) if self.kind == "multiclass" else outputs[:, 0] > 0
        found: Array = codes.numpy().astype(np.int64, copy=False)
        return found

    @cached_property
    def _classes(self) -> Array:
        return np.asarray(self.classes)

    def measure(self, outputs: Tensor, values: Array) -> dict[str, float]:
        """Every metric of this kind of task, against the original labels."""
        # Imported when first measured: it takes seconds, and most commands measure nothing.
        from sklearn import metrics as sk

        decided = self.decide(outputs)
        own = {name: _measured(item, values, decided) for name, item in self.own_metrics.items()}
        if self.kind == "regression":
            truth = _as_numbers(values)
            return own | {
                "r2": float(sk.r2_score(truth, decided)) if len(truth) > 1 else float("nan"),
                "rmse": float(np.sqrt(np.mean((truth - decided) ** 2))),
                "mae": float(np.mean(np.abs(truth - decided))),
            }
        truth = self._codes(values)
        guess = self._codes(decided)
        found = own | {"accuracy": float(np.mean(truth == guess))}
        average = "binary" if self.kind == "binary" else "macro"
        precision, recall, f1, _ = sk.precision_recall_fscore_support(
            truth, guess, average=average, zero_division=0.0
        )
        found |= {"f1": float(f1), "precision": float(precision), "recall": float(recall)}
        if self.kind == "binary":
            macro = sk.f1_score(truth, guess, average="macro", zero_division=0.0)
            found["macro_f1"] = float(macro)
        if len(np.unique(truth)) == len(self.classes):
            found |= self._ranked(outputs, truth)
        return found

    def _ranked(self, outputs: Tensor, truth: Array) -> dict[str, float]:
        """How well outputs put samples in order, of samples of every class."""
        from sklearn import metrics as sk

        if self.kind == "binary":
            scores = outputs[:, 0].double().numpy()
            return {
                "auc": float(sk.roc_auc_score(truth, scores)),
                "average_precision": float(sk.average_precision_score(truth, scores)),
            }
        # Each class against all others, every class counting alike.
        own = self.probabilities(outputs)
        areas = [sk.roc_auc_score(truth == at, own[:, at]) for at in range(len(self.classes))]
        return {"auc": float(np.mean(areas))}

    def _codes(self, values: Array) -> Array:
        places = {item: code for code, item in enumerate(self.classes)}
        plain = [_plain(item) for item in values]
        unknown = sorted({str(item) for item in plain if item not in places})
        if unknown:
            raise DataError(
                f"labels: {len(unknown)} class(es) {unknown[:5]} do not occur in the training "
                "part; use more samples, another split seed, or leave those samples out"
            )
        return np.array([places[item] for item in plain], dtype=np.int64)


def _center_and_scale(values: Array, weights: Array | None) -> tuple[float, float]:
    """Mean and standard deviation; of weighted values as if they were repeated."""
    if weights is None:
        return float(values.mean()), float(values.std()) or 1.0
    center = float(np.average(values, weights=weights))
    variance = float(np.average((values - center) ** 2, weights=weights))
    return center, variance**0.5 or 1.0


def _class_weights(
    given: Mapping[str, float] | Literal["none", "balanced"],
    classes: tuple[Any, ...],
    counts: Array,
) -> tuple[float, ...]:
    """What a sample of each class counts; nothing if all count alike."""
    if isinstance(given, str):
        if given == "none":
            return ()
        return tuple(float(counts.sum() / (len(counts) * count)) for count in counts)
    texts = [str(item) for item in classes]
    for name, weight in given.items():
        if name not in texts:
            raise ConfigError(
                f"label_holder.class_weights: no class '{name}'{nearest(name, texts)}"
            )
        if not 0 < weight < np.inf:
            raise ConfigError(f"label_holder.class_weights.{name}: above 0, got {weight}")
    return tuple(float(given.get(text, 1.0)) for text in texts) if given else ()


def _own_losses(own: OwnCode, outputs: Tensor, targets: Tensor) -> Tensor:
    """What a caller's own loss gives, checked."""
    found = own.function(outputs, targets)
    if not isinstance(found, Tensor) or found.dim() == 0 or len(found) != len(outputs):
        came = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f"{own.setting}: expected a tensor with one loss per sample, so "
            f'({len(outputs)},), got {came}; of torch\'s own losses that is reduction="none"'
        )
    return found


def _measured(own: OwnCode, values: Array, decided: Array) -> float:
    """What a caller's own metric gives, checked."""
    found = own.function(values, decided)
    try:
        return float(found)
    except (TypeError, ValueError) as error:
        came = type(found).__name__
        raise ConfigError(f"{own.setting}: a metric is a number, this one is a {came}") from error


def infer_kind(values: Array) -> TaskKind:
    """Guess the kind of target: text, booleans and few whole numbers are classes.

    Counts and grades with many values are numbers, however many samples there are.
    """
    array = np.asarray(values)
    try:
        distinct = np.unique(array)
    except TypeError as error:
        raise DataError(
            "labels: a mixture of texts and numbers; write every label the same way"
        ) from error
    if array.dtype.kind == "f" and not np.isfinite(distinct).all():
        raise DataError("labels: some are infinite or not a number; remove those samples")
    if array.dtype.kind == "f" and not np.all(np.mod(distinct, 1) == 0):
        return "regression"
    if array.dtype.kind in "iuf" and len(distinct) > _MOST_CLASSES:
        return "regression"
    return "binary" if len(distinct) == 2 else "multiclass"


def _as_numbers(values: Array) -> Array:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError("labels: a regression target needs numbers") from error
    if not np.isfinite(numbers).all():
        raise DataError("labels: some are infinite or not a number; remove those samples")
    return numbers


def _plain(item: Any) -> Any:
    """A class as a plain Python value (checkpoints hold JSON)."""
    return item.item() if isinstance(item, np.generic) else item
