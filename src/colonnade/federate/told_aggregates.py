"""Aggregates that parties tell of the rows that they served: asked for, checked, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from colonnade.core.errors import BadReply, ColonnadeError
from colonnade.federate.prediction import OpenModel

__all__ = ["begin_telling", "say_aggregates"]

_NAMES = ("rows", "far", "input_drift", "embedding_drift")


def begin_telling(model: OpenModel, party: str) -> Callable[[], Mapping[str, int] | None]:
    """Ask a party for its aggregates; the others go on.

    Args:
        model: The open model; no request is answered meanwhile.
        party: Whom to ask.

    Returns:
        Gives them when they are there, without waiting; None before. They are empty if the party's
        policy tells nothing or too few rows were served. Drift is in hundredths of a deviation. It
        raises what the party refused.
    """
    asking = model.elsewhere(model.blueprint.spec.patience)
    asking.start(party, "aggregates")

    def told() -> Mapping[str, int] | None:
        answer = asking.fabric.run(asking.arrival(deadline=asking.now()))
        return None if answer is None else _checked(party, answer.value)

    return told


def say_aggregates(model: OpenModel, say: Callable[[str], None]) -> None:
    """Say what parties tell of the rows that they served; predictions stand without it.

    Args:
        model: The open model.
        say: Told a line per party whose policy allows it.
    """
    asking = model.elsewhere(model.blueprint.spec.patience)
    try:
        answers = asking.fabric.run(asking.ask("aggregates", among=model.blueprint.elsewhere))
        told = {name: _checked(name, answer) for name, answer in sorted(answers.items())}
    except ColonnadeError as error:
        say(f"no aggregates: {error.told()}")
        return
    for name, counts in told.items():
        parts = []
        if "far" in counts:
            parts.append(f"{counts['far']} with values far outside its training range")
        for what in ("input", "embedding"):
            if f"{what}_drift" in counts:
                moved = counts[f"{what}_drift"] / 100
                parts.append(f"{what}s moved by {moved:.2f} deviations")
        if parts:
            say(f"{name}: of {counts['rows']} rows, {'; '.join(parts)}")


def _checked(party: str, told: Any) -> dict[str, int]:
    """Whole numbers under the names that there are: a party may be wrong, but send nothing else."""
    counts = {}
    for name, item in (told or {}).items():
        is_count = isinstance(item, torch.Tensor) and item.numel() == 1
        if name not in _NAMES or not is_count or item.is_floating_point() or int(item) < 0:
            raise BadReply(
                f"party '{party}' tells '{str(name)[:40]}' that is no count known here; ask it "
                "which version it runs",
                party=party,
            )
        counts[name] = int(item)
    if counts.get("far", 0) > counts.get("rows", 0):
        raise BadReply(f"party '{party}' tells more rows far outside than rows", party=party)
    return counts
