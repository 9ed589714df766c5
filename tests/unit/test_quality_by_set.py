"""Quality by observed set is that of the labels of exactly the samples with that set."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from colonnade.core.task import Task
from colonnade.quality.by_party import Predicted
from colonnade.quality.by_set import SetQuality, by_set, by_size, set_sizes

NAMES = ("bank", "shop", "telco")
# Six samples; sets come in no order, so that no label row is its own number within its set.
TABLE = torch.tensor(
    [
        [True, True, True],
        [False, True, False],
        [True, True, True],
        [True, False, False],
        [False, True, False],
        [False, True, False],
    ]
)
LABELS = np.array(["no", "yes", "yes", "no", "no", "yes"])
TASK = Task.fit("binary", LABELS)
# Right for samples 0, 1, 3 and 5, wrong for 2 and 4: logits of "yes".
OUTPUTS = torch.tensor([[-1.0], [1.0], [-1.0], [-1.0], [1.0], [1.0]])


def found(items: list[SetQuality]) -> dict[tuple[str, ...], tuple[int, int, float | None]]:
    return {item.parties: (item.size, item.num_samples, item.quality) for item in items}


def test_each_set_has_its_own_label_rows() -> None:
    measured = by_set(TASK, OUTPUTS, {}, LABELS, NAMES, TABLE)
    assert [item.parties for item in measured] == [("bank",), ("shop",), NAMES]
    assert found(measured) == {
        ("bank",): (1, 1, 1.0),
        ("shop",): (1, 3, pytest.approx(2 / 3)),
        NAMES: (3, 2, 0.5),
    }


def test_each_size_has_its_own_label_rows() -> None:
    measured = by_size(TASK, OUTPUTS, {}, LABELS, TABLE)
    assert [(item.size, item.num_samples, item.quality) for item in measured] == [
        (1, 4, 0.75),
        (3, 2, 0.5),
    ]
    assert set_sizes(TABLE).tolist() == [3, 1, 3, 1, 1, 1]


def test_a_partys_own_predictor_is_measured_by_the_labels_of_its_positions() -> None:
    # "shop" has samples 5, 1, 0, 4 and 2, in this order; it is right for 5, 0 and 2.
    own = Predicted(torch.tensor([5, 1, 0, 4, 2]), torch.tensor([[1.0], [-1], [-1], [1], [1]]))
    measured = by_set(TASK, OUTPUTS, {"shop": own}, LABELS, NAMES, TABLE)
    assert [dict(item.each) for item in measured] == [
        {},
        {"shop": pytest.approx(1 / 3)},
        {"shop": 1.0},
    ]
    of_size = by_size(TASK, OUTPUTS, {"shop": own}, LABELS, TABLE)
    assert [dict(item.each) for item in of_size] == [
        {"shop": pytest.approx(1 / 3)},
        {"shop": 1.0},
    ]


def test_of_numbers_too_and_nothing_is_said_of_one() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    task = Task.fit("regression", values)
    # Exact for "shop" alone, and as far off as the mean is for all three.
    exact = task.encode(values, torch.float64).reshape(-1, 1)
    both = exact[[0, 2]].mean()
    outputs = exact.clone()
    outputs[[0, 2]] = both
    measured = by_set(task, outputs, {}, values, NAMES, TABLE)
    assert [item.quality for item in measured] == [
        None,
        pytest.approx(1.0),
        pytest.approx(0.0),
    ]
