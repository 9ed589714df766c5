"""Prediction is in evaluation mode: batch norm's statistics are used as they are, and stay so."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from colonnade.core.batches import BatchPlan
from colonnade.core.federation import LoopState, Stop
from colonnade.core.label_holder import LabelHolder, LabelPart
from colonnade.core.messages import Batch, Call
from colonnade.core.party import Party
from colonnade.core.task import Task
from colonnade.quality.evaluation import evaluate
from federations import (
    ENCODERS,
    PLAIN_SGD,
    assert_bitwise_equal,
    features_of,
    labels_of,
    make_federation,
    seeded_module,
    train,
    weights,
)


def a_party() -> Party:
    """One whose statistics have moved from where they began."""
    federation = make_federation(encoder=ENCODERS["batch norm"], num_validation=8)
    train(federation, 2)
    party: Party = federation.fabric.parties["p0"]
    return party


def ask(party: Party, verb: str, batch: Batch) -> Tensor:
    reply = party.execute(Call(0, party.name, verb, (batch,), 0, True))
    assert reply.failure is None
    assert isinstance(reply.value, Tensor)
    return reply.value


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: item.detach().clone() for name, item in module.state_dict().items()}


class Normed(nn.Module):
    """A fusion model with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        output: Tensor = self.last(self.norm(torch.cat(list(embeddings.values()), dim=1)))
        return output


class TestParty:
    def test_uses_the_running_statistics_and_leaves_them(self) -> None:
        party, batch = a_party(), Batch("validation", 0)
        before = state_of(party.model)
        found = ask(party, "infer", batch)
        assert_bitwise_equal(before, state_of(party.model))
        linear, norm = party.encoder
        with torch.no_grad():
            plain = linear(party.rows(batch))
            expected = (plain - norm.running_mean) / torch.sqrt(norm.running_var + norm.eps)
            expected = expected * norm.weight + norm.bias
        torch.testing.assert_close(found, expected)

    def test_trains_on_with_the_batch_s_own_statistics(self) -> None:
        party, batch = a_party(), Batch("train", 0)
        ask(party, "infer", batch)
        before = state_of(party.model)
        embedding = ask(party, "embed", batch)
        torch.testing.assert_close(embedding.mean(dim=0), party.encoder[1].bias.detach())
        assert not torch.equal(before["encoder.1.running_mean"], party.encoder[1].running_mean)

    def test_training_is_the_same_with_and_without_predictions(self) -> None:
        quiet, asked = (
            make_federation(encoder=ENCODERS["both"], fusion_dropout=0.5, num_validation=8)
            for _ in range(2)
        )
        without = [event.loss for event in train(quiet, 3)]
        losses = []
        for event in asked.train(Stop(exchanges=3), LoopState(), evaluate):
            evaluate(asked, "validation")
            losses.append(event.loss)
        assert losses == without
        assert_bitwise_equal(weights(asked), weights(quiet))


class TestLabelHolder:
    def holder(self) -> LabelHolder:
        values = labels_of("binary", 16, 0)
        task = Task.fit("binary", values)
        part = LabelPart(
            values=values,
            targets=task.encode(values, torch.float32),
            plan=BatchPlan(16, 4, seed=0, shuffle=True),
        )
        return LabelHolder(
            name="clinic",
            task=task,
            fusion=seeded_module(Normed, torch.float32, 0),
            optimizer=PLAIN_SGD,
            parts={"train": part},
        )

    def embeddings(self, seed: int, num_samples: int = 4) -> dict[str, Tensor]:
        return {name: features_of(name, num_samples, 4, seed, torch.float32) for name in ("a", "b")}

    def test_uses_the_running_statistics_and_leaves_them(self) -> None:
        holder = self.holder()
        holder.learn(self.embeddings(1), Batch("train", 0))
        before = state_of(holder.fusion)
        embeddings = self.embeddings(2)
        together = holder.infer(embeddings)
        assert_bitwise_equal(before, state_of(holder.fusion))
        one_by_one = [
            holder.infer({name: item[at : at + 1] for name, item in embeddings.items()})
            for at in range(4)
        ]
        torch.testing.assert_close(together, torch.cat(one_by_one))
        assert not together.requires_grad

    def test_learns_on_with_the_batch_s_own_statistics(self) -> None:
        holder, untouched = self.holder(), self.holder()
        holder.infer(self.embeddings(2))
        for each in (holder, untouched):
            each.learn(self.embeddings(1), Batch("train", 0))
        assert_bitwise_equal(state_of(holder.fusion), state_of(untouched.fusion))
        assert holder.last_loss == untouched.last_loss
