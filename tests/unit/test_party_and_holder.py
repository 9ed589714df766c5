"""One party and one label holder by themselves: encodings, steps, states, and who draws what."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import Diverged, MissingBlock, ProtocolError
from colonnade.core.label_holder import LabelHolder, LabelPart
from colonnade.core.messages import Batch, Call, Summand
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.party import Part
from colonnade.core.seeds import derive_seed, drawing_from
from colonnade.core.task import Task
from colonnade.models import MLPFusionSpec, is_deterministic
from colonnade.parts.split_step import SplitParty
from federations import (
    ENCODERS,
    PLAIN_SGD,
    EncoderFactory,
    MemoryVault,
    features_of,
    labels_of,
    mlp,
    seeded_module,
)
from messages import says
from probes import assert_plain

FIRST, SECOND = Batch("train", 0), Batch("train", 1)
PLAN = BatchPlan(16, 4, seed=0, shuffle=True)
GRADIENT = torch.linspace(-1.0, 1.0, 16).reshape(4, 4)
MOMENTUM = OptimizerSpec(name="sgd", lr=0.1, options={"momentum": 0.9})


class CountingClock:
    """Notes every unit of work."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def now(self) -> int:
        return len(self.done)

    def begin(self) -> None:
        """Nothing is timed."""

    def work(self, kind: str) -> None:
        self.done.append(kind)


def make_party(encoder: EncoderFactory = ENCODERS["plain"], **settings: Any) -> SplitParty:
    network = seeded_module(lambda: encoder(3), torch.float32, 0, "weights")
    part = Part(features=features_of("bank", 16, 3, 0, torch.float32), plan=PLAN)
    defaults = {
        "name": "bank",
        "encoder": network,
        "optimizer": MOMENTUM,
        "parts": {"train": part},
        "deterministic": is_deterministic(network),
        "clock": CountingClock(),
    }
    return SplitParty(**defaults | settings)


def make_holder(dropout: float = 0.0, **settings: Any) -> LabelHolder:
    values = labels_of("binary", 16, 0)
    task = Task.fit("binary", values)
    spec = MLPFusionSpec(hidden=(5,), dropout=dropout)
    fusion = seeded_module(lambda: spec.build({"bank": 4, "shop": 4}, 1), torch.float32, 0)
    part = LabelPart(values=values, targets=task.encode(values, torch.float32), plan=PLAN)
    defaults = {
        "name": "clinic",
        "task": task,
        "fusion": fusion,
        "optimizer": MOMENTUM,
        "parts": {"train": part},
        "deterministic": dropout == 0.0,
        "clock": CountingClock(),
    }
    return LabelHolder(**defaults | settings)


def embeddings(seed: int = 0) -> dict[str, Tensor]:
    return {name: features_of(name, 4, 4, seed, torch.float32) for name in ("bank", "shop")}


def bits(module: nn.Module) -> list[list[float]]:
    return [value.flatten().tolist() for value in module.state_dict().values()]


@dataclass
class Delays:
    """Something that a method remembers."""

    by_party: dict[str, int] = field(default_factory=dict)


def test_training_numbers_its_encodings_together_and_predictions_theirs() -> None:
    party = make_party()
    party.refresh(FIRST)
    party.embed(SECOND)
    party.infer(FIRST)
    # What compresses or adds noise goes by both: a refresh is training.
    made = [(encoding.purpose, encoding.number) for encoding in party._made]
    assert made == [("encode", 1), ("encode", 2), ("infer", 1)]


class TestPending:
    def test_encoding_is_not_computed_twice_for_the_same_weights(self) -> None:
        party = make_party()
        first = party.encode(FIRST)
        assert party.encode(FIRST) is first
        assert party.clock.done == ["encode"]

    def test_step_makes_it_stale(self) -> None:
        party = make_party()
        first = party.encode(FIRST)
        party.step(first, GRADIENT)
        assert party.encode(FIRST) is not first
        assert not torch.equal(party.encode(FIRST), first)
        assert party.clock.done == ["encode", "step", "encode"]
        assert party.num_local_steps == 1

    def test_another_batch_replaces_it(self) -> None:
        party = make_party()
        first = party.encode(FIRST)
        second = party.encode(SECOND)
        assert not torch.equal(first, second)
        assert party.encode(FIRST) is not first
        assert party.clock.done == ["encode"] * 3

    def test_prediction_leaves_it_alone(self) -> None:
        party = make_party(ENCODERS["both"])
        first, before = party.encode(FIRST), bits(party.model)
        predicted = party.infer(SECOND)
        assert party.encode(FIRST) is first
        assert bits(party.model) == before
        assert party.model.training
        assert not predicted.requires_grad
        assert party.clock.done == ["encode"]

    def test_embed_and_descend_are_one_step_of_the_chain_rule(self) -> None:
        party = make_party(optimizer=PLAIN_SGD)
        twin = copy.deepcopy(party.encoder)
        party.embed(FIRST)
        party.descend(FIRST, GRADIENT)

        (twin(party.rows(FIRST)) * GRADIENT).sum().backward()
        for mine, weight in zip(party.encoder.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine, weight - 0.1 * weight.grad, atol=1e-6, rtol=0.0)


class TestRefusals:
    @pytest.mark.parametrize("shape", [(4, 3), (3, 4), (4,), (4, 4, 1), (1, 4)])
    def test_gradient_of_the_wrong_shape(self, shape: tuple[int, ...]) -> None:
        party = make_party()
        before = bits(party.model)
        with pytest.raises(ProtocolError, match=says("gradient", "(4, 4)")):
            party.descend(FIRST, torch.ones(shape))
        assert bits(party.model) == before
        assert party.num_local_steps == 0

    def test_part_that_the_party_does_not_have(self) -> None:
        with pytest.raises(ProtocolError, match=says("'bank'", "'test'", ["train"])):
            make_party().encode(Batch("test", 0))

    def test_nowhere_to_keep_checkpoints(self) -> None:
        reply = make_party().execute(Call(5, "bank", "fetch", ("1",), 3, True))
        assert reply.failure is not None
        assert reply.failure.kind == "StorageError"
        assert "'bank'" in reply.failure.message

    def test_failure_is_an_answer_too(self) -> None:
        reply = make_party().execute(Call(5, "bank", "descend", (FIRST, torch.ones(2)), 3, False))
        assert (reply.id, reply.party, reply.exchange, reply.value) == (5, "bank", 3, None)
        assert reply.failure is not None
        assert reply.failure.kind == "ProtocolError"

    def test_without_a_guard_nothing_is_sent_where_a_part_of_a_sum_is_asked_for(self) -> None:
        call = Call(5, "bank", "embed", (FIRST,), 3, True, Summand(0, ("bank", "shop")))
        reply = make_party().execute(call)
        assert reply.value is None
        assert reply.failure is not None
        assert "'bank'" in reply.failure.message
        assert "sum" in reply.failure.message


class TestPartyState:
    @pytest.mark.parametrize("encoder", ENCODERS)
    @pytest.mark.parametrize("has_pending", [False, True])
    def test_restored_party_continues_to_the_bit(self, encoder: str, has_pending: bool) -> None:
        def begun() -> SplitParty:
            party = make_party(ENCODERS[encoder])
            for number in range(3):
                party.embed(Batch("train", number))
                party.descend(Batch("train", number), GRADIENT)
            if has_pending:
                party.embed(Batch("train", 3))
            return party

        def continued(party: SplitParty) -> list[Any]:
            party.descend(Batch("train", 3), GRADIENT)
            embedding = party.embed(Batch("train", 4))
            party.descend(Batch("train", 4), GRADIENT)
            return [embedding.tolist(), bits(party.model), party.infer(FIRST).tolist()]

        kept = copy.deepcopy(begun().state())
        assert_plain({key: value for key, value in kept.items() if key != "model"})
        restored = make_party(ENCODERS[encoder])
        restored.restore(kept)

        expected = begun()
        assert bits(restored.model) == bits(expected.model)
        assert restored.num_local_steps == 3
        assert continued(restored) == continued(expected)

    @pytest.mark.parametrize("encoder", ENCODERS)
    def test_goes_back_to_what_it_kept_itself(self, encoder: str) -> None:
        party = make_party(ENCODERS[encoder], vault=MemoryVault())
        party.embed(FIRST)
        assert party.execute(Call(1, "bank", "keep", ("1",), 0, True)).failure is None
        before = bits(party.model)
        for _ in range(2):
            party.descend(FIRST, GRADIENT)
            after = bits(party.model)
            party.embed(SECOND)
            assert party.execute(Call(2, "bank", "fetch", ("1",), 0, True)).failure is None
            assert bits(party.model) == before
        party.descend(FIRST, GRADIENT)
        assert bits(party.model) == after

    def test_pending_encoding_with_a_buffer_that_no_checkpoint_holds(self) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = mlp()(3)
                self.register_buffer("factor", torch.tensor(2.0), persistent=False)

            def forward(self, rows: Tensor) -> Tensor:
                return self.inner(rows) * self.factor

        party, restored = make_party(lambda _: Scaled()), make_party(lambda _: Scaled())
        party.embed(FIRST)
        restored.restore(copy.deepcopy(party.state()))
        assert torch.equal(restored.encode(FIRST), party.encode(FIRST))

    def test_extra_modules_are_trained_and_kept_too(self) -> None:
        party = make_party(modules={"head": nn.Linear(4, 1)})
        assert {key.split(".")[0] for key in party.state()["model"]} == {"encoder", "head"}
        groups = party.optimizer.param_groups
        assert len(groups[0]["params"]) == len(list(party.model.parameters()))


class TestRandomness:
    def test_party_leaves_the_global_stream_alone(self) -> None:
        party = make_party(ENCODERS["both"])
        before = torch.get_rng_state()
        party.embed(FIRST)
        party.descend(FIRST, GRADIENT)
        party.infer(FIRST)
        assert torch.equal(torch.get_rng_state(), before)

    def test_label_holder_leaves_the_global_stream_alone(self) -> None:
        holder = make_holder(dropout=0.5)
        before = torch.get_rng_state()
        holder.learn(embeddings(), FIRST)
        holder.infer(embeddings())
        assert torch.equal(torch.get_rng_state(), before)

    def test_global_stream_does_not_matter(self) -> None:
        found = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            found.append(make_party(ENCODERS["dropout"]).embed(FIRST).tolist())
        assert found[0] == found[1]

    def test_each_encoding_name_and_seed_draws_anew(self) -> None:
        party = make_party(ENCODERS["dropout"])
        drawn = [party.encode(batch).tolist() for batch in (FIRST, SECOND, FIRST)]
        drawn += [
            make_party(ENCODERS["dropout"], **{key: value}).encode(FIRST).tolist()
            for key, value in (("name", "shop"), ("seed", 1))
        ]
        assert len({str(item) for item in drawn}) == len(drawn)

    def test_each_fusion_and_seed_draws_anew(self) -> None:
        still = OptimizerSpec(name="sgd", lr=1e-30)
        holders = [make_holder(0.5, optimizer=still, seed=seed) for seed in (0, 0, 1)]
        drawn = []
        for holder in holders:
            for _ in range(3):
                holder.learn(embeddings(), FIRST)
                drawn.append(holder.last_loss)
        assert drawn[:3] == drawn[3:6]
        assert len(set(drawn)) == 6


class TestLabelHolder:
    def test_learns_and_gives_the_gradients_before_the_update(self) -> None:
        holder = make_holder(optimizer=PLAIN_SGD)
        twin = copy.deepcopy(holder.fusion)
        leaves = {name: item.requires_grad_() for name, item in embeddings().items()}

        gradients = holder.learn(embeddings(), FIRST)

        loss = holder.task.loss(twin(leaves), holder.targets(FIRST))
        loss.backward()
        assert holder.last_loss == pytest.approx(loss.item())
        assert list(gradients) == ["bank", "shop"]
        for name, leaf in leaves.items():
            torch.testing.assert_close(gradients[name], leaf.grad)
        for mine, weight in zip(holder.fusion.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine, weight - 0.1 * weight.grad)
        assert holder.clock.done == ["fuse"]

    def test_learning_leaves_the_embeddings_as_they_came(self) -> None:
        given = embeddings()
        make_holder().learn(given, FIRST)
        assert all(torch.equal(given[name], item) for name, item in embeddings().items())
        assert not any(item.requires_grad for item in given.values())

    def test_embedding_that_the_fusion_ignores_gets_a_zero_gradient(self) -> None:
        class OnlyBank(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Linear(4, 1)

            def forward(self, blocks: dict[str, Tensor]) -> Tensor:
                return self.head(blocks["bank"])

        gradients = make_holder(fusion=OnlyBank()).learn(embeddings(), FIRST)
        assert torch.equal(gradients["shop"], torch.zeros(4, 4))
        assert gradients["bank"].abs().sum() > 0

    def test_targets_are_the_labels_of_the_batch_s_rows(self) -> None:
        holder = make_holder()
        values = labels_of("binary", 16, 0)[PLAN.positions(1).numpy()]
        assert np.array_equal(holder.targets(SECOND)[:, 0].numpy(), values)

    def test_prediction_is_without_dropout_and_graph(self) -> None:
        holder = make_holder(dropout=0.5)
        first, second = holder.infer(embeddings()), holder.infer(embeddings())
        assert torch.equal(first, second)
        assert not first.requires_grad
        assert holder.fusion.training

    def test_missing_embedding_is_missing(self) -> None:
        with pytest.raises(MissingBlock, match="shop"):
            make_holder().learn({"bank": embeddings()["bank"]}, FIRST)

    @pytest.mark.parametrize("poison", [math.nan, math.inf])
    def test_divergence_names_exchange_and_party(self, poison: float) -> None:
        holder = make_holder()
        holder.exchange = 41
        before = bits(holder.fusion)
        broken = embeddings()
        broken["shop"][2, 1] = poison
        broken["shop"][0] = -poison if poison == math.inf else 0.0
        with pytest.raises(Diverged, match=says("exchange 42", "'shop'")) as caught:
            holder.learn(broken, FIRST)
        assert (caught.value.exchange, caught.value.party) == (42, "shop")
        assert bits(holder.fusion) == before

    def test_divergence_of_the_fusion_names_the_label_holder(self) -> None:
        holder = make_holder()
        holder.exchange = 7
        with torch.no_grad():
            holder.fusion.head[0].weight.fill_(math.nan)
        with pytest.raises(Diverged, match=says("exchange 8", "nan", "'clinic'")) as caught:
            holder.learn(embeddings(), FIRST)
        assert (caught.value.exchange, caught.value.party) == (8, "clinic")

    @pytest.mark.parametrize("dropout", [0.0, 0.5])
    def test_restored_holder_continues_to_the_bit(self, dropout: float) -> None:
        whole, begun, resumed = (make_holder(dropout) for _ in range(3))
        for number in range(5):
            whole.learn(embeddings(number), Batch("train", number))
        for number in range(3):
            begun.learn(embeddings(number), Batch("train", number))
        begun.memory.recall(Delays).by_party = {"bank": 2}

        resumed.restore(copy.deepcopy(begun.state()))
        for number in range(3, 5):
            resumed.learn(embeddings(number), Batch("train", number))

        assert bits(resumed.fusion) == bits(whole.fusion)
        assert resumed.last_loss == whole.last_loss
        assert resumed.memory.recall(Delays) == Delays(by_party={"bank": 2})


def test_what_a_party_draws_of_its_own_is_fixed_by_seed_and_encodings() -> None:
    def drawn(party: SplitParty) -> list[float]:
        with party.own_randomness():
            return torch.rand(3).tolist()

    party = make_party(seed=7)
    with drawing_from(derive_seed(derive_seed(7, "party", "bank"), "own", 0)):
        assert drawn(party) == torch.rand(3).tolist()
    party.encode(FIRST)
    with drawing_from(derive_seed(derive_seed(7, "party", "bank"), "own", 1)):
        assert drawn(party) == torch.rand(3).tolist()
