"""Networks, a loss and metrics that a caller gives as functions: used, checked, never kept."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import colonnade
from colonnade.core.errors import ConfigError, StorageError
from colonnade.run.result import Result
from colonnade.run.spec import parse_spec
from federations import assert_bitwise_equal, weights
from messages import says

COUNT = 60
DRAW = np.random.default_rng(5)
IDS = [f"u{number}" for number in range(COUNT)]
BANK = pd.DataFrame(DRAW.normal(size=(COUNT, 2)), index=IDS, columns=["age", "pay"])
TELCO = pd.DataFrame(DRAW.normal(size=(COUNT, 1)), index=IDS, columns=["calls"])
SCORE = (BANK["age"] + TELCO["calls"]).rename("score")
LABELS = (SCORE > 0).map({True: "yes", False: "no"}).rename("left")
SMALL: dict[str, Any] = {
    "defaults": {"encoder": {"kind": "mlp", "hidden": [4], "embedding": 3}},
    "label_holder": {"fusion": {"kind": "mlp", "hidden": [4]}},
}


def quick(labels: Any = LABELS, **arguments: Any) -> Result:
    settings = {**SMALL, **arguments.pop("settings", {})}
    arguments = {"label_holder": "bank", "epochs": 2, "batch_size": 16, **arguments}
    return colonnade.fit({"bank": BANK, "telco": TELCO}, labels, settings=settings, **arguments)


def perceptron(in_features: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(in_features, 4), nn.ReLU(), nn.Linear(4, width))


def bounded(in_features: int, width: int) -> nn.Module:
    return nn.Sequential(perceptron(in_features, width), nn.ReLU())


def test_factories_that_make_what_settings_describe_give_the_same_model() -> None:
    described, made = quick(), quick(encoder=bounded, fusion=perceptron)
    # Names of layers differ, numbers don't.
    pairs = zip(described.modules.values(), made.modules.values(), strict=True)
    for left, right in pairs:
        numbers = zip(left.parameters(), right.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in numbers)
    blocks = {"bank": BANK.head(), "telco": TELCO.head()}
    assert described.predict(blocks).equals(made.predict(blocks))
    assert made.card() is not None


def test_a_factory_for_one_party() -> None:
    def odd(in_features: int, width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(in_features, width), nn.Dropout(0.5), nn.Tanh())

    first, again = quick(encoder={"telco": odd}), quick(encoder={"telco": odd})
    assert isinstance(first.modules["telco"].get_submodule("encoder.2"), nn.Tanh)
    assert not isinstance(first.modules["bank"].get_submodule("encoder"), nn.Tanh)
    assert_bitwise_equal(weights(first._federation), weights(again._federation))
    with pytest.raises(
        ConfigError, match=says("encoder: no party 'telko'", "did you mean 'telco'")
    ):
        quick(encoder={"telko": odd})


def test_a_factory_of_heads_and_of_images() -> None:
    seen: list[Any] = []

    def head(in_features: int, width: int) -> nn.Module:
        seen.append(in_features)
        return nn.Linear(in_features, width)

    result = quick(method="easter", head=head)
    assert seen == [3, 3]
    assert isinstance(result.modules["bank"].get_submodule("head"), nn.Linear)
    with pytest.raises(ConfigError, match=says("head", "splitnn")):
        quick(head=head)

    def small(shape: Any, width: int) -> nn.Module:
        seen.append(shape)
        return nn.Sequential(nn.Flatten(), nn.Linear(8, width))

    pictures = DRAW.normal(size=(COUNT, 1, 2, 4))
    colonnade.fit({"eye": pictures}, np.array(LABELS), ids=IDS, epochs=1, encoder=small)
    assert seen[-1] == (1, 2, 4)


SHARED = nn.Linear(2, 3)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda width: nn.Linear(1, width), "encoder: the function failed"),
        (lambda in_features, width: 3, "encoder: expected a function that returns"),
        (lambda in_features, width: nn.Linear(in_features, 1), "expected output of shape"),
        (lambda in_features, width: nn.Linear(1, width), "its forward failed"),
        (lambda in_features, width: nn.LazyLinear(width), "lazy"),
        ("mlp", "encoder: expected a function, got str"),
    ],
)
def test_a_factory_that_does_not_fit_is_refused(factory: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=says(message)):
        quick(encoder=factory)


def test_a_factory_makes_a_new_network_at_every_call() -> None:
    def shared(in_features: int, width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(in_features, 2), SHARED)

    with pytest.raises(ConfigError, match=says("returned before", "every party has its own")):
        quick(encoder=shared)


def test_a_loss_of_ones_own_is_the_loss() -> None:
    def twice(outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")

    own, plain = quick(loss=twice), quick()
    assert own.evaluate()["loss"] != plain.evaluate()["loss"]
    sgd = {"defaults": {**SMALL["defaults"], "optimizer": {"name": "sgd", "lr": 0.05}}}
    halved = {"defaults": {**SMALL["defaults"], "optimizer": {"name": "sgd", "lr": 0.025}}}
    holder = {**SMALL["label_holder"], "optimizer": {"name": "sgd", "lr": 0.05}}
    half = {**SMALL["label_holder"], "optimizer": {"name": "sgd", "lr": 0.025}}
    slow = quick(settings={**sgd, "label_holder": holder})
    same = quick(settings={**halved, "label_holder": half}, loss=twice)
    for name, tensor in weights(slow._federation).items():
        torch.testing.assert_close(weights(same._federation)[name], tensor)
    # For methods that weigh samples too.
    quick(method="laser", loss=twice)


def test_a_loss_by_its_name_and_losses_that_do_not_fit() -> None:
    blocks = {"bank": BANK, "telco": TELCO}
    named = colonnade.fit(blocks, SCORE, label_holder="bank", epochs=1, loss="huber")
    assert named._blueprint.task.loss_name == "huber"
    with pytest.raises(ConfigError, match=says("one loss per sample", 'reduction="none"')):
        quick(loss=functional.binary_cross_entropy_with_logits)
    with pytest.raises(ConfigError, match=says("loss", "expected a function, got int")):
        quick(loss=3)


def test_metrics_of_ones_own_are_measured_and_may_stop() -> None:
    def caught(truth: Any, predicted: Any) -> Any:
        assert set(truth) | set(predicted) <= {"yes", "no"}
        return np.float64(np.mean(predicted[truth == "yes"] == "yes"))

    stop = {"stop": {"epochs": 3, "patience": 3, "metric": "caught"}}
    result = quick(metrics={"caught": caught}, settings=stop, epochs=None)
    assert result.evaluate()["caught"] == pytest.approx(result.evaluate()["recall"])
    assert "caught" in result.history.columns
    with pytest.raises(ConfigError, match=says("metrics", "'recall'", "another name")):
        quick(metrics={"recall": caught})
    with pytest.raises(ConfigError, match=says("metrics['odd']", "a number", "a str")):
        quick(metrics={"odd": lambda truth, predicted: "good"})
    with pytest.raises(ConfigError, match=says("stop.metric", "caught")):
        quick(settings=stop, epochs=None)


def test_code_is_never_written_down(tmp_path: Path) -> None:
    said = says("encoder", "can't be written down", "import path")
    with pytest.raises(StorageError, match=said):
        quick(encoder=perceptron, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    result = quick(encoder=perceptron)
    with pytest.raises(StorageError, match=said):
        result.save(tmp_path / "model")
    assert not (tmp_path / "model" / "config.json").exists()
    with pytest.raises(StorageError, match=said):
        pickle.dumps(result)
    blocks = {"bank": BANK.head(), "telco": TELCO.head()}
    assert copy.deepcopy(result).predict(blocks).equals(result.predict(blocks))
    assert result.summary["lineage"]["settings"] is None
    for given in ({"loss": lambda *_: 0}, {"metrics": {"own": lambda *_: 0}}):
        with pytest.raises(StorageError, match=says("can't be written down")):
            quick(**given, out=tmp_path / "run")


def test_settings_of_a_file_hold_no_code() -> None:
    for head in ({"factory": "os:system"}, {"factory": {"function": "os:system"}}):
        with pytest.raises(ConfigError):
            parse_spec({"defaults": {"head": head}})
    with pytest.raises(ConfigError, match=says("encoder.kind", "factory")):
        parse_spec({"defaults": {"encoder": {"kind": "factory", "factory": "os:system"}}})
    for metric in ("os:system", {"function": "os:system", "setting": "", "instead": ""}):
        with pytest.raises(ConfigError, match=says("label_holder.metrics.own")):
            parse_spec({"label_holder": {"metrics": {"own": metric}}})


def test_fitting_and_another_threads_draws_leave_each_other_alone() -> None:
    drawn: list[Tensor] = []

    class Interrupted(nn.Module):
        """Another thread draws in the middle of every forward pass."""

        def __init__(self, in_features: int, width: int) -> None:
            super().__init__()
            self.linear = nn.Linear(in_features, width)

        def forward(self, rows: Tensor) -> Tensor:
            kept = functional.dropout(rows, 0.3, self.training)
            other = Thread(target=lambda: drawn.append(torch.rand(3)))
            other.start()
            other.join()
            return functional.dropout(self.linear(kept), 0.3, self.training)

    class Alone(Interrupted):
        def forward(self, rows: Tensor) -> Tensor:
            kept = functional.dropout(rows, 0.3, self.training)
            return functional.dropout(self.linear(kept), 0.3, self.training)

    generator = torch.default_generator
    before = generator.get_state()
    try:
        generator.manual_seed(7)
        alone = quick(encoder=Alone)
        untouched = torch.rand(3)
        generator.manual_seed(7)
        interrupted = quick(encoder=Interrupted)
        generator.manual_seed(7)
        expected = [torch.rand(3) for _ in drawn]
    finally:
        generator.set_state(before)
    assert_bitwise_equal(weights(alone._federation), weights(interrupted._federation))
    assert len(drawn) > 8
    assert all(torch.equal(*pair) for pair in zip(drawn, expected, strict=True))
    assert torch.equal(untouched, expected[0])
