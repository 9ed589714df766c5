"""The scikit-learn face: one table, and a mapping that says which party has which columns.

For trying vertical federated learning on a table that is in one place, with everything that
scikit-learn brings: pipelines, grid search, cross validation. The parties are made here, in this
process, each with its own columns and its own encoder; what crosses between them is what would
cross between organisations. Where the columns really are in different places, use
``colonnade.fit`` or a run's TOML file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, final

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, DataError
from colonnade.core.task import TaskKind
from colonnade.data.blocks import Block, Labels
from colonnade.run.engine import train
from colonnade.run.result import Result
from colonnade.run.sources import Sources
from colonnade.run.spec import RunSpec, parse_spec

__all__ = ["VerticalClassifier", "VerticalRegressor"]

Array: TypeAlias = np.ndarray[Any, Any]
Columns: TypeAlias = Sequence[str | int]

# What `settings` may not say, since a parameter says it.
_SAID_BY_PARAMETERS: Mapping[str, str] = {
    "method": "method",
    "dtype": "dtype",
    "seed": "random_state",
    "data.batch_size": "batch_size",
    "data.split": "validation_fraction",
    "stop.epochs": "epochs",
    "stop.patience": "patience",
    "defaults.encoder": "hidden and embedding, or as settings.party.NAME.encoder",
    "defaults.optimizer": "optimizer and learning_rate",
    "label_holder.name": "label_holder",
    "label_holder.fusion": "fusion and combine",
    "label_holder.optimizer": "optimizer and learning_rate",
}
# What `settings` may not say, since the table and the target say it.
_SAID_BY_DATA = (
    "data.dataset",
    "data.num_parties",
    "label_holder.file",
    "label_holder.id",
    "label_holder.label",
    "label_holder.task",
)
_SAID_BY_DATA_PER_PARTY = ("file", "id", "columns")


class _VerticalEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share; abstract."""

    def __init__(
        self,
        *,
        parties: Mapping[str, Columns] | None = None,
        label_holder: str | None = None,
        method: str | Mapping[str, Any] = "splitnn",
        hidden: Sequence[int] = (64,),
        embedding: int = 32,
        fusion: str | Mapping[str, Any] = "mlp",
        combine: Literal["concat", "mean"] = "concat",
        optimizer: str | Mapping[str, Any] = "adam",
        learning_rate: float = 3e-3,
        epochs: int = 50,
        batch_size: int = 32,
        patience: int | None = None,
        validation_fraction: float = 0.1,
        dtype: Literal["float32", "float64"] = "float64",
        random_state: int | np.random.RandomState | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.parties = parties
        self.label_holder = label_holder
        self.method = method
        self.hidden = hidden
        self.embedding = embedding
        self.fusion = fusion
        self.combine = combine
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.batch_size = batch_size
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.dtype = dtype
        self.random_state = random_state
        self.settings = settings

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.allow_nan = _fills_missing(self.settings)
        return tags

    def _checked(self, X: Any, y: Any, *, numeric_target: bool) -> tuple[pd.DataFrame, Array]:
        """The table with one name per column, and the target, as scikit-learn wants them checked.

        A pandas table is taken as it is, so that its columns of text stay categorical; its
        numbers are checked by the parties that they belong to.
        """
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, y, skip_check_array=True)
            target = column_or_1d(y, warn=True)
            check_consistent_length(X, target)
        else:
            X, target = validate_data(
                self,
                X,
                y,
                dtype=np.float64,
                y_numeric=numeric_target,
                ensure_all_finite="allow-nan" if _fills_missing(self.settings) else True,
            )
        missing = np.flatnonzero(pd.isna(target))
        if missing.size:
            raise DataError(
                f"y: {missing.size} of {len(target)} labels are missing (first at row "
                f"{missing[0]}); remove those samples or fill them in"
            )
        return self._named(X), target

    def _named(self, X: Any) -> pd.DataFrame:
        """The table under the column names that training saw, or x0, x1, ... if it saw none."""
        known = getattr(self, "feature_names_in_", None)
        names = [f"x{at}" for at in range(self.n_features_in_)] if known is None else list(known)
        table = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X)
        return table.set_axis(names, axis=1)

    def _train(self, table: pd.DataFrame, target: Array, kind: TaskKind) -> None:
        names = [str(name) for name in table.columns]
        parties = _assign(self.parties, names, named=hasattr(self, "feature_names_in_"))
        spec = self._spec(kind, len(table))
        blocks = _blocks(table, parties)
        sources = Sources(
            blocks=blocks,
            labels=Labels(ids=_ids(len(table)), values=target, name=_label_name(names)),
            label_holder="label_holder" if self.label_holder is None else self.label_holder,
            kind=kind,
        )
        self.result_: Result = train(spec, sources=sources)
        self.parties_: dict[str, list[str]] = parties
        self.n_iter_: int = math.ceil(self.result_.summary["epochs"])

    def _outputs(self, X: Any) -> Array:
        """The network's raw outputs for every row."""
        blocks = self._blocks_of(X)
        outputs: Array = self.result_.outputs(blocks).to_numpy()
        return outputs

    def _blocks_of(self, X: Any) -> dict[str, Block]:
        """Every party's columns of a table to predict for."""
        check_is_fitted(self)
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, reset=False, skip_check_array=True)
        else:
            finite = "allow-nan" if _fills_missing(self.settings) else True
            X = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=finite)
        return _blocks(self._named(X), self.parties_)

    def _spec(self, kind: TaskKind, num_samples: int) -> RunSpec:
        """The parameters and ``settings`` as a run's settings."""
        given = _plain(self.settings or {})
        _refuse_said_elsewhere(given)
        optimizer = self._optimizer()
        values = {
            **given,
            "method": _plain(self.method),
            "dtype": self.dtype,
            "seed": self._seed(),
            "data": {
                **given.get("data", {}),
                "batch_size": _plain(self.batch_size),
                "split": {"validation": self._validation_share(num_samples), "test": 0.0},
            },
            "stop": {
                **given.get("stop", {}),
                "epochs": _plain(self.epochs),
                "patience": _plain(self.patience),
            },
            "defaults": {
                **given.get("defaults", {}),
                "prepare": _keeping_constants(given.get("defaults", {}).get("prepare", {})),
                "encoder": {
                    "kind": "mlp",
                    "hidden": _plain(self.hidden),
                    "embedding": _plain(self.embedding),
                },
                "optimizer": optimizer,
            },
            "label_holder": {
                **given.get("label_holder", {}),
                "task": kind,
                "fusion": _merged("fusion", "kind", self.fusion, "combine", self.combine),
                "optimizer": optimizer,
            },
            "party": {
                name: {**item, "prepare": _keeping_constants(item["prepare"])}
                if isinstance(item, Mapping) and "prepare" in item
                else item
                for name, item in given.get("party", {}).items()
            },
        }
        return parse_spec(values)

    def _optimizer(self) -> dict[str, Any]:
        rate = self.learning_rate
        if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < rate < math.inf:
            raise ConfigError(f"learning_rate: expected a number above 0, got {rate!r}")
        return _merged("optimizer", "name", self.optimizer, "lr", float(rate))

    def _seed(self) -> int:
        generator = check_random_state(self.random_state)
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(generator.randint(2**31 - 1))

    def _validation_share(self, num_samples: int) -> float:
        if self.patience is None:
            if (self.settings or {}).get("stop", {}).get("target") is not None:
                raise ConfigError(
                    "settings.stop.target: a quality on the validation part, which there is only "
                    "with patience; set patience too"
                )
            return 0.0
        share = self.validation_fraction
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 < share < 1:
            raise ConfigError(
                f"validation_fraction: expected a share between 0 and 1, got {share!r}"
            )
        if round(num_samples * float(share)) < 2:
            raise DataError(
                f"validation_fraction: {share} of {num_samples} samples is less than two samples; "
                "raise it, or set patience to None"
            )
        return float(share)


@final
class VerticalClassifier(ClassifierMixin, _VerticalEstimator):  # type: ignore[misc]
    """Classify by columns that several parties hold.

    ``parties`` maps each party to its columns, by name or by position; every column belongs to
    exactly one. Without it the columns are split in order between "party_1" and "party_2".
    ``label_holder`` names the party that has the labels, or somebody without columns (default).
    ``settings`` takes what else a run's TOML file takes.

    >>> parties = {"bank": ["income", "balance"], "telco": ["calls", "region"]}
    >>> model = VerticalClassifier(parties=parties, label_holder="bank").fit(X, y)
    >>> model.predict_proba(X_new)
    >>> model.result_.save("model")
    """

    def fit(self, X: Any, y: Any) -> VerticalClassifier:
        """Train over the columns of all parties."""
        table, target = self._checked(X, y, numeric_target=False)
        check_classification_targets(target)
        classes = np.unique(target)
        if len(classes) < 2:
            raise DataError(
                f"y: there is only 1 class, {classes.tolist()[0]!r}; training needs at least two"
            )
        self._train(table, target, "binary" if len(classes) == 2 else "multiclass")
        self.classes_: Array = classes
        return self

    def predict(self, X: Any) -> Array:
        """The most probable class of every row."""
        scores = self.decision_function(X)
        codes = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        classes: Array = self.classes_[codes]
        return classes

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, in the order of ``classes_``."""
        blocks = self._blocks_of(X)
        probabilities: Array = self.result_.predict_proba(blocks).to_numpy()
        return probabilities

    def decision_function(self, X: Any) -> Array:
        """Logits: one column per class, or of two classes the second one's only."""
        outputs = self._outputs(X)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs


@final
class VerticalRegressor(RegressorMixin, _VerticalEstimator):  # type: ignore[misc]
    """Predict a number by columns that several parties hold.

    Parameters are those of ``VerticalClassifier``. The target is centred and scaled for training
    and comes back in its own unit.
    """

    def fit(self, X: Any, y: Any) -> VerticalRegressor:
        """Train over the columns of all parties."""
        table, target = self._checked(X, y, numeric_target=True)
        self._train(table, target, "regression")
        return self

    def predict(self, X: Any) -> Array:
        """The predicted number of every row."""
        blocks = self._blocks_of(X)
        numbers: Array = self.result_.predict(blocks).to_numpy()
        return numbers


def _assign(
    parties: Mapping[str, Columns] | None, names: list[str], *, named: bool
) -> dict[str, list[str]]:
    """Which party has which columns, by name; every column belongs to exactly one party."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(f"X: columns {twice} occur more than once; rename or drop the repeats")
    if parties is None:
        first = math.ceil(len(names) / 2)
        halves = {"party_1": names[:first], "party_2": names[first:]}
        return {party: half for party, half in halves.items() if half}
    if not isinstance(parties, Mapping) or not parties:
        raise ConfigError(
            f"parties: expected a mapping of each party to its columns, got {parties!r}"
        )
    assigned = {
        party: [_name_of(item, names, f"parties.{party}", named=named) for item in columns]
        for party, columns in _column_lists(parties)
    }
    owners: dict[str, list[str]] = {name: [] for name in names}
    for party, columns in assigned.items():
        for name in columns:
            owners[name].append(party)
    shared = {name: who for name, who in owners.items() if len(who) > 1}
    if shared:
        listed = ", ".join(f"'{name}' ({' and '.join(who)})" for name, who in shared.items())
        raise ConfigError(f"parties: a column belongs to one party, once; given twice: {listed}")
    nobodys = [name for name, who in owners.items() if not who]
    if nobodys:
        raise ConfigError(
            f"parties: no party has the columns {nobodys}; give them to one, or drop them from X"
        )
    return assigned


def _column_lists(parties: Mapping[str, Columns]) -> Iterator[tuple[str, list[Any]]]:
    for party, columns in parties.items():
        if not isinstance(party, str) or not party:
            raise ConfigError(f"parties: a party's name is a text that is not empty, got {party!r}")
        if isinstance(columns, str) or not isinstance(columns, Sequence | np.ndarray | pd.Index):
            raise ConfigError(f"parties.{party}: expected a list of columns, got {columns!r}")
        if not len(columns):
            raise ConfigError(
                f"parties.{party}: has no columns; give it at least one, or leave it out"
            )
        yield party, list(columns)


def _name_of(item: Any, names: list[str], path: str, *, named: bool) -> str:
    """The name of a column that is given by name or by position."""
    if isinstance(item, Integral) and not isinstance(item, bool):
        if not 0 <= item < len(names):
            raise ConfigError(
                f"{path}: there is no column at position {item}; X has {len(names)} columns, "
                "counted from 0"
            )
        return names[int(item)]
    if not isinstance(item, str):
        raise ConfigError(f"{path}: a column is a name or a position, got {item!r}")
    if not named:
        raise ConfigError(f"{path}: X has no column names, so '{item}' has none; give its position")
    if item not in names:
        raise ConfigError(f"{path}: X has no column '{item}'{nearest(item, names)}")
    return item


def _blocks(table: pd.DataFrame, parties: Mapping[str, list[str]]) -> dict[str, Block]:
    ids = _ids(len(table))
    return {
        party: Block(owner=party, ids=ids, values=table[columns])
        for party, columns in parties.items()
    }


def _ids(count: int) -> Array:
    """Row numbers as sample ids, written so that their order as text is the order of the rows."""
    width = len(str(count))
    return np.array([f"{row:0{width}}" for row in range(count)], dtype=object)


def _label_name(names: list[str]) -> str:
    """A name for the target that no column has."""
    name = "label"
    while name in names:
        name += "_"
    return name


def _plain(value: Any) -> Any:
    """A parameter without numpy's types, which a grid of them may bring."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _merged(parameter: str, tag: str, value: Any, key: str, item: Any) -> dict[str, Any]:
    """A name, or a table with one, together with what another parameter says of it."""
    if not isinstance(value, str | Mapping):
        raise ConfigError(f"{parameter}: expected a name or a table with '{tag}', got {value!r}")
    table = {tag: value} if isinstance(value, str) else _plain(value)
    if key in table:
        own = {"lr": "learning_rate"}.get(key, key)
        raise ConfigError(f"{parameter}.{key}: pass it as {own}=..., so that it is said once")
    return {**table, key: item}


def _keeping_constants(prepare: Any) -> Any:
    """Columns that don't vary are kept, as every scikit-learn estimator does."""
    return {"constant": "keep", **prepare} if isinstance(prepare, Mapping) else prepare


def _fills_missing(settings: Any) -> bool:
    """Whether some party fills missing values, so that NaN may reach it."""
    if not isinstance(settings, Mapping):
        return False
    parties = settings.get("party", {})
    places = [settings.get("defaults"), *(parties.values() if isinstance(parties, Mapping) else ())]
    prepares = [item.get("prepare") for item in places if isinstance(item, Mapping)]
    return any(isinstance(item, Mapping) and item.get("missing") == "mean" for item in prepares)


def _refuse_said_elsewhere(settings: Any) -> None:
    """Refuse in ``settings`` what a parameter, the table or the target says already."""
    if not isinstance(settings, Mapping):
        raise ConfigError(f"settings: expected a mapping, as in a run's TOML file, got {settings}")
    for section in ("data", "stop", "defaults", "label_holder", "party"):
        if not isinstance(settings.get(section, {}), Mapping):
            raise ConfigError(f"settings.{section}: expected a table, got {settings[section]!r}")
    for path, parameter in _SAID_BY_PARAMETERS.items():
        if _has(settings, path):
            raise ConfigError(
                f"settings.{path}: pass it as the parameter {parameter}, so that it is said once"
            )
    paths = [path for path in _SAID_BY_DATA if _has(settings, path)]
    for party, own in settings.get("party", {}).items():
        keys = own if isinstance(own, Mapping) else ()
        paths += [f"party.{party}.{key}" for key in _SAID_BY_DATA_PER_PARTY if key in keys]
    if paths:
        raise ConfigError(f"settings.{paths[0]}: an estimator learns from X and y; leave it out")


def _has(settings: Mapping[str, Any], path: str) -> bool:
    section, _, key = path.partition(".")
    return section in settings and (not key or key in settings[section])
