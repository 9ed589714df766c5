"""What the experiments share: data loaded once, and runs that say when they were how good."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from colonnade.core.errors import Diverged
from colonnade.core.federation import Event, Federation
from colonnade.data.blocks import Labels
from colonnade.data.datasets import load_dataset
from colonnade.run.engine import train
from colonnade.run.sources import Sources
from colonnade.run.spec import parse_spec

# In the papers whoever has the labels has no columns.
LABEL_HOLDER = "label_holder"
# Learning rates are chosen on this seed alone, which no experiment reports on.
TUNING_SEED = 1000
# Learning rates to choose from.
LADDER = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@cache
def sources_of(
    dataset: str, num_parties: int | None = None, num_samples: int | None = None
) -> Sources:
    """A named data set with the labels apart; of a large one, so many samples drawn at random."""
    loaded = load_dataset(dataset, num_parties=num_parties)
    labels = loaded.labels
    if num_samples is not None:
        drawn = np.random.default_rng(0).permutation(len(labels.ids))[:num_samples]
        labels = Labels(name=labels.name, ids=labels.ids[drawn], values=labels.values[drawn])
    return Sources(
        blocks=loaded.blocks,
        labels=labels,
        label_holder=LABEL_HOLDER,
        kind=loaded.task,
        test_ids=loaded.test_ids,
    )


@dataclass(frozen=True, kw_only=True)
class Point:
    """How good the model was on the validation part, when."""

    exchange: int
    tick: int
    quality: float


class Trail:
    """Looks on and notes every evaluation; may end the run at a tick."""

    def __init__(self, last_tick: int | None = None) -> None:
        self.points: list[Point] = []
        self._last_tick = last_tick

    def began(self, federation: Federation, done: int, total: int) -> None:
        """Remember whom to ask for the time."""
        self._federation = federation
        self._quality_name = federation.holder.task.quality_name

    def exchanged(self, event: Event) -> None:
        """Note the evaluation, if there was one."""
        if event.metrics is not None:
            quality = event.metrics[self._quality_name]
            self.points.append(Point(exchange=event.exchange, tick=self.now(), quality=quality))

    def wants_to_stop(self) -> bool:
        """At the last tick."""
        return self._last_tick is not None and self.now() >= self._last_tick

    def now(self) -> int:
        """The label holder's clock."""
        return self._federation.fabric.now()


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended."""

    # Exchanges to the target; None if it was not reached.
    exchanges: int | None
    # The label holder's clock at the end, initial uploads included.
    ticks: int
    points: Sequence[Point]
    summary: Mapping[str, Any]


def as_before(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the defaults that runs had before defaults were tuned, said outright.

    So the numbers of a paper's table stay as they are, whatever defaults come. A table of a party's
    network, an optimizer or the fusion is taken as given.
    """
    given = dict(settings)
    method = given.get("method", "splitnn")
    own = {"name": method} if isinstance(method, str) else dict(method)
    if own["name"] == "laser":
        given["method"] = {"weights": "normalised", **own}
    data = {"batch_size": 64, **given.get("data", {})}
    adam = {"name": "adam", "lr": 1e-3}
    given["data"] = {**data, "split": {"stratified": False, **data.get("split", {})}}
    given["defaults"] = {
        "encoder": {"kind": "mlp", "hidden": [64], "embedding": 32},
        "head": {"hidden": []},
        "optimizer": adam,
        **given.get("defaults", {}),
    }
    given["label_holder"] = {
        "fusion": {"kind": "mlp", "hidden": [32]},
        "optimizer": adam,
        **given.get("label_holder", {}),
    }
    return {"stop": {"epochs": 20}, **given}


def run(
    settings: Mapping[str, Any], sources: Sources | None = None, last_tick: int | None = None
) -> Ended:
    """Train in memory, up to the target if there is one; raises Diverged."""
    trail = Trail(last_tick)
    summary = train(parse_spec(as_before(settings)), sources=sources, watcher=trail).summary
    reached = summary["exchanges"] if summary["stopped_by"] == "target" else None
    return Ended(exchanges=reached, ticks=trail.now(), points=trail.points, summary=summary)


def best_rates(
    start: Sequence[tuple[float, ...]], exchanges_at: Callable[[tuple[float, ...]], int | None]
) -> tuple[float, ...]:
    """The rates with the fewest exchanges to the target; the first if none reaches it.

    ``start`` has a few neighbours on the ladder for each rate. Where the best is the first or last
    of them, another one is tried, until the best has neighbours on both sides.
    """
    found: dict[tuple[float, ...], float] = {}

    def cost(rates: tuple[float, ...]) -> float:
        if rates not in found:
            try:
                found[rates] = exchanges_at(rates) or float("inf")
            except Diverged:
                found[rates] = float("inf")
        return found[rates]

    grids = [[LADDER.index(rate) for rate in rates] for rates in start]
    while True:
        best = min(product(*([LADDER[place] for place in grid] for grid in grids)), key=cost)
        if found[best] == float("inf"):
            return best
        is_inside = True
        for grid, rate in zip(grids, best, strict=True):
            place = LADDER.index(rate)
            for edge, further in ((min(grid), place - 1), (max(grid), place + 1)):
                if place == edge and 0 <= further < len(LADDER):
                    grid.append(further)
                    is_inside = False
        if is_inside:
            return best
