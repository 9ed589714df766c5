"""The baselines for missing blocks against networks written out with plain autograd, for samples
that are at some parties only; and what they answer where a block is missing."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from colonnade.core.errors import ConfigError, DataError
from colonnade.core.federation import Federation, LoopState
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, Method
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.presence import Observed
from colonnade.methods.combinatorial import Combinatorial
from colonnade.methods.ensemble import Ensemble
from colonnade.methods.local import Local
from colonnade.methods.plug import Plug
from colonnade.methods.splitnn import SplitNN
from colonnade.methods.standard import Standard
from colonnade.methods.vfedtrans import VFedTrans, VFedTransParty
from colonnade.parts.guessing import guessed, voted
from colonnade.parts.orthogonal import orthogonal
from colonnade.parts.party_sets import members, number_of, subsets
from federations import FABRICS, assert_bitwise_equal, make_federation, mlp, train, weights
from messages import says

NAMES = ("bank", "holder", "shop")
LR = 0.2
NUM_EXCHANGES = 9


def table(num_samples: int, seed: int, missing: float = 0.4) -> Tensor:
    """Who has which sample; everybody has some, and every sample is somewhere."""
    generator = torch.Generator().manual_seed(seed)
    here = torch.rand(num_samples, len(NAMES), generator=generator) >= missing
    here[:4] = True
    here[~here.any(dim=1), 0] = True
    return here


def build(method: Method, **changes: Any) -> Federation:
    return make_federation(
        **{
            "names": NAMES,
            "method": method,
            "kind": "multiclass",
            "combine": "mean",
            "dtype": torch.float64,
            "num_samples": 30,
            "num_validation": 20,
            "batch_size": 4,
            "encoder": mlp(3, (4,), activation="tanh"),
            "optimizer": OptimizerSpec(name="sgd", lr=LR),
            "presence": {"train": table(30, 1), "validation": table(20, 2)},
        }
        | changes
    )


class Plain:
    """The same networks and rows in one place, with a step of plain SGD."""

    def __init__(self, federation: Federation) -> None:
        self.holder = federation.holder
        self.parties = federation.fabric.parties
        self.models = {name: copy.deepcopy(party.model) for name, party in self.parties.items()}
        self.fusion = copy.deepcopy(federation.holder.fusion)

    def observed(self, number: int) -> Observed:
        return self.holder.observed(Batch("train", number), NAMES)

    def rows(self, name: str, number: int) -> Tensor:
        return self.parties[name].rows(Batch("train", number))

    def descend(self, outputs: Tensor, number: int, places: Tensor | None = None) -> None:
        """A step on some samples of a batch, each of which counts 1 / (samples of the batch)."""
        targets = self.holder.targets(Batch("train", number))
        chosen = targets if places is None else targets[places]
        loss = nn.functional.cross_entropy(outputs, chosen, reduction="sum") / len(targets)
        networks = [*self.models.values(), self.fusion]
        parameters = [item for network in networks for item in network.parameters()]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter -= LR * gradient

    def assert_same(self, federation: Federation) -> None:
        found = weights(federation)
        expected = {**self.models, "fusion": self.fusion}
        for owner, network in expected.items():
            for key, value in network.state_dict().items():
                if f"{owner}.{key}" in found:
                    torch.testing.assert_close(
                        found[f"{owner}.{key}"], value, atol=1e-12, rtol=1e-10
                    )


@pytest.mark.parametrize("fabric", FABRICS)
class TestTrainingAgainstPlainAutograd:
    def test_local_models_are_trained_each_by_itself(self, fabric: str) -> None:
        federation = build(Local(), fabric=fabric)
        plain = Plain(federation)
        train(federation, NUM_EXCHANGES)
        for number in range(NUM_EXCHANGES):
            for name, places in plain.observed(number).rows.items():
                model = plain.models[name]
                outputs = model["head"](model["encoder"](plain.rows(name, number)))
                plain.descend(outputs, number, places)
        plain.assert_same(federation)

    def test_ensemble_trains_what_local_trains_bit_for_bit(self, fabric: str) -> None:
        local, ensemble = build(Local(), fabric=fabric), build(Ensemble(), fabric=fabric)
        train(local, NUM_EXCHANGES)
        train(ensemble, NUM_EXCHANGES)
        assert_bitwise_equal(weights(local), weights(ensemble))

    @pytest.mark.parametrize("combine", ["mean", "concat"])
    def test_standard_learns_from_complete_samples_alone(self, combine: str, fabric: str) -> None:
        federation = build(Standard(), fabric=fabric, combine=combine)
        plain = Plain(federation)
        train(federation, NUM_EXCHANGES)
        complete = [n for n in range(NUM_EXCHANGES) if plain.observed(n).is_complete]
        assert 0 < len(complete) < NUM_EXCHANGES
        # No complete sample is in a batch with others.
        mixed = [n for n in range(NUM_EXCHANGES) if not plain.observed(n).is_complete]
        assert all(int(plain.observed(n).counts.max()) < len(NAMES) for n in mixed)
        for number in complete:
            embeddings = {
                name: plain.models[name]["encoder"](plain.rows(name, number)) for name in NAMES
            }
            plain.descend(plain.fusion(embeddings), number)
        plain.assert_same(federation)

    @pytest.mark.parametrize("combine", ["mean", "concat"])
    def test_combinatorial_trains_every_subset_by_itself(self, combine: str, fabric: str) -> None:
        federation = build(Combinatorial(), fabric=fabric, combine=combine)
        plain = Plain(federation)
        train(federation, NUM_EXCHANGES)
        for number in range(NUM_EXCHANGES):
            here = plain.observed(number)
            assert here.table is not None
            for size in range(1, len(NAMES) + 1):
                for some in combinations(NAMES, size):
                    columns = [NAMES.index(name) for name in some]
                    places = here.table[:, columns].all(dim=1).nonzero()[:, 0]
                    if not len(places):
                        continue
                    chosen = str(number_of(some, NAMES))
                    embeddings = {
                        name: plain.models[name]["encoder"].sets[chosen](
                            here.picked(name, plain.rows(name, number), places)
                        )
                        for name in some
                    }
                    plain.descend(plain.fusion.sets[chosen](embeddings), number, places)
        plain.assert_same(federation)

    @pytest.mark.parametrize("combine", ["mean", "concat"])
    def test_plug_puts_zeros_for_whoever_is_missing(self, combine: str, fabric: str) -> None:
        federation = build(Plug(dropout=0.0), fabric=fabric, combine=combine)
        plain = Plain(federation)
        train(federation, NUM_EXCHANGES)
        for number in range(NUM_EXCHANGES):
            here = plain.observed(number)
            embeddings = {
                name: torch.zeros(here.num_samples, 3, dtype=torch.float64) for name in NAMES
            }
            for name, places in here.rows.items():
                own = plain.models[name]["encoder"](plain.rows(name, number))
                embeddings[name] = embeddings[name].index_copy(0, places, own)
            plain.descend(plain.fusion(embeddings), number)
        plain.assert_same(federation)

    def test_plug_learns_nothing_from_a_sample_whose_parties_all_dropped_out(
        self, fabric: str
    ) -> None:
        federation = build(Plug(dropout=0.6), fabric=fabric)
        plain = Plain(federation)
        num_without = 0
        for number in range(NUM_EXCHANGES):
            federation.holder.exchange = number
            staying = federation.method._staying(federation.holder, plain.observed(number).names)
            here = plain.observed(number).among(staying)
            places = here.counts.nonzero()[:, 0]
            num_without += here.num_samples - len(places)
            embeddings = {
                name: torch.zeros(here.num_samples, 3, dtype=torch.float64) for name in NAMES
            }
            for name, rows in here.rows.items():
                own = plain.models[name]["encoder"](plain.rows(name, number))
                embeddings[name] = embeddings[name].index_copy(0, rows, own)
            some = {name: item[places] for name, item in embeddings.items()}
            plain.descend(plain.fusion(some), number, places)
        train(federation, NUM_EXCHANGES)
        assert num_without
        plain.assert_same(federation)


class TestVFedTrans:
    def test_joint_representation_is_that_of_all_columns_in_one_place(self) -> None:
        federation = build(VFedTrans(num_components=4), columns={"bank": 2, "holder": 3, "shop": 4})
        kept: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}
        for name, party in federation.fabric.parties.items():
            party.distil = lambda *_, p=party, n=name: kept.__setitem__(n, p._joint)
        verbs = VFedTransParty.verbs
        quiet = {**verbs, "distil": replace(verbs["distil"], function=lambda p, *_: p.distil())}
        for party in federation.fabric.parties.values():
            party._answering["distil"] = (None, quiet["distil"])
        federation.fabric.run(federation.method.begin(federation.holder, federation.parties))

        numbers = sorted(kept["bank"])
        joint = shared_rows(federation, numbers)
        assert len(joint) == int(table(30, 1).all(dim=1).sum())
        expected, _, _ = torch.linalg.svd(joint, full_matrices=False)
        for name in NAMES:
            found = torch.cat([kept[name][n][1] for n in numbers])
            own = torch.cat([kept[name][n][0] for n in numbers])
            features = federation.fabric.parties[name].parts["train"].features[own]
            assert torch.equal(features, shared_rows(federation, numbers, (name,)))
            # The same subspaces, one by one: a singular vector's sign is free.
            overlaps = (found.T @ expected[:, :4]).abs() / len(joint) ** 0.5
            torch.testing.assert_close(overlaps, torch.eye(4, dtype=torch.float64))

    def test_codes_come_near_the_joint_representation(self) -> None:
        far, near = (
            build(VFedTrans(num_components=2, distil_epochs=60, distil_rate=0.01, pull=pull))
            for pull in (1e-9, 10.0)
        )
        gaps = []
        for federation in (far, near):
            federation.fabric.run(federation.method.begin(federation.holder, federation.parties))
            # Whether what bank knows of a sample says what all columns together say of it.
            numbers = range(federation.holder.parts["train"].plan.num_batches)
            joint = shared_rows(federation, numbers)
            vectors, _, _ = torch.linalg.svd(joint, full_matrices=False)
            bank = federation.fabric.parties["bank"]
            with torch.no_grad():
                codes = bank.encoder(shared_rows(federation, numbers, ("bank",)))[:, :2]
            wanted = vectors[:, :2] * len(joint) ** 0.5
            signs = torch.sign((codes * wanted).sum(0))
            gaps.append(((codes - signs * wanted) ** 2).mean().item())
        assert gaps[1] < 0.8 * gaps[0]

    def test_from_the_same_start_the_last_stage_is_local(self) -> None:
        federation, local = build(VFedTrans()), build(Local())
        federation.fabric.run(federation.method.begin(federation.holder, federation.parties))
        for name, party in local.fabric.parties.items():
            party.model.load_state_dict(federation.fabric.parties[name].model.state_dict())
        train(federation, 7, LoopState(exchange=1))
        train(local, 7, LoopState(exchange=1))
        assert_bitwise_equal(weights(federation), weights(local))

    def test_nothing_to_decompose_is_refused(self) -> None:
        nobody = table(30, 1)
        nobody[nobody.all(dim=1), 0] = False
        with pytest.raises(
            DataError, match=says("training sample", "every party", "'vfedtrans'", "laser", "local")
        ):
            train(build(VFedTrans(), presence={"train": nobody}), 1)

    @pytest.mark.parametrize("size", [1, 2, 7])
    def test_masks_are_orthogonal_and_repeat(self, size: int) -> None:
        found = orthogonal(size, 5)
        torch.testing.assert_close(found @ found.T, torch.eye(size, dtype=torch.float64))
        assert not torch.equal(found, orthogonal(size, 6)) or size == 1


class TestSpecialCases:
    @pytest.mark.parametrize("method", [Standard(), Plug(dropout=0.0)])
    @pytest.mark.parametrize("combine", ["mean", "concat"])
    def test_with_every_block_there_it_is_splitnn(self, method: Method, combine: str) -> None:
        complete = {"presence": {}, "combine": combine}
        federation, splitnn = build(method, **complete), build(SplitNN(), **complete)
        train(federation, 6)
        train(splitnn, 6)
        assert_bitwise_equal(weights(federation), weights(splitnn))
        assert torch.equal(
            federation.predictions(
                "validation", federation.holder.parts["validation"].plan
            ).outputs,
            splitnn.predictions("validation", splitnn.holder.parts["validation"].plan).outputs,
        )

    def test_parties_drop_out_by_lot_but_not_the_label_holder(self) -> None:
        method = Plug(dropout=0.6)
        federation = build(method, presence={})
        asked: list[tuple[str, ...]] = []
        for exchange in range(200):
            federation.holder.exchange = exchange
            asked.append(method._staying(federation.holder, NAMES))
        assert all("holder" in item for item in asked)
        share = sum("shop" in item for item in asked) / len(asked)
        assert 0.3 < share < 0.5
        assert all(method._staying(federation.holder, ("shop",)) == ("shop",) for _ in range(9))

    def test_nobody_is_exempt_if_the_settings_say_so(self) -> None:
        fair, usual = Plug(dropout=0.6, exempt="nobody"), Plug(dropout=0.6)
        federation = build(fair, presence={})
        shares = dict.fromkeys(NAMES, 0)
        for exchange in range(300):
            federation.holder.exchange = exchange
            staying = fair._staying(federation.holder, NAMES)
            assert staying
            for name in staying:
                shares[name] += 1
            # The same lots: only the label holder's counts now.
            with_holder = {*staying, "holder"} if staying != NAMES else {*NAMES}
            if staying != NAMES:
                assert {*usual._staying(federation.holder, NAMES)} == with_holder
        assert all(0.3 < count / 300 < 0.7 for count in shares.values())

    def test_more_than_ten_parties_are_refused(self) -> None:
        names = tuple(f"p{number:02d}" for number in range(11))
        with pytest.raises(ConfigError, match=says("method.name", "'combinatorial'", 2047, 11, 10)):
            Combinatorial().predictor_sets(names)
        assert len(Combinatorial().predictor_sets(names[:10])) == 1023

    def test_standard_refuses_to_learn_from_nothing(self) -> None:
        nobody = table(30, 1)
        nobody[nobody.all(dim=1), 0] = False
        federation = build(Standard(), presence={"train": nobody})
        with pytest.raises(
            DataError, match=says("training sample", "every party", "'standard'", "laser", "local")
        ):
            train(federation, 1)

    @pytest.mark.parametrize("dropout", [-0.1, 1.0])
    def test_dropout_is_a_probability(self, dropout: float) -> None:
        with pytest.raises(ConfigError, match="dropout"):
            Plug(dropout=dropout)


def shared_rows(
    federation: Federation, numbers: Iterable[int], names: tuple[str, ...] = NAMES
) -> Tensor:
    """The columns of these parties, of the samples that everybody has, batch by batch."""
    found = []
    for number in numbers:
        batch = Batch("train", number)
        here = federation.holder.observed(batch, NAMES)
        places = (here.counts == len(NAMES)).nonzero()[:, 0]
        rows = [
            here.picked(name, federation.fabric.parties[name].rows(batch), places) for name in names
        ]
        found.append(torch.cat(rows, 1))
    return torch.cat(found)


def test_sets_by_number() -> None:
    assert number_of(("holder", "bank"), NAMES) == 3
    assert members(5, NAMES) == ("bank", "shop")
    assert subsets(5) == [1, 4, 5]
    assert subsets(7) == [1, 2, 3, 4, 5, 6, 7]


class TestAnswers:
    def batches(self, federation: Federation) -> list[tuple[Batch, Observed]]:
        plan = federation.holder.parts["validation"].plan
        batches = [Batch("validation", number) for number in range(plan.num_batches)]
        found = [(batch, federation.holder.observed(batch, NAMES)) for batch in batches]
        sets = [parties for _, here in found for parties, _ in here.sets()]
        assert NAMES in sets
        assert any(len(parties) == 1 for parties in sets)
        return found

    def each(self, federation: Federation, batch: Batch) -> dict[str, Tensor]:
        return dict(self.answer(federation, batch, each=True).each)

    def answer(self, federation: Federation, batch: Batch, *, each: bool) -> Answer:
        method = federation.method
        found = method.predict(federation.holder, federation.parties, batch, each=each)
        return federation.fabric.run(found)

    def joint(self, federation: Federation, batch: Batch) -> Tensor:
        return self.answer(federation, batch, each=False).outputs

    @pytest.mark.parametrize("method", [Local(), Ensemble()])
    def test_whoever_has_the_samples_answers_for_itself(self, method: Method) -> None:
        federation = build(method)
        for batch, here in self.batches(federation):
            found = self.each(federation, batch)
            assert tuple(found) == here.names
            for name, outputs in found.items():
                model = federation.fabric.parties[name].model
                rows = federation.fabric.parties[name].rows(batch)
                torch.testing.assert_close(outputs, model["head"](model["encoder"](rows)))

    def test_local_answers_with_the_label_holder_or_the_first(self) -> None:
        federation = build(Local())
        for batch, here in self.batches(federation):
            joint, each = self.joint(federation, batch), self.each(federation, batch)
            for parties, places in here.sets():
                who = "holder" if "holder" in parties else parties[0]
                assert torch.equal(joint[places], here.picked(who, each[who], places))

    def test_local_asks_nobody_in_vain(self) -> None:
        """Asked for one answer, a party other than the label holder sends what is used only."""
        federation = build(Local())
        sent = dict.fromkeys(NAMES, 0)
        ask = federation.parties.ask

        async def counting(verb: str, *arguments: Any, among: Any) -> dict[str, Any]:
            found = await ask(verb, *arguments, among=among)
            for name, item in found.items():
                sent[name] += len(item)
            return found

        federation.parties.ask = counting  # type: ignore[method-assign]
        for batch, _ in self.batches(federation):
            self.answer(federation, batch, each=False)
        assert sum(sent.values()) == 20

    def test_majority_decides_and_a_tie_is_drawn_the_same_again(self) -> None:
        federation = build(Ensemble())
        for batch, here in self.batches(federation):
            each = self.each(federation, batch)
            decided = self.joint(federation, batch).argmax(1)
            for parties, places in here.sets():
                votes = torch.stack(
                    [here.picked(name, each[name], places).argmax(1) for name in parties]
                )
                for column, choice in enumerate(decided[places].tolist()):
                    counts = torch.bincount(votes[:, column], minlength=3)
                    assert counts[choice] == counts.max()
            assert torch.equal(self.joint(federation, batch), self.joint(federation, batch))

    @pytest.mark.parametrize("kind", ["binary", "multiclass"])
    def test_ties_fall_either_way(self, kind: str) -> None:
        federation = build(Ensemble(), kind=kind)
        holder = federation.holder
        if kind == "binary":
            split = {"a": torch.ones(400, 1), "b": -torch.ones(400, 1)}
            two, three = (Observed(names=tuple(names), num_samples=400) for names in ("ab", "abc"))
            for_second = (voted(holder, Batch("validation", 0), split, two) > 0).double().mean()
            clear = {**split, "c": torch.ones(400, 1)}
            assert bool((voted(holder, Batch("validation", 0), clear, three) > 0).all())
        else:
            split = {"a": torch.eye(3)[[0] * 400], "b": torch.eye(3)[[1] * 400]}
            two = Observed(names=("a", "b"), num_samples=400)
            decided = voted(holder, Batch("validation", 0), split, two).argmax(1)
            assert set(decided.tolist()) == {0, 1}
            for_second = (decided == 1).double().mean()
        assert 0.4 < for_second < 0.6

    def test_a_regression_votes_by_the_mean(self) -> None:
        federation = build(Ensemble(), kind="regression")
        outputs = {"a": torch.tensor([[1.0]]), "b": torch.tensor([[4.0]])}
        here = Observed(names=("a", "b"), num_samples=1)
        assert voted(federation.holder, Batch("validation", 0), outputs, here).item() == 2.5
        partly = Observed.of(("a", "b"), torch.tensor([[True, True], [False, True]]))
        outputs = {"a": torch.tensor([[1.0]]), "b": torch.tensor([[4.0], [7.0]])}
        found = voted(federation.holder, Batch("validation", 0), outputs, partly)
        assert found[:, 0].tolist() == [2.5, 7.0]

    def test_standard_guesses_where_a_block_is_missing(self) -> None:
        federation = build(Standard())
        for batch, here in self.batches(federation):
            found = self.joint(federation, batch)
            rows = {name: federation.fabric.parties[name].rows(batch) for name in here.names}
            if here.is_complete:
                embeddings = {
                    name: federation.fabric.parties[name].encoder(item)
                    for name, item in rows.items()
                }
                torch.testing.assert_close(found, federation.holder.fusion(embeddings))
            else:
                assert torch.equal(found.sort(dim=1).values[:, -1], torch.ones(len(found)).double())
                assert torch.equal(found, self.joint(federation, batch))

    @pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
    def test_guesses_are_of_every_class_alike(self, kind: str) -> None:
        holder = build(Standard(), kind=kind).holder
        found = guessed(holder, Batch("validation", 1), 3000)
        if kind == "regression":
            assert abs(found.mean()) < 0.1
            assert abs(found.std() - 1.0) < 0.1
        else:
            values, counts = torch.unique(
                found.argmax(1) if kind == "multiclass" else found[:, 0] > 0, return_counts=True
            )
            assert len(values) == len(holder.task.classes)
            assert counts.min() > 0.9 * 3000 / len(values)

    def test_predictor_of_exactly_the_observed_set_answers(self) -> None:
        federation = build(Combinatorial())
        for batch, here in self.batches(federation):
            joint = self.joint(federation, batch)
            for parties, places in here.sets():
                chosen = str(number_of(parties, NAMES))
                embeddings = {
                    name: federation.fabric.parties[name].encoder.sets[chosen](
                        here.picked(name, federation.fabric.parties[name].rows(batch), places)
                    )
                    for name in parties
                }
                expected = federation.holder.fusion.sets[chosen](embeddings)
                torch.testing.assert_close(joint[places], expected)
