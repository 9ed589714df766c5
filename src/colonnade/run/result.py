"""Result: a trained federation that predicts, evaluates, is saved and loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from colonnade.core.batches import BatchPlan
from colonnade.core.by_set import set_sizes
from colonnade.core.calibration import Calibration
from colonnade.core.errors import ConfigError, DataError, MissingBlock, StorageError
from colonnade.core.federation import Federation
from colonnade.data.blocks import Block, Labels, as_ids, make_block
from colonnade.run.arrangement import Rows
from colonnade.run.assembly import NEW, NO_DATA, Blueprint, TrainingData
from colonnade.run.directory import (
    local_parties,
    read_blueprint,
    read_calibration,
    restore_model,
    write_blueprint,
    write_calibration,
    write_model,
)
from colonnade.run.further_parts import lent
from colonnade.run.storage import (
    DirectoryVault,
    finite,
    party_directory,
    read_json,
    write_json,
)

__all__ = ["Result", "open_result"]


class Result:
    """What training gave: predictions for new samples, quality on held-out ones.

    Blocks are given by party, as Blocks or as tables with sample ids as index.
    """

    def __init__(
        self,
        *,
        blueprint: Blueprint,
        federation: Federation,
        summary: Mapping[str, Any],
        calibration: Calibration | None = None,
    ) -> None:
        self.summary = dict(summary)
        self.calibration = calibration
        self._blueprint = blueprint
        self._federation = federation

    def __repr__(self) -> str:
        quality = self.summary.get("quality", {})
        name = self._blueprint.task.quality_name
        part = "test" if "test" in quality else "validation"
        value = quality.get(part, {}).get(name)
        reached = "" if value is None else f", {part} {name} {value:.3f}"
        return f"Result({self._blueprint.spec.method.info.name}{reached})"

    def __getstate__(self) -> dict[str, Any]:
        """For a copy, or a pickle of one's own: settings and weights, without the data."""
        parties = local_parties(self._federation)
        return {
            "blueprint": self._blueprint,
            "summary": self.summary,
            "calibration": self.calibration,
            "holder": self._federation.holder.state(),
            "parties": {name: {**item.state(), "pending": None} for name, item in parties.items()},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        federation = state["blueprint"].build()
        federation.holder.restore(state["holder"])
        for name, party in local_parties(federation).items():
            party.restore(state["parties"][name])
        self.summary = state["summary"]
        self.calibration = state["calibration"]
        self._blueprint = state["blueprint"]
        self._federation = federation

    @property
    def parties(self) -> tuple[str, ...]:
        """Whose blocks a prediction needs."""
        return self._blueprint.owners

    @property
    def left(self) -> tuple[str, ...]:
        """Who left for good; their blocks are no longer taken."""
        return self._blueprint.left

    @property
    def classes(self) -> tuple[Any, ...]:
        """The classes, in the order of ``predict_proba``'s columns; empty for regression."""
        return self._blueprint.task.classes

    def predict(
        self, blocks: Mapping[str, Block | pd.DataFrame], *, model: str | None = None
    ) -> pd.Series[Any]:
        """The predicted label of every sample, by sample id.

        Where parties have models of their own, ``model`` names the party whose model answers.
        """
        found = self._outputs(blocks, model)
        name = self._blueprint.label_name
        return pd.Series(self._blueprint.task.decide(found.outputs), index=found.ids, name=name)

    def predict_proba(
        self, blocks: Mapping[str, Block | pd.DataFrame], *, model: str | None = None
    ) -> pd.DataFrame:
        """The probability of each class for every sample, by sample id.

        Of a method that can do without blocks they are calibrated by the number of blocks that
        each sample has.
        """
        found = self._outputs(blocks, model)
        if model is not None:
            scores = self._blueprint.task.probabilities(found.outputs)
            return pd.DataFrame(scores, index=found.ids, columns=list(self.classes))
        return pd.DataFrame(self._scores(found), index=found.ids, columns=list(self.classes))

    def answer(
        self, blocks: Mapping[str, Block | pd.DataFrame], *, ids: Iterable[Any] | None = None
    ) -> pd.DataFrame:
        """The label of every sample, how sure it is, and from which blocks it was predicted.

        Samples may differ in the blocks that they have; each needs one at least. The first column
        has the label's name. ``confidence`` is the calibrated probability of that label; of a
        number there is ``spread`` in its place, the error to expect from as many blocks. ``blocks``
        names the parties whose blocks were used; none for a guess. ``ids`` says which samples to
        answer for, and in which order.
        """
        task = self._blueprint.task
        found = self._outputs(blocks, wanted=None if ids is None else as_ids(list(ids), "ids"))
        table = pd.DataFrame({self._blueprint.label_name: task.decide(found.outputs)}, found.ids)
        if task.kind != "regression":
            scores = self._scores(found)
            decided = {item: place for place, item in enumerate(self.classes)}
            places = [decided[item] for item in table.iloc[:, 0].tolist()]
            table["confidence"] = scores[np.arange(len(scores)), places]
        elif self.calibration is not None:
            table["spread"] = self.calibration.spread(found.sizes)
        else:
            table["spread"] = np.nan
        table["blocks"] = self._used(found)
        return table

    def _used(self, found: _Found) -> list[tuple[str, ...]]:
        method, holder = self._blueprint.spec.method, self._federation.holder
        participants = self._blueprint.participants
        if method.pools_blocks:
            return [self.parties] * len(found.ids)
        by_row = {
            row: method.used(
                tuple(name for name, here in zip(found.names, row, strict=True) if here),
                participants,
                holder,
            )
            for row in set(map(tuple, found.presence.tolist()))
        }
        return [by_row[tuple(row)] for row in found.presence.tolist()]

    def _scores(self, found: _Found) -> np.ndarray[Any, Any]:
        outputs = found.outputs
        if self.calibration is not None and self._blueprint.task.kind != "regression":
            outputs = self.calibration.sharpened(outputs, found.sizes)
        return self._blueprint.task.probabilities(outputs)

    def outputs(
        self, blocks: Mapping[str, Block | pd.DataFrame], *, model: str | None = None
    ) -> pd.DataFrame:
        """The network's raw outputs for every sample, by sample id.

        Logits of every class, or of two classes the second one's only; for regression the number
        in units of the training labels' spread.
        """
        found = self._outputs(blocks, model)
        return pd.DataFrame(found.outputs.double().numpy(), index=found.ids)

    def evaluate(
        self,
        blocks: Mapping[str, Block | pd.DataFrame] | None = None,
        labels: pd.Series[Any] | Labels | None = None,
        *,
        part: str = "test",
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
            return self._federation.evaluate(part)
        if labels is None:
            raise ConfigError("labels: missing; evaluation needs the true labels of the blocks")
        found = self._outputs(blocks)
        ids, outputs = found.ids, found.outputs
        known = _by_id(labels)
        absent = int((~ids.isin(known.index)).sum())
        if absent:
            raise DataError(f"labels: missing for {absent} of {len(ids)} samples")
        values = known.loc[ids].to_numpy()
        task = self._blueprint.task
        loss = task.loss(outputs, task.encode(values, outputs.dtype)).item()
        return {"loss": loss, **task.measure(outputs, values)}

    def save(self, directory: str | Path) -> Path:
        """Write the model to a new directory: each party's weights in its own files."""
        root = Path(directory)
        if (root / "config.json").exists():
            raise StorageError(f"{root}: holds a run or a model already; choose another directory")
        write_blueprint(root, self._blueprint)
        write_model(root, self._federation)
        write_calibration(root, self.calibration)
        write_json(root / "summary.json", finite(self.summary))
        return root

    @classmethod
    def load(cls, directory: str | Path) -> Result:
        """Read a model that was saved, or that a run directory holds."""
        root = Path(directory)
        return open_result(root, read_blueprint(root), NO_DATA)

    def _outputs(
        self,
        blocks: Mapping[str, Block | pd.DataFrame],
        model: str | None = None,
        wanted: np.ndarray[Any, Any] | None = None,
    ) -> _Found:
        """The network's outputs for samples in the first block's order, or for those wanted."""
        own, rows, ids = self._aligned(blocks, wanted)
        data = self._blueprint.new_data(own, rows)
        presence = np.stack([rows[name] >= 0 for name in sorted(rows)], axis=1)
        with lent(self._federation, self._blueprint.spec, data) as plans:
            outputs = (
                self._federation.outputs(NEW, plans[NEW])
                if model is None
                else self._outputs_of(model, plans[NEW])
            )
        return _Found(ids=ids, outputs=outputs, names=tuple(sorted(rows)), presence=presence)

    def _outputs_of(self, model: str, plan: BatchPlan) -> Tensor:
        """One party's own model's outputs."""
        found = self._federation.outputs_each(NEW, plan)
        if model not in found:
            named = self._blueprint.spec.method.info.name
            raise ConfigError(
                f"model: '{model}' has none of its own; "
                + (f"there are those of {list(found)}" if found else f"'{named}' gives one for all")
            )
        positions, outputs = found[model]
        if len(positions) < plan.num_samples:
            raise MissingBlock(
                f"party '{model}' has {len(positions)} of {plan.num_samples} samples, and its "
                "model answers for no others: leave those out"
            )
        return outputs[positions.argsort()]

    def _block(self, name: str, table: pd.DataFrame) -> Block:
        """A table under the ids that training used: a column of that name, or the index."""
        known = self._blueprint.spec.party.get(name)
        id_column = known.id if known else None
        if id_column is None or table.index.name == id_column:
            return make_block(name, table)
        return make_block(name, table, id_column=id_column)

    def _aligned(
        self,
        blocks: Mapping[str, Block | pd.DataFrame],
        wanted: np.ndarray[Any, Any] | None,
    ) -> tuple[dict[str, Block], dict[str, Rows], pd.Index[Any]]:
        """The blocks, the row of every sample in each (-1: not there), and the sample ids.

        Every sample must be in every block, or in one if the method can do without some.
        """
        gone = sorted(set(blocks) & set(self.left))
        if gone:
            raise MissingBlock(f"{', '.join(gone)} left this federation; leave its block out")
        tolerant = self._blueprint.spec.method.info.tolerates_missing
        absent = [name for name in self.parties if name not in blocks]
        if absent and (not tolerant or len(absent) == len(self.parties)):
            raise MissingBlock(
                f"no block of {absent}; method '{self._blueprint.spec.method.info.name}' needs "
                f"those of {list(self.parties)}"
            )
        own = {
            name: item if isinstance(item, Block) else self._block(name, item)
            for name, item in blocks.items()
            if name in self.parties
        }
        ids = pd.Index(next(iter(own.values())).ids)
        for block in own.values():
            ids = ids.union(pd.Index(block.ids), sort=False)
        if wanted is not None:
            num_without = int((~pd.Index(wanted).isin(ids)).sum())
            if num_without:
                raise MissingBlock(
                    f"{num_without} of {len(wanted)} samples have no block at any of "
                    f"{sorted(own)}; a prediction needs one at least"
                )
            ids = pd.Index(wanted)
        rows = {name: pd.Index(block.ids).get_indexer(ids) for name, block in own.items()}
        lacking = {name: int((item < 0).sum()) for name, item in rows.items()}
        if any(lacking.values()) and not tolerant:
            counts = ", ".join(
                f"'{name}' lacks {count}" for name, count in lacking.items() if count
            )
            raise MissingBlock(
                f"of {len(ids)} samples, party {counts}; method "
                f"'{self._blueprint.spec.method.info.name}' needs every block of a sample: leave "
                "those samples out"
            )
        return own, rows, ids


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Outputs of samples, and who had which."""

    ids: pd.Index[Any]
    outputs: Tensor
    names: tuple[str, ...]
    presence: np.ndarray[Any, np.dtype[np.bool_]]

    @property
    def sizes(self) -> Tensor:
        """How many blocks each sample has."""
        return set_sizes(torch.from_numpy(self.presence))


def open_result(root: Path, blueprint: Blueprint, data: TrainingData) -> Result:
    """A federation with the weights that a run directory holds, over this data."""
    if not (root / "checkpoint.json").exists():
        raise StorageError(f"{root}: holds no checkpoint yet; let the run go on first")
    federation = blueprint.build(
        data, make_vault=lambda name: DirectoryVault(party_directory(root, name))
    )
    restore_model(root, federation)
    summary = root / "summary.json"
    return Result(
        blueprint=blueprint,
        federation=federation,
        summary=read_json(summary) if summary.exists() else {},
        calibration=read_calibration(root),
    )


def _by_id(labels: pd.Series[Any] | Labels) -> pd.Series[Any]:
    if isinstance(labels, Labels):
        return pd.Series(labels.values, index=pd.Index(labels.ids))
    ids = as_ids(labels.index, "labels")
    return _by_id(Labels(ids=ids, values=labels.to_numpy()))
