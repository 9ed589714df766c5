"""EASTER: one embedding for all, and a whole model of its own at every party.

Paper: Wang et al., EASTER (Embedding Aggregation-based Heterogeneous Models Training in Vertical
Federated Learning): Algorithm 1, equations (3), (7) and (8). Departures:

1. What comes down to party k is dL_k/dR_k, not the loss L_k: a scalar can't be differentiated by
   whoever has neither labels nor the rest of its graph.
2. Party k differentiates its own share of E (factor 1/C) and holds the others' embeddings
   constant; the paper says "local gradient" and leaves open what E depends on.
3. The label holder may be without a block: then there is no active party among the C, and its
   prediction is the mean of the parties' outputs. With a block, it is its own model's.
4. A party that does not answer is left out of that exchange's mean, if the run's patience allows.
5. The loss is the task's (cross-entropy with the natural logarithm, squared error, ...), not only
   the binary form of equation (8).
6. Blinding factors (equations 4 to 6) are a protection that the parties put on, not a part of the
   method: the label holder asks for a sum, and gets a sum.

Legend: E_k: embedding of party k; E: their mean, the global embedding; p_k: decision network, the
party's head; R_k: its prediction; C: number of parties.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from colonnade.core.errors import ProtocolError
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, Method, MethodInfo, Needs
from colonnade.core.parties import Parties, each
from colonnade.core.releases import Average, Embedding, Output
from colonnade.core.verbs import verb
from colonnade.parts.headed_party import HeadedParty

__all__ = ["Easter"]


class EasterParty(HeadedParty):
    """The silo's half: h and p of θ_k, its own optimizer, and x_k never leave it."""

    @verb
    def embed(self, batch: Batch) -> Embedding:
        """Send E_k = h(θ_k; x_k)."""
        return self.encode(batch)

    @verb
    def decide(self, batch: Batch, mean: Average, num_parties: int) -> Output:
        """Send R_k = p(θ_k; E); of E, only the own share E_k / C depends on θ_k."""
        own = self.encode(batch)
        if mean.shape != own.shape or num_parties < 1:
            raise ProtocolError(
                f"a global embedding of shape {tuple(mean.shape)} over {num_parties} parties; "
                f"party '{self.name}' sent one of shape {tuple(own.shape)}"
            )
        return self.predict_from(batch, mean + (own - own.detach()) / num_parties)

    @verb
    def conclude(self, mean: Average) -> Output:
        """The own model's outputs for prediction, from the mean of all embeddings."""
        return self.conclude_from(mean)


@dataclass(frozen=True, kw_only=True)
class Easter(Method):
    """Embeddings are averaged; every party decides for itself and is told how wrong it was."""

    info = MethodInfo(
        name="easter",
        paper="EASTER (Wang et al.), Algorithm 1",
        summary="any network and optimizer at each party; every party ends with a whole model",
        alone=("infer", "conclude"),
    )
    party = EasterParty
    needs = Needs(embeddings="sum", one_width=True, heads=True, fusion=False)

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """Algorithm 1, lines 2 to 15: four messages."""
        total = await parties.total("embed", batch)  # line 3
        num_parties = len(total.names)
        mean = total.value / num_parties  # line 5, equation (7)
        predictions = await parties.ask("decide", batch, mean, num_parties, among=total.names)
        gradients = holder.judge(predictions, batch)  # line 11
        await parties.tell("descend", batch, each(gradients), among=gradients)

    async def predict(
        self, holder: LabelHolder, parties: Parties, batch: Batch, *, each: bool
    ) -> Answer:
        """The label holder's own model's outputs; without a block, the mean of all models'."""
        total = await parties.total("infer", batch)
        has_own = holder.name in parties.names
        asked = (holder.name,) if has_own and not each else parties.names
        mean = total.value / len(total.names)
        answers = await parties.ask("conclude", mean, among=asked)
        own = [answers[holder.name]] if holder.name in answers else list(answers.values())
        outputs = torch.stack(own).mean(dim=0)
        return Answer(outputs=outputs, each=answers if each else {}, used=total.names)
