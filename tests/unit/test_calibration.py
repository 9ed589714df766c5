"""Calibration: known temperatures are found again, and no decision changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize

from colonnade.core.task import Task
from colonnade.quality.by_party import Predicted
from colonnade.quality.by_set import by_set, by_size
from colonnade.quality.calibration import (
    COLDEST,
    Calibration,
    calibration_error,
    fit_calibration,
    fit_temperature,
)


def honest(num_samples: int, num_classes: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Logits, and labels drawn from just the probabilities that they say."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 2, (num_samples, num_classes))
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    edges = (odds / odds.sum(axis=1, keepdims=True)).cumsum(axis=1)
    labels = (draw.random((num_samples, 1)) > edges[:, :-1]).sum(axis=1)
    return torch.from_numpy(logits), labels


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_a_known_temperature_is_found_again(temperature: float) -> None:
    logits, labels = honest(40_000, 4, seed=1)
    found = fit_temperature(logits * temperature, torch.from_numpy(labels))
    assert found == pytest.approx(temperature, rel=0.03)


def test_it_is_where_a_general_minimiser_finds_the_least_log_loss() -> None:
    logits, labels = honest(500, 3, seed=2)
    targets = torch.from_numpy(labels)

    def log_loss(log_temperature: float) -> float:
        scaled = logits / np.exp(log_temperature)
        return float(torch.nn.functional.cross_entropy(scaled, targets))

    least = optimize.minimize_scalar(
        log_loss, bounds=(-2, 2), method="bounded", options={"xatol": 1e-9}
    )
    assert np.log(fit_temperature(logits, targets)) == pytest.approx(least.x, abs=1e-5)


def test_one_temperature_per_set_size_with_the_pooled_one_for_rare_sizes() -> None:
    logits, labels = honest(30_000, 3, seed=3)
    sizes = torch.tensor(np.random.default_rng(0).integers(1, 4, 30_000))
    sizes[:10] = 4
    wild = logits * torch.tensor([0.0, 3.0, 1.5, 0.5, 1.0])[sizes][:, None]
    task = Task.fit("multiclass", labels)
    found = fit_calibration(task, wild, labels, sizes)
    assert found.temperatures.keys() == {1, 2, 3}
    for size, expected in ((1, 3.0), (2, 1.5), (3, 0.5)):
        assert found.temperatures[size] == pytest.approx(expected, rel=0.05)
    sharpened = found.sharpened(wild, sizes)
    assert torch.allclose(sharpened[:10], wild[:10].double() / found.otherwise)
    assert torch.equal(sharpened.argmax(dim=1), wild.argmax(dim=1))
    before, after = (calibration_error(task, item, labels) for item in (wild, sharpened))
    assert before > 0.08
    assert after < 0.02


def test_two_classes_are_two_columns() -> None:
    logits, labels = honest(40_000, 2, seed=4)
    one = (logits[:, 1:] - logits[:, :1]) * 2.0
    task = Task.fit("binary", labels)
    found = fit_calibration(task, one, labels, torch.ones(len(labels), dtype=torch.long))
    assert found.temperatures[1] == pytest.approx(2.0, rel=0.04)
    scores = task.probabilities(found.sharpened(one, torch.ones(len(labels), dtype=torch.long)))
    assert np.array_equal(task.decide(one), scores[:, 1] > 0.5)


def test_too_few_samples_and_a_flawless_part_give_nothing_wild() -> None:
    labels = np.arange(20) % 2
    task = Task.fit("binary", labels)
    outputs = torch.from_numpy(labels * 2.0 - 1.0)[:, None]
    sizes = torch.ones(20, dtype=torch.long)
    assert fit_calibration(task, outputs, labels, sizes) == Calibration(
        temperatures={}, spreads={}, otherwise=1.0
    )
    many = fit_calibration(task, outputs.repeat(5, 1), np.tile(labels, 5), sizes.repeat(5))
    assert many.otherwise == pytest.approx(COLDEST)


def test_of_a_number_the_error_to_expect_is_kept() -> None:
    draw = np.random.default_rng(5)
    values = draw.normal(10, 3, 4000)
    task = Task.fit("regression", values)
    sizes = torch.tensor(draw.integers(1, 3, 4000))
    noise = draw.normal(0, 1, 4000) * np.where(sizes.numpy() == 1, 2.0, 0.5)
    outputs = torch.from_numpy((values + noise - task.center) / task.scale)[:, None]
    found = fit_calibration(task, outputs, values, sizes)
    assert found.spreads[1] == pytest.approx(2.0, rel=0.05)
    assert found.spreads[2] == pytest.approx(0.5, rel=0.05)
    assert found.spread(torch.tensor([2, 1])).tolist() == [found.spreads[2], found.spreads[1]]


# Quality by observed set


def test_quality_by_set_is_that_of_each_set_alone() -> None:
    values = np.array([0, 1, 1, 0, 1])
    task = Task.fit("binary", values)
    outputs = torch.tensor([[-1.0], [1.0], [-1.0], [1.0], [1.0]])
    table = torch.tensor([[True, True], [True, True], [False, True], [True, False], [False, True]])
    each = {"b": Predicted(torch.tensor([4, 0, 2, 1]), torch.tensor([[1.0], [1.0], [1.0], [1.0]]))}
    found = by_set(task, outputs, each, values, ("a", "b"), table)
    assert [(item.parties, item.num_samples, item.quality) for item in found] == [
        (("a",), 1, 0.0),
        (("b",), 2, 0.5),
        (("a", "b"), 2, 1.0),
    ]
    assert [dict(item.each) for item in found] == [{}, {"b": 1.0}, {"b": 0.5}]
    sizes = by_size(task, outputs, each, values, table)
    assert [(item.size, item.num_samples, item.quality) for item in sizes] == [
        (1, 3, pytest.approx(1 / 3)),
        (2, 2, 1.0),
    ]
