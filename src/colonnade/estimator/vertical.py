"""The classifier and the regressor, and their common base."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, final

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from colonnade.core.errors import ConfigError, DataError
from colonnade.core.task import TaskKind
from colonnade.data.blocks import Block, Labels
from colonnade.data.given_tables import row_ids
from colonnade.data.label_columns import as_weights
from colonnade.estimator.columns import (
    Columns,
    assign_columns,
    blocks_by_party,
    label_name,
)
from colonnade.estimator.run_settings import fills_missing, run_spec
from colonnade.run.engine import train
from colonnade.run.given_code import Factories, with_code
from colonnade.run.result import Result
from colonnade.run.sources import Sources

__all__ = ["VerticalClassifier", "VerticalRegressor"]

Array: TypeAlias = np.ndarray[Any, Any]


class _VerticalEstimator(BaseEstimator):  # type: ignore[misc]
    """The parameters and checks of both estimators; abstract."""

    def __init__(
        self,
        *,
        parties: Mapping[str, Columns] | None = None,
        label_holder: str | None = None,
        method: str | Mapping[str, Any] = "splitnn",
        hidden: Sequence[int] | None = None,
        embedding: int | None = None,
        encoder: Factories | None = None,
        fusion: str | Mapping[str, Any] | None = None,
        combine: Literal["concat", "mean"] | None = None,
        optimizer: str | Mapping[str, Any] | None = None,
        learning_rate: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        patience: int | None = None,
        validation_fraction: float | None = None,
        refit: bool | None = None,
        dtype: Literal["float32", "float64"] = "float64",
        device: str = "cpu",
        precision: Literal["full", "mixed"] = "full",
        random_state: int | np.random.RandomState | None = None,
        warm_start: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.parties = parties
        self.label_holder = label_holder
        self.method = method
        self.hidden = hidden
        self.embedding = embedding
        self.encoder = encoder
        self.fusion = fusion
        self.combine = combine
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.batch_size = batch_size
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.refit = refit
        self.dtype = dtype
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.warm_start = warm_start
        self.settings = settings

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.allow_nan = fills_missing(self.settings)
        return tags

    @contextmanager
    def _as_before_if_it_fails(self) -> Iterator[None]:
        """Have a refit that fails leave the model of the fit before, and its columns."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _checked(self, X: Any, y: Any, *, numeric_target: bool) -> tuple[pd.DataFrame, Array]:
        """The table with one name per column, and the target, checked as scikit-learn demands.

        A pandas table is not converted, so that its columns of text stay categorical; the parties
        check its numbers.
        """
        self._numbers = None
        if isinstance(X, pd.DataFrame):
            _refuse_repeated_names(X)
            if not all(isinstance(name, str) for name in X.columns):
                _refuse_mixed_names(X)
                self._numbers = list(X.columns)
            validate_data(self, X, y, skip_check_array=True)
            target = column_or_1d(y, warn=True)
            check_consistent_length(X, target)
            if not len(X):
                raise DataError("X: has no rows; give it at least one")
        else:
            X, target = validate_data(
                self,
                X,
                y,
                dtype=np.float64,
                y_numeric=numeric_target,
                ensure_all_finite="allow-nan" if fills_missing(self.settings) else True,
            )
        missing = np.flatnonzero(pd.isna(target))
        if missing.size:
            raise DataError(
                f"y: {missing.size} of {len(target)} labels are missing (first at row "
                f"{missing[0]}); remove those samples or fill them in"
            )
        return self._named(X), target

    def _named(self, X: Any) -> pd.DataFrame:
        """The table under the column names of training, or x0, x1, ... where it had none."""
        known = getattr(self, "feature_names_in_", None)
        names = [f"x{at}" for at in range(self.n_features_in_)] if known is None else list(known)
        table = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X)
        return table.set_axis(names, axis=1)

    def _train(
        self, table: pd.DataFrame, target: Array, kind: TaskKind, sample_weight: Any
    ) -> None:
        holder = "label_holder" if self.label_holder is None else self.label_holder
        if not isinstance(holder, str) or not holder:
            raise ConfigError(f"label_holder: expected a name or None, got {holder!r}")
        names = [str(name) for name in table.columns]
        named = hasattr(self, "feature_names_in_")
        parties = assign_columns(self.parties, names, named=named, numbers=self._numbers)
        spec = run_spec(self.get_params(deep=False), kind, len(table))
        if self.encoder is not None and self.hidden is not None:
            raise ConfigError("encoder: makes the whole network; leave hidden out")
        spec = with_code(spec, parties, encoder=self.encoder)
        weights = None
        if sample_weight is not None:
            # Its dtype and length as scikit-learn checks them; a negative one is refused below.
            counted = _check_sample_weight(sample_weight, table, dtype=np.float64)
            weights = as_weights(counted, "sample_weight")
        sources = Sources(
            blocks=blocks_by_party(table, parties),
            labels=Labels(
                ids=row_ids(len(table)), values=target, name=label_name(names), weights=weights
            ),
            label_holder=holder,
            kind=kind,
        )
        before = getattr(self, "result_", None) if self.warm_start else None
        self.result_: Result = train(spec, sources=sources, earlier=before)
        self.parties_: dict[str, list[str]] = parties
        self.n_iter_: int = math.ceil(self.result_.summary["epochs"])

    def _blocks_of(self, X: Any) -> dict[str, Block]:
        """Every party's columns of a table to predict for."""
        check_is_fitted(self)
        if isinstance(X, pd.DataFrame):
            if self._numbers is not None:
                absent = [name for name in self._numbers if name not in X.columns]
                if absent:
                    raise DataError(f"X: no column {absent[0]!r}, which training had")
                X = X[self._numbers]
            validate_data(self, X, reset=False, skip_check_array=True)
        else:
            finite = "allow-nan" if fills_missing(self.settings) else True
            X = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=finite)
        return blocks_by_party(self._named(X), self.parties_)


@final
class VerticalClassifier(ClassifierMixin, _VerticalEstimator):  # type: ignore[misc]
    """Classify by columns that several parties hold.

    Args:
        parties: Each party's columns, by name or by position; every column belongs to one party.
            By default the columns are split in order between "party_1" and "party_2".
        label_holder: The party that has the labels; by default somebody without columns.
        method: The method's name, or a table of its settings with ``name``.
        hidden: The widths of the hidden layers of every encoder.
        embedding: The width of every embedding.
        encoder: A function that makes a party's network in place of ``hidden``, from the number of
            its prepared columns and the embedding's width; one for all, or by party.
        fusion: The kind of fusion, or a table of its settings with ``kind``.
        combine: How embeddings are combined before the fusion.
        optimizer: The optimizer's name, or a table of its settings with ``name``.
        learning_rate: The learning rate of parties and label holder.
        epochs: Passes over the training samples; by default training ends when samples that are
            held out get no better.
        batch_size: Samples per exchange.
        patience: Evaluations without improvement after which training ends; with epochs, None
            never ends early.
        validation_fraction: The share of samples that patience watches.
        refit: Whether to train anew in the end, on all samples, for as many epochs as patience
            found best.
        dtype: The type of weights and activations.
        device: Where networks compute: "cpu", "cuda", "cuda:1", "mps", or "auto".
        precision: "mixed" has large operations in bfloat16; it needs ``dtype="float32"``.
        random_state: The seed, or a generator that gives one.
        warm_start: Whether another ``fit`` begins with the weights, scales and classes of the last.
        settings: Any further settings of a run's TOML file.

    Parameters that are None have the defaults of ``colonnade.fit``.

    After ``fit``, ``result_`` is the trained federation, ``parties_`` the columns of each party,
    ``classes_`` the classes and ``n_iter_`` the number of epochs.

    >>> parties = {"bank": ["income", "balance"], "telco": ["calls", "region"]}
    >>> model = VerticalClassifier(parties=parties, label_holder="bank").fit(X, y)
    >>> model.predict_proba(X_new)
    >>> model.result_.save("model")
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> VerticalClassifier:
        """Train over the columns of all parties.

        Args:
            X: A table (samples, columns), as a DataFrame or an array.
            y: The class of each sample.
            sample_weight: What each sample counts in the loss; all alike if not given.

        Returns:
            The estimator itself.

        Raises:
            ConfigError: A parameter is wrong.
            DataError: X or y can't be used, e.g. y has only one class.
        """
        with self._as_before_if_it_fails():
            table, target = self._checked(X, y, numeric_target=False)
            check_classification_targets(target)
            classes = np.unique(target)
            if len(classes) < 2:
                only = classes.tolist()[0]
                raise DataError(f"y: there is only 1 class, {only!r}; training needs at least two")
            kind: TaskKind = "binary" if len(classes) == 2 else "multiclass"
            self._train(table, target, kind, sample_weight)
            self.classes_: Array = classes
        return self

    def predict(self, X: Any) -> Array:
        """Predict the most probable class of every row.

        Args:
            X: A table with the columns of training.

        Returns:
            (samples,) classes.
        """
        scores = self.decision_function(X)
        codes = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        classes: Array = self.classes_[codes]
        return classes

    def predict_proba(self, X: Any) -> Array:
        """Predict the probability of each class.

        Args:
            X: A table with the columns of training.

        Returns:
            (samples, classes) probabilities, in the order of ``classes_``.
        """
        blocks = self._blocks_of(X)
        probabilities: Array = self.result_.predict_proba(blocks).to_numpy()
        return probabilities

    def decision_function(self, X: Any) -> Array:
        """Compute the logits.

        Args:
            X: A table with the columns of training.

        Returns:
            (samples, classes) logits; for two classes (samples,), those of the second.
        """
        blocks = self._blocks_of(X)
        outputs: Array = self.result_.outputs(blocks).to_numpy()
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs


@final
class VerticalRegressor(RegressorMixin, _VerticalEstimator):  # type: ignore[misc]
    """Predict a number by columns that several parties hold.

    The target is centred and scaled for training; predictions are in its own unit. The parameters
    are those of ``VerticalClassifier``: parties, label_holder, method, hidden, embedding, encoder,
    fusion, combine, optimizer, learning_rate, epochs, batch_size, patience, validation_fraction,
    refit, dtype, device, precision, random_state, warm_start and settings.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> VerticalRegressor:
        """Train over the columns of all parties.

        Args:
            X: A table (samples, columns), as a DataFrame or an array.
            y: The number of each sample.
            sample_weight: What each sample counts in the loss; all alike if not given.

        Returns:
            The estimator itself.
        """
        with self._as_before_if_it_fails():
            table, target = self._checked(X, y, numeric_target=True)
            self._train(table, target, "regression", sample_weight)
        return self

    def predict(self, X: Any) -> Array:
        """Predict the number of every row.

        Args:
            X: A table with the columns of training.

        Returns:
            (samples,) numbers.
        """
        blocks = self._blocks_of(X)
        numbers: Array = self.result_.predict(blocks).to_numpy()
        return numbers


def _refuse_mixed_names(table: pd.DataFrame) -> None:
    """Refuse names of several types, e.g. 1 and "1"."""
    kinds = sorted({type(name).__name__ for name in table.columns})
    if len(kinds) > 1:
        raise DataError(
            f"X: columns are named by {' and '.join(kinds)}; give all names one type, e.g. "
            "X.columns = X.columns.map(str)"
        )


def _refuse_repeated_names(table: pd.DataFrame) -> None:
    """Refuse two columns of one name: ``parties`` can't tell them apart."""
    if not table.columns.is_unique:
        twice = sorted({str(name) for name in table.columns[table.columns.duplicated()]})
        raise DataError(f"X: columns {twice} occur more than once; rename or drop the repeats")
