"""From a model's outputs to outcomes by id: the same in one process and over the network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from colonnade.run.answered import Answered
from colonnade.serve.predictor import Outcome, Provenance

__all__ = ["outcomes_of"]


def outcomes_of(
    answered: Answered, ages: Mapping[str, Sequence[float]], kept: Collection[str]
) -> list[Outcome]:
    """An outcome per sample.

    Args:
        answered: The outputs, and whose blocks were used.
        ages: By party, how old each sample's embedding is.
        kept: The parties whose embeddings came from the cache.

    Returns:
        In the samples' order.
    """
    values = answered.values().tolist()
    scores: Any = None
    if answered.task.kind == "regression":
        confidences, spreads = [None] * len(values), answered.spread().tolist()
    else:
        table = answered.probabilities()
        scores = table.tolist()
        confidences, spreads = answered.confidence(table).tolist(), [None] * len(values)
    # Without the cache all is new, and the same for everybody whom the same parties have.
    fresh = {} if kept else {used: _provenances(used) for used in set(answered.used)}
    return [
        Outcome(
            value=value,
            probabilities=None if scores is None else tuple(scores[place]),
            confidence=confidences[place],
            spread=None if spreads[place] is None or np.isnan(spreads[place]) else spreads[place],
            parties=fresh[answered.used[place]]
            if not kept
            else {
                party: Provenance(age=ages[party][place], is_cached=party in kept)
                for party in answered.used[place]
            },
        )
        for place, value in enumerate(values)
    ]


def _provenances(parties: Sequence[str]) -> Mapping[str, Provenance]:
    return dict.fromkeys(parties, Provenance(age=0.0))
