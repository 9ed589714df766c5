"""Evaluation: loss and metrics of a federation on one of its parts."""

from __future__ import annotations

import torch

from colonnade.core.errors import Diverged
from colonnade.core.federation import Federation, Predictions
from colonnade.core.messages import Batch
from colonnade.quality.by_party import measure_each

__all__ = ["evaluate"]


def evaluate(
    federation: Federation, part: str, found: Predictions | None = None
) -> dict[str, float]:
    """Measure the loss and every metric of the task.

    Args:
        federation: It must have the labels of the part.
        part: Its name, such as ``validation``.
        found: Predictions of it that were made already.

    Returns:
        ``loss`` and metrics by name; for every party that has a predictor of its own, that one's
        quality too.

    Raises:
        Diverged: If predictions are no longer finite; it names the party.
    """
    labels = federation.holder.parts[part]
    if found is None:
        found = federation.predictions(part, labels.plan, each=True)
    if not torch.isfinite(found.outputs).all():
        raise _diverged(federation, part)
    task = federation.holder.task
    measured = {
        "loss": task.loss(found.outputs, labels.targets).item(),
        **task.measure(found.outputs, labels.values),
    }
    return {**measured, **measure_each(task, found.each, labels.values)} if found.each else measured


def _diverged(federation: Federation, part: str) -> Diverged:
    """The error that names whose numbers are no longer finite: a party's, or the fusion model's."""
    # Of a sum nobody can tell whose it was; a party whose own numbers are wild says so itself.
    holder, batch = federation.holder, Batch(part, 0)
    asked = {}
    if federation.sums is None:
        parties = federation.aside()
        here = holder.observed(batch, parties.names).names
        asked = federation.fabric.run(parties.ask("infer", batch, among=here))
    wild = [name for name, item in asked.items() if not torch.isfinite(item).all()]
    who = wild[0] if wild else holder.name
    return Diverged(
        f"exchange {holder.exchange + 1}: predictions on the {part} part are no longer finite, "
        f"from '{who}' on; lower its learning rate",
        exchange=holder.exchange + 1,
        party=who,
    )
