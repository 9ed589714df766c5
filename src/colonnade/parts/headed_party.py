"""A party with a whole model of its own: an encoder, and a head that decides."""

from __future__ import annotations

from torch import Tensor

from colonnade.core.errors import ProtocolError
from colonnade.core.messages import Batch
from colonnade.core.party import Party
from colonnade.core.releases import Derivative
from colonnade.core.verbs import verb

__all__ = ["HeadedParty"]


class HeadedParty(Party):
    """The silo's half where every party decides for itself; its module ``head`` makes outputs.

    A prediction goes up, its gradient comes down: ``descend`` takes a step through head and encoder
    together, along the graph that the prediction was made with.
    """

    # The prediction that waits for its gradient. Never part of a checkpoint: those are taken
    # between exchanges, and a gradient answers a prediction of its own exchange.
    _predicted: tuple[Batch, Tensor] | None = None

    def predict_from(self, batch: Batch, embedding: Tensor) -> Tensor:
        """The head's outputs in training mode, kept until their gradient comes.

        Args:
            batch: The samples.
            embedding: What the head reads.

        Returns:
            Raw outputs with their graph.
        """
        with self.own_randomness():
            prediction: Tensor = self.model["head"](embedding)
        self._predicted = (batch, prediction)
        return prediction

    def conclude_from(self, embedding: Tensor) -> Tensor:
        """The head's outputs for prediction: evaluation mode, no graph, no simulated time.

        Args:
            embedding: What the head reads.

        Returns:
            Raw outputs, a row per sample.
        """
        with self.evaluating():
            outputs: Tensor = self.model["head"](embedding)
        return outputs

    @verb
    def descend(self, batch: Batch, gradient: Derivative) -> None:
        """Take one step of encoder and head along dL/dR_k.

        Args:
            batch: The samples of the prediction.
            gradient: The derivative by it.

        Raises:
            ProtocolError: If no prediction of this batch waits for a gradient.
        """
        if self._predicted is None or self._predicted[0] != batch:
            raise ProtocolError(
                f"party '{self.name}' has predicted nothing for batch {batch.number} of part "
                f"'{batch.part}' that waits for a gradient"
            )
        _, prediction = self._predicted
        self._predicted = None
        self.begin_local_steps()
        self.step(prediction, gradient, batch=batch)
