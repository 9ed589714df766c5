"""EASTER and AggVFL against plain autograd: one graph, the others' embeddings held constant."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from colonnade.core.errors import ConfigError, Diverged, MissingBlock, NoAnswer, ProtocolError
from colonnade.core.federation import Federation, LoopState
from colonnade.core.messages import Batch
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.parties import Parties, Patience
from colonnade.data.datasets import load_dataset
from colonnade.methods.aggvfl import AggVFL
from colonnade.methods.alone import Alone
from colonnade.methods.easter import Easter
from colonnade.quality.evaluation import evaluate
from colonnade.run.engine import train as train_run
from colonnade.run.result import Result
from colonnade.run.spec import parse_spec
from federations import (
    ENCODERS,
    FABRICS,
    KIND_OF_LOSS,
    assert_bitwise_equal,
    make_federation,
    mlp,
    train,
    weights,
)
from messages import says

NAMES = ["bank", "holder", "shop", "telco"]
OPTIMIZERS = {
    "bank": (OptimizerSpec(name="adam", lr=0.01), torch.optim.Adam, {"lr": 0.01}),
    "holder": (OptimizerSpec(name="sgd", lr=0.1), torch.optim.SGD, {"lr": 0.1}),
    "shop": (OptimizerSpec(name="adagrad", lr=0.05), torch.optim.Adagrad, {"lr": 0.05}),
    "telco": (
        OptimizerSpec(name="sgd", lr=0.05, options={"momentum": 0.9}),
        torch.optim.SGD,
        {"lr": 0.05, "momentum": 0.9},
    ),
}
LOSSES = {
    "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
    "cross_entropy": functional.cross_entropy,
    "squared_error": functional.mse_loss,
}
ENCODER_OF = {
    "bank": mlp(4, (6,), activation="tanh"),
    "holder": mlp(4, (), activation="gelu"),
    "shop": mlp(4, (3, 5)),
    "telco": mlp(4, (7,), activate_output=False),
}


def build(method: Easter | AggVFL, **changes: object) -> Federation:
    names = changes.get("names", NAMES)
    return make_federation(
        **{
            "names": names,
            "method": method,
            "dtype": torch.float64,
            "columns": {name: 2 + place for place, name in enumerate(names)},
            "encoder": ENCODER_OF,
            "optimizer": {name: item[0] for name, item in OPTIMIZERS.items()},
            "num_samples": 21,
            "batch_size": 6,
            "seed": 3,
        }
        | changes
    )


class Copies:
    """The same networks under torch's own optimizers, with nothing between them."""

    def __init__(self, federation: Federation) -> None:
        parties = federation.fabric.parties
        self.names = sorted(parties)
        self.encoders = {name: copy.deepcopy(parties[name].encoder) for name in self.names}
        self.heads = {name: copy.deepcopy(parties[name].model["head"]) for name in self.names}
        self.optimizers = {}
        for name in self.names:
            _, kind, options = OPTIMIZERS[name]
            own = [*self.encoders[name].parameters(), *self.heads[name].parameters()]
            self.optimizers[name] = kind(own, **options)

    def weights(self) -> dict[str, Tensor]:
        return {
            f"{name}.{part}.{key}": value
            for part, networks in {"encoder": self.encoders, "head": self.heads}.items()
            for name, network in networks.items()
            for key, value in network.state_dict().items()
        }


def blocks_of(federation: Federation, number: int) -> dict[str, Tensor]:
    parties = federation.fabric.parties
    return {name: party.rows(Batch("train", number)) for name, party in parties.items()}


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=1e-10, rtol=0.0, msg=key)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("loss_name", LOSSES)
def test_each_party_follows_autograd_with_the_others_held_constant(
    loss_name: str, fabric: str
) -> None:
    kind = KIND_OF_LOSS[loss_name]
    federation = build(Easter(), fabric=fabric, kind=kind, loss=loss_name)
    plain = Copies(federation)
    state = LoopState()
    for number in range(8):
        blocks = blocks_of(federation, number)
        targets = federation.holder.targets(Batch("train", number))
        sent = {name: plain.encoders[name](blocks[name]).detach() for name in plain.names}
        losses = []
        for name in plain.names:
            # One graph for each party: its own embedding live, the others' as they were sent.
            used = {**sent, name: plain.encoders[name](blocks[name])}
            mean = torch.stack([used[other] for other in plain.names]).mean(dim=0)
            losses.append(LOSSES[loss_name](plain.heads[name](mean), targets))
        for name, loss in zip(plain.names, losses, strict=True):
            plain.optimizers[name].zero_grad()
            loss.backward()
            plain.optimizers[name].step()
        (event,) = train(federation, number + 1, state)
        state.stopped_by = ""

        assert event.loss == pytest.approx(sum(item.item() for item in losses) / 4, abs=1e-10)
        assert_close(weights(federation), plain.weights())


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("aggregate", ["mean", "sum"])
@pytest.mark.parametrize("loss_name", LOSSES)
def test_aggregated_predictions_follow_autograd_on_the_joint_network(
    loss_name: str, aggregate: str, fabric: str
) -> None:
    kind = KIND_OF_LOSS[loss_name]
    federation = build(AggVFL(aggregate=aggregate), fabric=fabric, kind=kind, loss=loss_name)
    plain = Copies(federation)
    state = LoopState()
    for number in range(8):
        blocks = blocks_of(federation, number)
        targets = federation.holder.targets(Batch("train", number))
        outputs = torch.stack(
            [plain.heads[name](plain.encoders[name](blocks[name])) for name in plain.names]
        )
        joint = outputs.mean(dim=0) if aggregate == "mean" else outputs.sum(dim=0)
        loss = LOSSES[loss_name](joint, targets)
        for name in plain.names:
            plain.optimizers[name].zero_grad()
        loss.backward()
        for name in plain.names:
            plain.optimizers[name].step()
        (event,) = train(federation, number + 1, state)
        state.stopped_by = ""

        assert event.loss == pytest.approx(loss.item(), abs=1e-10)
        assert_close(weights(federation), plain.weights())


@settings(max_examples=25)
@given(
    size=st.integers(1, 5),
    hidden=st.lists(st.integers(1, 5), max_size=2).map(tuple),
    num_parties=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
def test_gradient_of_any_shape_is_that_of_one_graph(
    size: int, hidden: tuple[int, ...], num_parties: int, seed: int
) -> None:
    """One exchange with plain gradient descent: the step itself is the gradient."""
    federation = make_federation(
        num_parties,
        method=Easter(),
        dtype=torch.float64,
        encoder=mlp(size, hidden, activation="tanh"),
        fusion_hidden=hidden,
        optimizer=OptimizerSpec(name="sgd", lr=1.0),
        seed=seed,
    )
    parties = federation.fabric.parties
    before = {name: copy.deepcopy(party.model) for name, party in parties.items()}
    blocks = blocks_of(federation, 0)
    targets = federation.holder.targets(Batch("train", 0))
    train(federation, 1)
    for name, model in before.items():
        embeddings = {other: before[other]["encoder"](blocks[other]) for other in before}
        fixed = sum(item.detach() for other, item in embeddings.items() if other != name)
        mean = (embeddings[name] + fixed) / num_parties
        loss = functional.binary_cross_entropy_with_logits(model["head"](mean), targets)
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        for old, new, gradient in zip(
            model.parameters(), parties[name].model.parameters(), gradients, strict=True
        ):
            torch.testing.assert_close(old - new, gradient, atol=1e-10, rtol=0.0)


class TestSpecialCases:
    def test_one_party_trains_as_if_alone(self) -> None:
        """With C = 1 the mean is the own embedding: ordinary training, head and encoder at once."""
        federation = build(Easter(), names=["holder"])
        alone = build(Alone(), names=["holder"])
        network = federation.fabric.parties["holder"].model
        alone.holder.fusion.head.load_state_dict(network["head"].state_dict())
        train(federation, 9)
        train(alone, 9)
        expected = {
            key.replace("fusion.head.", "holder.head."): value
            for key, value in weights(alone).items()
        }
        assert_close(weights(federation), expected)

    def test_one_party_aggregated_is_one_party_alone(self) -> None:
        federation = build(AggVFL(), names=["holder"])
        easter = build(Easter(), names=["holder"])
        train(federation, 9)
        train(easter, 9)
        assert_close(weights(federation), weights(easter))

    def test_factor_of_the_own_share_is_one_over_the_number_of_parties(self) -> None:
        """Linear all the way: the encoder's gradient has the factor 1/C, the head's does not."""
        linear = mlp(2, (), activation="identity")
        federation = make_federation(
            2,
            method=Easter(),
            kind="regression",
            dtype=torch.float64,
            encoder=linear,
            fusion_hidden=(),
            optimizer=OptimizerSpec(name="sgd", lr=1.0),
        )
        parties = federation.fabric.parties
        head = parties["p0"].model["head"].output.weight.detach().clone()
        encoder = parties["p0"].encoder.output
        bias, weight = encoder.bias.detach().clone(), encoder.weight.detach().clone()
        rows, targets = blocks_of(federation, 0), federation.holder.targets(Batch("train", 0))
        with torch.no_grad():
            mean = sum(parties[name].encoder(rows[name]) for name in parties) / 2
            error = parties["p0"].model["head"](mean) - targets
        train(federation, 1)
        slope = (2 / error.numel()) * error @ head / 2
        torch.testing.assert_close(bias - encoder.bias, slope.sum(dim=0), atol=1e-10, rtol=0.0)
        torch.testing.assert_close(
            weight - encoder.weight, slope.T @ rows["p0"], atol=1e-10, rtol=0.0
        )


class TestPredictions:
    def test_every_party_has_a_model_of_its_own(self) -> None:
        federation = build(Easter(), num_validation=10)
        train(federation, 6)
        plan = federation.holder.parts["validation"].plan
        found = federation.predictions("validation", plan, each=True).each
        plain = Copies(federation)
        parties = federation.fabric.parties
        features = {name: parties[name].parts["validation"].features for name in plain.names}
        mean = torch.stack([plain.encoders[name](features[name]) for name in plain.names]).mean(
            dim=0
        )
        assert list(found) == NAMES
        for name in NAMES:
            positions, outputs = found[name]
            assert torch.equal(positions, torch.arange(10))
            torch.testing.assert_close(outputs, plain.heads[name](mean), atol=1e-10, rtol=0.0)
        assert torch.equal(
            federation.predictions("validation", plan).outputs, found["holder"].outputs
        )
        measured = evaluate(federation, "validation")
        assert measured["accuracy@holder"] == measured["accuracy"]
        each = [measured[f"accuracy@{name}"] for name in NAMES]
        assert measured["mean_accuracy"] == pytest.approx(sum(each) / 4)

    def test_label_holder_without_a_block_takes_the_mean_of_all(self) -> None:
        federation = build(Easter(), names=["bank", "shop"], num_validation=10)
        train(federation, 3)
        plan = federation.holder.parts["validation"].plan
        found = federation.predictions("validation", plan, each=True).each
        torch.testing.assert_close(
            federation.predictions("validation", plan).outputs,
            (found["bank"].outputs + found["shop"].outputs) / 2,
        )

    def test_one_model_has_no_quality_of_single_parties(self) -> None:
        for federation in (build(AggVFL(), num_validation=10), build(Alone(), num_validation=10)):
            train(federation, 2)
            assert not [key for key in evaluate(federation, "validation") if "@" in key]


class TestBeforeTheStart:
    def test_embeddings_of_different_sizes_are_refused(self) -> None:
        name = wine_parties()[0]
        settings = {
            "method": "easter",
            "data": {"dataset": "wine"},
            "defaults": {"encoder": {"kind": "mlp", "embedding": 8}},
            "party": {name: {"encoder": {"kind": "mlp", "embedding": 9}}},
        }
        with pytest.raises(ConfigError, match=says("'easter'", f"{name} = 9")):
            train_run(parse_spec(settings))

    def test_heads_and_encoders_differ_by_party_and_are_kept_apart(self, tmp_path: Path) -> None:
        names = wine_parties()
        settings = {
            "method": "easter",
            "data": {"dataset": "wine"},
            "defaults": {"head": {"hidden": [7]}},
            "party": {
                names[0]: {"head": {"hidden": [3, 4], "activation": "tanh"}},
                names[1]: {
                    "encoder": {"kind": "mlp", "hidden": [9], "embedding": 32},
                    "optimizer": {"name": "adagrad", "lr": 0.05},
                },
            },
            "stop": {"epochs": 2},
        }
        result = train_run(parse_spec(settings), directory=tmp_path / "run")
        quality = result.summary["quality"]["test"]
        holder = result.summary["label_holder"]
        assert {f"accuracy@{name}" for name in names} <= quality.keys()
        assert quality[f"accuracy@{holder}"] == quality["accuracy"]
        heads = {
            name: [tuple(item.shape) for item in party.model["head"].parameters()]
            for name, party in result._federation.fabric.parties.items()
        }
        assert heads[names[0]] == [(3, 32), (3,), (4, 3), (4,), (3, 4), (3,)]
        assert heads[names[1]] == [(7, 32), (7,), (3, 7), (3,)]

        blocks = load_dataset("wine").blocks
        again = Result.load(tmp_path / "run")
        for name in names:
            ours, kept = (item.outputs(blocks, model=name) for item in (result, again))
            assert ours.equals(kept)
            assert ours.equals(result.outputs(blocks)) == (name == holder)
        with pytest.raises(ConfigError, match=says("model", "'nobody'", wine_parties())):
            result.predict(blocks, model="nobody")
        assert_bitwise_equal(weights(again._federation), weights(result._federation))
        for name in names:
            files = [*(tmp_path / "run" / "parties" / name).glob("*.safetensors")]
            assert files, name

    def test_other_methods_have_no_heads(self) -> None:
        result = train_run(parse_spec({"data": {"dataset": "wine"}, "stop": {"exchanges": 1}}))
        with pytest.raises(ConfigError, match=says("model", "'splitnn'")):
            result.predict_proba(load_dataset("wine").blocks, model=wine_parties()[0])
        for party in result._federation.fabric.parties.values():
            assert list(party.model) == ["encoder"]


def wine_parties() -> list[str]:
    return sorted(load_dataset("wine").blocks)


class TestWhatPartiesRefuse:
    def test_gradient_for_nothing_predicted(self) -> None:
        federation = build(Easter())
        train(federation, 1)
        gradient = torch.zeros(5, 1, dtype=torch.float64)
        party = federation.fabric.parties["bank"]
        with pytest.raises(ProtocolError, match=says("'bank'", "batch 0", "'train'")):
            party.descend(Batch("train", 0), gradient)
        mean = torch.zeros(5, 4, dtype=torch.float64)
        party.decide(Batch("train", 1), mean, 4)
        with pytest.raises(ProtocolError, match="batch 2"):
            party.descend(Batch("train", 2), gradient)

    def test_global_embedding_of_another_shape(self) -> None:
        party = build(Easter()).fabric.parties["bank"]
        for mean, count in ((torch.zeros(5, 3), 4), (torch.zeros(5, 4), 0)):
            with pytest.raises(ProtocolError, match=says("'bank'", "(5, 4)")):
                party.decide(Batch("train", 0), mean.double(), count)


@pytest.mark.parametrize("fabric", FABRICS)
class TestTotal:
    def test_sum_is_in_party_order_over_those_who_answered(self, fabric: str) -> None:
        federation = build(Easter(), fabric=fabric)
        parties = Parties(federation.fabric)
        batch = Batch("train", 0)
        answers = federation.fabric.run(parties.ask("infer", batch))
        total = federation.fabric.run(parties.total("infer", batch))
        assert total.names == tuple(NAMES)
        one, two, three, four = answers.values()
        assert torch.equal(total.value, one + two + three + four)
        some = federation.fabric.run(parties.total("infer", batch, among=["telco", "bank"]))
        assert some.names == ("bank", "telco")
        assert torch.equal(some.value, one + four)

    def test_nobody_answered_is_an_error_not_a_zero(self, fabric: str) -> None:
        federation = build(Easter(), fabric=fabric)
        parties = Parties(federation.fabric, Patience(timeout=5, then="continue"))
        late = federation.fabric.now() - 1
        with pytest.raises(
            NoAnswer, match=says("'bank'", "'holder'", "'shop'", "'telco'", "'infer'")
        ):
            federation.fabric.run(parties.total("infer", Batch("train", 0), deadline=late))

    def test_shapes_that_differ_have_no_sum(self, fabric: str) -> None:
        sizes = {name: mlp(3 + place) for place, name in enumerate(NAMES)}
        federation = build(AggVFL(), fabric=fabric, encoder=sizes)
        with pytest.raises(ProtocolError, match=says("bank (5, 3)", "holder (5, 4)")):
            federation.fabric.run(Parties(federation.fabric).total("infer", Batch("train", 0)))

    def test_numbers_too_large_to_be_summed_name_the_largest(self, fabric: str) -> None:
        federation = build(Easter(), fabric=fabric)
        for name, factor in {"shop": 1.0, "telco": 0.9}.items():
            output = federation.fabric.parties[name].encoder.output
            with torch.no_grad():
                output.weight.zero_()
                output.bias.fill_(factor * torch.finfo(torch.float64).max)
        with pytest.raises(Diverged, match=says("exchange 1", "'shop'", "'embed'")) as caught:
            train(federation, 1)
        assert caught.value.party == "shop"


def test_prediction_that_is_no_number_is_named() -> None:
    federation = build(Easter())
    with torch.no_grad():
        federation.fabric.parties["shop"].model["head"].output.bias.fill_(float("nan"))
    with pytest.raises(Diverged, match=says("exchange 1", "'shop'", "prediction")) as caught:
        train(federation, 1)
    assert caught.value.party == "shop"


def test_exchange_without_any_prediction_says_so() -> None:
    with pytest.raises(MissingBlock, match=says("exchange 1", "prediction", "patience.timeout")):
        build(Easter()).holder.judge({}, Batch("train", 0))


def test_prediction_too_large_for_any_loss_is_its_party_s() -> None:
    federation = build(Easter(), kind="regression")
    with torch.no_grad():
        federation.fabric.parties["shop"].model["head"].output.bias.fill_(1e200)
    with pytest.raises(Diverged, match=says("exchange 1", "'shop'", "1e+200", "prediction")):
        train(federation, 1)


def test_four_messages_each_step_and_what_is_in_them() -> None:
    """Up: E_k and R_k. Down: the batch twice, E, C and dL_k/dR_k; nothing crosses at the holder."""
    federation = build(Easter(), batch_size=7)
    train(federation, 3)
    embedding, prediction, number = 7 * 4 * 8, 7 * 1 * 8, 8
    for name, traffic in federation.fabric.meter.parties.items():
        away = name != "holder"
        assert traffic.calls == 9
        assert traffic.bytes_up == away * 3 * (embedding + prediction)
        assert traffic.bytes_down == away * 3 * (3 * number + embedding + number + prediction)


@pytest.mark.parametrize("method", [Easter(), AggVFL()])
def test_dropout_in_the_head_draws_from_the_party_alone(method: Easter | AggVFL) -> None:
    def trained(seed: int) -> dict[str, Tensor]:
        federation = build(method, fusion_dropout=0.5, encoder=ENCODERS["both"])
        torch.manual_seed(seed)
        train(federation, 5)
        return weights(federation)

    assert_bitwise_equal(trained(1), trained(2))
