"""Which metric tells how good a model is: one that a model without any skill can't please.

It is ``stop.metric`` where one was said. Accuracy hides failure where one class is rare: there it
is the area under the ROC curve. Of numbers it is R², otherwise accuracy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from colonnade.core.task import Task

__all__ = ["IMBALANCED", "headline_of"]

# A binary label whose rarer class has a smaller share than this is imbalanced.
IMBALANCED = 0.2
_RANKING = frozenset({"auc", "average_precision"})


def headline_of(task: Task, values: np.ndarray[Any, Any], chosen: str | None = None) -> str:
    """Choose the headline.

    Args:
        task: The task.
        values: The labels of the held-out samples.
        chosen: The metric that decides when training ends (``stop.metric``), if one was said. A
            loss is no headline, and neither is a ranking of samples that lack a class.

    Returns:
        The metric's name, as in ``Task.measure``.
    """
    lacks_class = len(np.unique(np.asarray(values))) < len(task.classes)
    if chosen not in (None, "loss") and not (chosen in _RANKING and lacks_class):
        return chosen
    if task.kind != "binary" or not len(values):
        return task.quality_name
    share = float(np.mean(np.asarray(values) == task.classes[1]))
    both = 0 < share < 1
    return "auc" if both and min(share, 1 - share) < IMBALANCED else task.quality_name
