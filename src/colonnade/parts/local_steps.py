"""The silo's half of methods with several local steps per exchange."""

from __future__ import annotations

from colonnade.core.messages import Batch
from colonnade.core.party import Party
from colonnade.core.releases import Derivative, Embedding
from colonnade.core.verbs import verb

__all__ = ["LocalStepsParty"]


class LocalStepsParty(Party):
    """Embeds, and descends for a given number of steps; θ_k and x_k never leave it."""

    @verb
    def embed(self, batch: Batch) -> Embedding:
        """Send h_k(θ_k; x_k).

        Args:
            batch: The samples.

        Returns:
            A row per sample.
        """
        return self.encode(batch)

    @verb
    def descend(self, batch: Batch, gradient: Derivative, num_steps: int) -> None:
        """Take local steps: dL/dh_k stays as received, dh_k/dθ_k is fresh each time.

        Args:
            batch: The samples.
            gradient: dL/dh_k.
            num_steps: How many.
        """
        self.begin_local_steps()
        for _ in range(num_steps):
            self.step(self.encode(batch), gradient)
