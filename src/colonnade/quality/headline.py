"""Which metric tells how good a model is: one that a model without any skill can't please.

Accuracy hides failure where one class is rare. There it is the area under the ROC curve; of numbers
it is R²; otherwise accuracy. Training stops by ``stop.metric``, or as the task says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from colonnade.core.task import Task

__all__ = ["IMBALANCED", "headline_of"]

# A binary label whose rarer class has a smaller share than this is imbalanced.
IMBALANCED = 0.2


def headline_of(task: Task, values: np.ndarray[Any, Any]) -> str:
    """Choose the headline.

    Args:
        task: The task.
        values: The labels of the held-out samples.

    Returns:
        The metric's name, as in ``Task.measure``.
    """
    if task.kind != "binary" or not len(values):
        return task.quality_name
    share = float(np.mean(np.asarray(values) == task.classes[1]))
    both = 0 < share < 1
    return "auc" if both and min(share, 1 - share) < IMBALANCED else task.quality_name
