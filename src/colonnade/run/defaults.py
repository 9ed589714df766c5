"""The defaults of training, in one place: for TOML files, ``fit``, the estimators and drafts.

``colonnade reproduce defaults-tuning`` is how to choose them, ``colonnade reproduce defaults`` how
to judge them; docs/defaults.md has more. A table of settings that is given replaces the default
table as a whole: whoever says ``stop.epochs`` decides the length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from colonnade.core.loop import Stop
from colonnade.core.optimizers import OptimizerSpec
from colonnade.models import HeadSpec, MLPFusionSpec, MLPSpec

__all__ = [
    "BATCH_SIZE",
    "ENCODER",
    "ENCODERS_BY_METHOD",
    "FUSION",
    "HEADS",
    "LEAST",
    "OPTIMIZER",
    "STOP",
    "without_validation",
]

BATCH_SIZE = 64
ENCODER = MLPSpec(hidden=(64,), embedding=32)
# By method, where another encoder is the default. Behind a linear last layer, averaging and a
# head's first layer give every party weights of its own, as embeddings side by side do. Behind an
# activation all parties would share them, and no block could lower what another one says.
ENCODERS_BY_METHOD: Mapping[str, MLPSpec] = {"laser": replace(ENCODER, activate_output=False)}
FUSION = MLPFusionSpec(hidden=(32,))
# By method, where a linear head is not the default. Over an average of embeddings a linear one
# adds up what every block says by itself: columns of two parties would never act together.
HEADS: Mapping[str, HeadSpec] = {"laser": HeadSpec(hidden=(64,))}
# Of every party and of the label holder alike, however many parties there are.
OPTIMIZER = OptimizerSpec(name="adamw", lr=1e-3, options={"weight_decay": 0.1})
# Ends by the loss on the validation part, with the best weights, and not before small tables had
# their steps; then once more on all rows, where that is quick and costs no privacy.
STOP = Stop(epochs=60, least_exchanges=500, patience=20, metric="loss", refit="auto")
# Without validation nothing tells when to stop.
_EPOCHS, LEAST = 20, 300


def without_validation(stop: Stop) -> Stop:
    """The default end of training where no sample is held out; any other ``stop`` as it is."""
    if replace(stop, refit=STOP.refit) != STOP:
        return stop
    return replace(Stop(epochs=_EPOCHS), least_exchanges=LEAST)
