"""Tasks: how labels are encoded, decided and measured, against values worked out by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from colonnade.core.errors import ConfigError, DataError
from colonnade.core.task import LOSSES, Task, infer_kind
from messages import says

DOUBLE = torch.float64


class TestBinary:
    task = Task.fit("binary", np.array(["no", "yes", "no"]))

    def test_classes_and_encoding(self) -> None:
        assert self.task.classes == ("no", "yes")
        assert self.task.num_outputs == 1
        assert self.task.quality_name == "accuracy"
        targets = self.task.encode(np.array(["yes", "no"]), torch.float32)
        assert targets.tolist() == [[1.0], [0.0]]
        assert targets.dtype == torch.float32

    def test_loss(self) -> None:
        # -log(sigmoid(0)) = log 2; -log(1 - sigmoid(log 3)) = -log(1/4) = log 4; mean = log 8 / 2
        outputs = torch.tensor([[0.0], [math.log(3.0)]], dtype=DOUBLE)
        loss = self.task.loss(outputs, self.task.encode(np.array(["yes", "no"]), DOUBLE))
        assert loss.item() == pytest.approx(math.log(8.0) / 2)

    def test_probabilities_and_decisions(self) -> None:
        outputs = torch.tensor([[math.log(3.0)], [0.0], [-math.log(4.0)]])
        found = self.task.probabilities(outputs)
        assert found == pytest.approx(np.array([[0.25, 0.75], [0.5, 0.5], [0.8, 0.2]]), abs=1e-6)
        assert self.task.decide(outputs).tolist() == ["yes", "no", "no"]

    def test_metrics(self) -> None:
        # decided: yes, yes, yes, no, no; hits: 2 yes, 1 no
        outputs = torch.tensor([[3.0], [2.0], [1.0], [-1.0], [-2.0]])
        found = self.task.measure(outputs, np.array(["yes", "no", "yes", "yes", "no"]))
        # auc, pairs (yes, no) in the right order: 3.0 beats 2 of 2, 1.0 and -1.0 beat 1: 4 / 6
        assert found == pytest.approx(
            {
                **{"accuracy": 3 / 5, "precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3},
                "auc": 4 / 6,
                "macro_f1": (2 / 3 + 1 / 2) / 2,
                "average_precision": (1 + 2 / 3 + 3 / 4) / 3,
            }
        )

    def test_nothing_decided_positive(self) -> None:
        found = self.task.measure(torch.tensor([[-1.0], [-1.0]]), np.array(["yes", "no"]))
        assert found == pytest.approx(
            {
                **{"accuracy": 0.5, "precision": 0.0, "recall": 0.0, "f1": 0.0, "auc": 0.5},
                **{"macro_f1": 1 / 3, "average_precision": 0.5},
            }
        )

    def test_no_auc_where_only_one_class_occurs(self) -> None:
        assert "auc" not in self.task.measure(torch.tensor([[-1.0]]), np.array(["no"]))

    @pytest.mark.parametrize(
        ("values", "classes"),
        [
            (np.array([3, 7, 3]), (3, 7)),
            (np.array([False, True]), (False, True)),
            (np.array([0.0, 1.0]), (0.0, 1.0)),
            (np.array(["b", "a"], dtype=object), ("a", "b")),
        ],
    )
    def test_classes_of_any_type_come_back_as_they_were(
        self, values: Any, classes: tuple[Any, ...]
    ) -> None:
        task = Task.fit("binary", values)
        assert task.classes == classes
        assert [type(item) for item in task.classes] == [type(item) for item in classes]
        assert json.loads(json.dumps(task.classes)) == list(classes)
        outputs = 2.0 * task.encode(values, DOUBLE) - 1.0
        assert task.decide(outputs).tolist() == values.tolist()
        assert task.measure(outputs, values)["accuracy"] == 1.0


class TestMulticlass:
    task = Task.fit("multiclass", np.array(["c", "a", "b", "a"]))

    def test_classes_and_encoding(self) -> None:
        assert self.task.classes == ("a", "b", "c")
        assert self.task.num_outputs == 3
        targets = self.task.encode(np.array(["c", "a"]), torch.float32)
        assert targets.tolist() == [2, 0]
        assert targets.dtype == torch.int64

    def test_loss_and_probabilities(self) -> None:
        outputs = torch.tensor([[math.log(2.0), 0.0, 0.0]], dtype=DOUBLE)
        assert self.task.probabilities(outputs) == pytest.approx(np.array([[0.5, 0.25, 0.25]]))
        loss = self.task.loss(outputs, self.task.encode(np.array(["b"]), DOUBLE))
        assert loss.item() == pytest.approx(math.log(4.0))

    def test_metrics(self) -> None:
        # truth   a a b b c c
        # decided a b b b a c
        outputs = torch.eye(3)[[0, 1, 1, 1, 0, 2]]
        found = self.task.measure(outputs, np.array(["a", "a", "b", "b", "c", "c"]))
        # a: precision 1/2, recall 1/2, f1 1/2; b: 2/3, 1, 4/5; c: 1, 1/2, 2/3
        assert found == pytest.approx(
            {
                "accuracy": 4 / 6,
                "precision": (1 / 2 + 2 / 3 + 1) / 3,
                "recall": (1 / 2 + 1 + 1 / 2) / 3,
                "f1": (1 / 2 + 4 / 5 + 2 / 3) / 3,
                # Of eight pairs each, ties half: a 5, b 7, c 6.
                "auc": (5 + 7 + 6) / 24,
            }
        )

    def test_balanced_classes_count_alike(self) -> None:
        values = np.array(["a"] * 6 + ["b"] * 3 + ["c"])
        task = Task.fit("multiclass", values, class_weights="balanced")
        assert task.class_weights == pytest.approx((10 / 18, 10 / 9, 10 / 3))
        generator = torch.Generator().manual_seed(0)
        outputs = torch.randn(10, 3, generator=generator, dtype=DOUBLE)
        targets = task.encode(values, DOUBLE)
        plain = Task.fit("multiclass", values)
        of_class = [
            plain.loss(outputs[targets == code], targets[targets == code]) for code in range(3)
        ]
        torch.testing.assert_close(task.loss(outputs, targets), torch.stack(of_class).mean())
        assert plain.losses(outputs, targets).mean().item() == pytest.approx(
            plain.loss(outputs, targets).item()
        )

    def test_balanced_binary_and_no_classes(self) -> None:
        values = np.array([0, 0, 0, 1])
        task, plain = (
            Task.fit("binary", values, class_weights=item) for item in ("balanced", "none")
        )
        outputs = torch.tensor([[0.3], [-1.0], [2.0], [0.5]], dtype=DOUBLE)
        targets = task.encode(values, DOUBLE)
        expected = plain.loss(outputs[:3], targets[:3]) + plain.loss(outputs[3:], targets[3:])
        torch.testing.assert_close(task.loss(outputs, targets), expected / 2)
        with pytest.raises(ConfigError, match=r"label_holder.class_weights.*regression"):
            Task.fit("regression", np.array([1.0, 2.0]), class_weights="balanced")

    @given(codes=st.lists(st.integers(0, 2), min_size=1, max_size=12))
    def test_what_is_encoded_is_decided_again(self, codes: list[int]) -> None:
        values = np.array(["a", "b", "c"])[codes]
        outputs = torch.eye(3)[self.task.encode(values, DOUBLE)]
        assert self.task.decide(outputs).tolist() == values.tolist()


class TestRegression:
    task = Task.fit("regression", np.array([1.0, 3.0, 5.0, 7.0]))

    def test_centre_and_scale_are_those_of_the_training_part(self) -> None:
        assert self.task.center == 4.0
        assert self.task.scale == pytest.approx(math.sqrt(5.0))
        assert self.task.num_outputs == 1
        assert self.task.quality_name == "r2"
        targets = self.task.encode(np.array([4.0, 9.0]), DOUBLE)
        assert targets.numpy() == pytest.approx(np.array([[0.0], [math.sqrt(5.0)]]))

    @pytest.mark.parametrize(
        ("loss", "expected"),
        [
            ("squared_error", (0.25 + 9.0) / 2),
            ("absolute_error", (0.5 + 3.0) / 2),
            ("huber", (0.125 + 2.5) / 2),  # 0.5²/2 within 1, |3| - 1/2 beyond
        ],
    )
    def test_losses(self, loss: str, expected: float) -> None:
        task = Task.fit("regression", np.array([1.0, 2.0]), loss=loss)
        outputs = torch.tensor([[0.5], [-3.0]], dtype=DOUBLE)
        assert task.loss(outputs, torch.zeros(2, 1, dtype=DOUBLE)).item() == pytest.approx(expected)

    def test_metrics_are_in_the_labels_own_unit(self) -> None:
        truth = np.array([1.0, 3.0, 5.0])
        decided = np.array([2.0, 3.0, 3.0])
        outputs = self.task.encode(decided, DOUBLE)
        assert self.task.decide(outputs) == pytest.approx(decided)
        # errors 1, 0, 2: squares sum to 5; truth around its mean 3: 4 + 0 + 4 = 8
        assert self.task.measure(outputs, truth) == pytest.approx(
            {"r2": 1 - 5 / 8, "rmse": math.sqrt(5 / 3), "mae": 1.0}
        )

    def test_one_sample_has_no_r2(self) -> None:
        found = self.task.measure(torch.zeros(1, 1), np.array([4.0]))
        assert math.isnan(found["r2"])
        assert found["rmse"] == 0.0

    def test_constant_target_keeps_its_scale(self) -> None:
        task = Task.fit("regression", np.array([2.0, 2.0]))
        assert (task.center, task.scale) == (2.0, 1.0)

    def test_no_probabilities(self) -> None:
        with pytest.raises(ConfigError, match=says("regression", "predict")):
            self.task.probabilities(torch.zeros(1, 1))

    @pytest.mark.parametrize("values", [["a", "b"], [1.0, math.nan], [1.0, math.inf], [None, 1.0]])
    def test_what_are_no_numbers_is_refused(self, values: list[Any]) -> None:
        with pytest.raises(DataError, match=r"^labels: "):
            Task.fit("regression", np.array(values, dtype=object))


class TestRefusals:
    @pytest.mark.parametrize("kind", ["binary", "multiclass"])
    def test_class_that_training_did_not_see(self, kind: Any) -> None:
        task = Task.fit(kind, np.array(["a", "b"]))
        with pytest.raises(DataError, match=says("labels", "1 class", ["z"])):
            task.encode(np.array(["a", "z", "z"]), DOUBLE)
        with pytest.raises(DataError, match="'z'"):
            task.measure(torch.zeros(1, task.num_outputs), np.array(["z"]))

    def test_too_few_or_too_many_classes(self) -> None:
        with pytest.raises(DataError, match=says("labels", "1 class", [1], "two")):
            Task.fit("multiclass", np.array([1, 1]))
        with pytest.raises(DataError, match=says("labels", 3, 'task = "multiclass"')):
            Task.fit("binary", np.array([1, 2, 3]))

    @pytest.mark.parametrize(
        ("kind", "loss"),
        [
            ("binary", "cross_entropy"),
            ("multiclass", "squared_error"),
            ("regression", "binary_cross_entropy"),
            ("regression", "squared_eror"),
        ],
    )
    def test_loss_that_does_not_fit(self, kind: Any, loss: str) -> None:
        with pytest.raises(ConfigError, match=says("label_holder.loss", f"'{loss}'", kind)):
            Task.fit(kind, np.array([0, 1]), loss=loss)

    def test_every_loss_fits_some_kind(self) -> None:
        fitting = set()
        for kind in ("binary", "multiclass", "regression"):
            for loss in LOSSES:
                try:
                    fitting.add(Task.fit(kind, np.array([0, 1]), loss=loss).loss_name)
                except ConfigError:
                    continue
        assert fitting == LOSSES.keys()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.array(["x", "y", "x"]), "binary"),
        (np.array(["x", "y", "z"]), "multiclass"),
        (np.array(["x", "y", "z"], dtype=object), "multiclass"),
        (np.array([True, False]), "binary"),
        (np.array([0, 1, 1]), "binary"),
        (np.array([0.0, 1.0, 1.0]), "binary"),
        (np.array([1, 2, 3, 1]), "multiclass"),
        (np.array([0.5, 1.0]), "regression"),
        (np.arange(10), "multiclass"),
        (np.arange(11), "regression"),
        (np.arange(900) % 10 * 1.0, "multiclass"),
        (np.arange(900) % 30, "regression"),  # counts and grades, however many samples
    ],
)
def test_kind_is_inferred_from_values(values: Any, kind: str) -> None:
    assert infer_kind(values) == kind
