"""Result: a trained federation that predicts, evaluates, is saved and loaded."""

from __future__ import annotations

import copy
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from torch import Tensor, nn, no_grad

from colonnade.align.plain import rows_of_ids
from colonnade.core.errors import ConfigError, DataError, StorageError
from colonnade.core.fabric import Fabric
from colonnade.core.federation import Federation
from colonnade.core.task import TaskKind
from colonnade.data.blocks import Block, as_ids
from colonnade.data.given_tables import BlockLike, LabelsLike
from colonnade.fabrics.in_process import LocalFabric
from colonnade.quality.calibration import Calibration
from colonnade.quality.evaluation import evaluate
from colonnade.quality.result_card import ResultCard
from colonnade.run.answered import Answered, outputs_of
from colonnade.run.asked_samples import AskedSamples, aligned, given_samples
from colonnade.run.assembly import NEW, NO_DATA, Blueprint, TrainingData
from colonnade.run.blueprint_files import (
    read_blueprint,
    read_calibration,
    read_card,
    write_blueprint,
    write_calibration,
    write_card,
)
from colonnade.run.directory import local_parties, restore_model, write_model
from colonnade.run.history import history_of, recorded_lines
from colonnade.run.run_account import account_of, people_of_samples, settle_account
from colonnade.run.samples import Rows
from colonnade.run.storage import DirectoryVault, finite, party_directory, read_json, write_json
from colonnade.run.warm_start import Earlier

__all__ = ["Result", "open_result"]

CardMaker: TypeAlias = Callable[[bool], ResultCard | None]
# Seconds of training after which a notebook does not train the label holder alone by itself.
_QUICK = 60.0


class Result:
    """What training gave: predictions for new samples, quality on held-out ones.

    Blocks are given by party, in every form that ``fit`` takes. ``ids`` gives one id per row, for
    arrays; ``"row order"`` says that all rows are in the same order. What is told of samples comes
    under the ids of the first block, of the type that they have there.
    """

    def __init__(
        self,
        *,
        blueprint: Blueprint,
        federation: Federation,
        summary: Mapping[str, Any],
        calibration: Calibration | None = None,
        card: CardMaker | ResultCard | None = None,
        lines: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.summary = dict(summary)
        self.calibration = calibration
        self._card = card
        self._lines = lines
        self._blueprint = blueprint
        self._federation = _only_predicting(federation)

    def __repr__(self) -> str:
        quality = self.summary.get("quality", {})
        name = self.summary.get("headline") or self._blueprint.task.quality_name
        part = "test" if "test" in quality else "validation"
        value = quality.get(part, {}).get(name)
        reached = "" if value is None else f", {part} {name} {value:.3f}"
        return f"Result({self._blueprint.spec.method.info.name}{reached})"

    @property
    def history(self) -> pd.DataFrame:
        """What was measured while training: one row per evaluation, by exchange."""
        return history_of(self._lines)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Everybody's network: ``fusion``, and each party's by its name; only of one process."""
        own = {name: party.model for name, party in local_parties(self._federation).items()}
        return {"fusion": self._federation.holder.fusion, **own}

    def card(self, *, alone: bool = True) -> ResultCard | None:
        """The headline beside a guess and the label holder alone, with intervals.

        Args:
            alone: Whether to train the label holder by itself for it, on its own columns.

        Returns:
            The card; none of a result that was loaded without one, or has no held-out samples.
        """
        if callable(self._card):
            made = self._card(alone)
            if alone or made is None:
                self._card = made
            return made
        return self._card

    def _repr_html_(self) -> str:
        """For notebooks. A long training is not followed by another one just to show this."""
        card = self.card(alone=self.summary.get("seconds", 0.0) < _QUICK)
        title = html.escape(repr(self))
        return f"<p>{title}</p>" + ("" if card is None else card.html())

    def as_earlier(self) -> Earlier:
        """What a training that starts from these weights needs; only of one process."""
        own = self.modules
        return Earlier(
            blueprint=self._blueprint,
            fusion=copy.deepcopy(own.pop("fusion").state_dict()),
            parties={name: copy.deepcopy(item.state_dict()) for name, item in own.items()},
        )

    def __getstate__(self) -> dict[str, Any]:
        """For a copy, or a pickle of one's own: settings and weights, without the data."""
        parties = local_parties(self._federation)
        if any(account_of(party) for party in parties.values()):
            raise StorageError(
                "a party has a budget, of which there is one account; save the result"
            )
        return {
            "blueprint": self._blueprint,
            "summary": self.summary,
            "calibration": self.calibration,
            "card": None if callable(self._card) else self._card,
            "lines": list(self._lines),
            "holder": self._federation.holder.state(),
            "parties": {name: {**item.state(), "pending": None} for name, item in parties.items()},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        federation = state["blueprint"].build()
        federation.holder.restore(state["holder"])
        for name, party in local_parties(federation).items():
            party.restore(state["parties"][name])
        self.summary, self.calibration = state["summary"], state["calibration"]
        self._card, self._lines = state["card"], state["lines"]
        self._blueprint = state["blueprint"]
        self._federation = _only_predicting(federation)

    @property
    def parties(self) -> tuple[str, ...]:
        """Whose blocks a prediction needs."""
        return self._blueprint.owners

    @property
    def left(self) -> tuple[str, ...]:
        """Who left for good; their blocks are no longer taken."""
        return self._blueprint.left

    @property
    def is_pooled(self) -> bool:
        """Whether all columns came to one place, as only a baseline's do."""
        return self._blueprint.pooled is not None

    @property
    def is_blinded(self) -> bool:
        """Whether embeddings are only known as a sum over parties."""
        return self._federation.sums is not None

    @property
    def kind(self) -> TaskKind:
        """What is predicted: one of two classes, one of several, or a number."""
        return self._blueprint.task.kind

    @property
    def tolerates_missing(self) -> bool:
        """Whether a prediction may do without some blocks."""
        return self._blueprint.spec.method.info.tolerates_missing

    @property
    def label_name(self) -> str:
        """The name of what is predicted."""
        return self._blueprint.label_name

    @property
    def classes(self) -> tuple[Any, ...]:
        """The classes, in the order of ``predict_proba``'s columns; empty for regression."""
        return self._blueprint.task.classes

    def predict(
        self, blocks: Mapping[str, BlockLike], *, model: str | None = None, ids: Any = None
    ) -> pd.Series:  # without [Any]: get_type_hints reads it
        """The predicted label of every sample, by sample id.

        Where parties have models of their own, ``model`` names the party whose model answers.
        """
        asked, found = self._outputs(blocks, model, ids=ids)
        return pd.Series(found.values(), index=asked.ids_as_given(), name=self.label_name)

    def predict_proba(
        self, blocks: Mapping[str, BlockLike], *, model: str | None = None, ids: Any = None
    ) -> pd.DataFrame:
        """The probability of each class for every sample, by sample id.

        Of a method that can do without blocks they are calibrated by the number of blocks that
        each sample has.
        """
        asked, found = self._outputs(blocks, model, ids=ids)
        task = self._blueprint.task
        scores = found.probabilities() if model is None else task.probabilities(found.outputs)
        return pd.DataFrame(scores, index=asked.ids_as_given(), columns=list(self.classes))

    def answer(
        self, blocks: Mapping[str, BlockLike], *, ids: Iterable[Any] | None = None
    ) -> pd.DataFrame:
        """The label of every sample, how sure it is, and from which blocks it was predicted.

        Samples may differ in the blocks that they have; each needs one at least. The first column
        has the label's name. ``confidence`` is the calibrated probability of that label; of a
        number there is ``spread`` in its place, the error to expect from as many blocks. ``blocks``
        names the parties whose blocks were used; none for a guess. ``ids`` says which samples to
        answer for, and in which order.
        """
        wanted = None if ids is None else as_ids(list(ids), "ids")
        asked, found = self._outputs(blocks, wanted=wanted)
        table = pd.DataFrame({self.label_name: found.values()}, asked.ids_as_given())
        if self._blueprint.task.kind != "regression":
            table["confidence"] = found.confidence(found.probabilities())
        else:
            table["spread"] = found.spread()
        # Where columns are pooled one party has all of them; the blocks are still their owners'.
        table["blocks"] = [self.parties if self.is_pooled else used for used in found.used]
        return table

    def features(self, block: Block) -> Tensor:
        """A block's rows as its party's encoder takes them, for samples that are asked for often.

        Args:
            block: Some of a party's columns by sample id.

        Returns:
            A row per row of the block.
        """
        return self._blueprint.features({block.owner: block})[block.owner]

    def answer_rows(
        self,
        features: Mapping[str, Tensor],
        rows: Mapping[str, Rows],
        *,
        ids: Sequence[str] = (),
        through: Callable[[Fabric], Fabric] | None = None,
    ) -> Answered:
        """Answer for samples whose features are prepared: without a table on the way.

        Args:
            features: What ``features`` gave, by party.
            rows: By party, each sample's row of these; -1 where the party does not have it.
            ids: Who the samples are; a party with a budget charges them.
            through: Puts something around the fabric that carries the questions.

        Returns:
            Outputs in the samples' order.
        """
        people = people_of_samples(self._blueprint.counting, ids, features, rows)
        data = self._blueprint.prepared_data(features, rows, people)
        return self._answered(data, rows, None, through)

    def outputs(
        self, blocks: Mapping[str, BlockLike], *, model: str | None = None, ids: Any = None
    ) -> pd.DataFrame:
        """The network's raw outputs for every sample, by sample id.

        Logits of every class, or of two classes the second one's only; for regression the number
        in units of the training labels' spread.
        """
        asked, found = self._outputs(blocks, model, ids=ids)
        return pd.DataFrame(found.outputs.double().numpy(), index=asked.ids_as_given())

    def evaluate(
        self,
        blocks: Mapping[str, BlockLike] | None = None,
        labels: LabelsLike = None,
        *,
        part: str = "test",
        ids: Any = None,
    ) -> dict[str, float]:
        """Loss and metrics on new labelled samples, or on a held-out part of the training data."""
        if blocks is None:
            parts = sorted(self._federation.holder.parts)
            if part not in parts:
                raise DataError(
                    f"no part '{part}' here: "
                    + (f"there are {parts}" if parts else "a loaded result has no data")
                    + "; pass blocks and labels to evaluate on other samples"
                )
            return evaluate(self._federation, part)
        if labels is None:
            raise ConfigError("labels: missing; evaluation needs the true labels of the blocks")
        given = given_samples(self._blueprint, blocks, labels, ids)
        assert given.labels is not None
        asked, found = self._outputs(given.blocks)
        outputs = found.outputs
        rows = rows_of_ids(given.labels.ids, asked.texts)
        absent = int((rows < 0).sum())
        if absent:
            raise DataError(f"labels: missing for {absent} of {len(rows)} samples")
        values = given.labels.values[rows]
        task = self._blueprint.task
        loss = task.loss(outputs, task.encode(values, outputs.dtype)).item()
        return {"loss": loss, **task.measure(outputs, values)}

    def save(self, directory: str | Path) -> Path:
        """Write the model to a new directory: each party's weights in its own files."""
        root = Path(directory).expanduser()
        if (root / "config.json").exists():
            raise StorageError(f"{root}: holds a run or a model already; choose another directory")
        write_blueprint(root, self._blueprint)
        write_model(root, self._federation)
        write_calibration(root, self.calibration)
        write_json(root / "summary.json", finite(self.summary))
        if self._card is not None and not callable(self._card):
            write_card(root, self._card)
        return root

    @classmethod
    def load(cls, directory: str | Path) -> Result:
        """Read a model that was saved, or that a run directory holds."""
        root = Path(directory).expanduser()
        return open_result(root, read_blueprint(root), NO_DATA)

    def _outputs(
        self,
        blocks: Mapping[str, BlockLike],
        model: str | None = None,
        wanted: np.ndarray[Any, Any] | None = None,
        ids: Any = None,
    ) -> tuple[AskedSamples, Answered]:
        """The network's outputs for samples in the first block's order, or for those wanted."""
        given = given_samples(self._blueprint, blocks, None, ids)
        asked = aligned(self._blueprint, given.blocks, wanted)
        data = self._blueprint.new_data(asked.blocks, asked.rows)
        return asked, self._answered(data, asked.rows, model)

    def _answered(
        self,
        data: TrainingData,
        rows: Mapping[str, Rows],
        model: str | None = None,
        through: Callable[[Fabric], Fabric] | None = None,
    ) -> Answered:
        parts, plans = self._blueprint.other_parts(data)
        view = self._federation.over(parts)
        if through is not None:
            view = replace(view, fabric=through(view.fabric))
        with no_grad():
            predicted = view.predictions(NEW, plans[NEW], each=model is not None)
        names, presence = data.roll.names, data.roll.presence[NEW]
        if names != tuple(sorted(rows)):  # pooled columns, or a party without a block
            presence = np.stack([rows[name] >= 0 for name in sorted(rows)], axis=1)
        return Answered(
            outputs=outputs_of(model, predicted, self._blueprint.spec.method.info.name),
            used=predicted.used,
            presence=presence,
            task=self._blueprint.task,
            calibration=self.calibration,
        )


def _only_predicting(federation: Federation) -> Federation:
    """The same federation with its networks in evaluation mode for good, those that are here."""
    federation.holder.fusion.eval()
    if isinstance(federation.fabric, LocalFabric):
        for party in local_parties(federation).values():
            party.model.eval()
    return federation


def open_result(root: Path, blueprint: Blueprint, data: TrainingData) -> Result:
    """A federation with the weights that a run directory holds, over this data."""
    if not (root / "checkpoint.json").exists():
        raise StorageError(f"{root}: holds no checkpoint yet; let the run go on first")
    federation = blueprint.build(data)
    for name, party in local_parties(federation).items():
        settle_account(party, root, is_expected=True)
        party.settle_in(DirectoryVault(party_directory(root, name)))
    restore_model(root, federation)
    summary = root / "summary.json"
    return Result(
        blueprint=blueprint,
        federation=federation,
        summary=read_json(summary) if summary.exists() else {},
        calibration=read_calibration(root),
        card=read_card(root),
        lines=recorded_lines(root),
    )
