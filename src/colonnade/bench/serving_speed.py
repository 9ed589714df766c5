"""Predictions served, against the bare networks and against a bare HTTP echo in the same run.

``one-sample`` and ``rows`` need no service: ``Result.predict`` against the same networks on
prepared tensors. ``gather`` and ``switch`` ask ``colonnade serve`` in a process of its own. What a
federation of processes does by a deadline is in ``serving_by_deadline``.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from colonnade.bench.callers import Calls, call_once, call_together
from colonnade.bench.quiet import Quiet
from colonnade.bench.served_federation import serving_process
from colonnade.bench.serving_by_deadline import deadline_rows
from colonnade.bench.timing import interleaved
from colonnade.core.errors import RunError
from colonnade.run.directory import local_parties
from colonnade.run.fit import fit
from colonnade.run.result import Result

__all__ = ["bench_serve"]

_NUM_PARTIES, _NUM_COLUMNS, _NUM_ROWS = 4, 16, 4096
_FIRST_ID = 100_000
_RUNS_PER_TURN = 20


def bench_serve(fast: bool, cases: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Rows of four parties with 16 columns each; of these cases, or of all if there are none."""

    def wants(*some: str) -> bool:
        return not cases or not cases.isdisjoint(some)

    rows = []
    if wants("one-sample", "rows", "rows-bare", "gather", "switch"):
        with tempfile.TemporaryDirectory() as place, ExitStack() as around:
            root = Path(place)
            blocks, result = _trained(root)
            if wants("one-sample"):
                rows.append(_one_sample(result, blocks, 200 if fast else 2000))
            if wants("rows", "rows-bare"):
                rows += _rows(result, blocks, 1 if fast else 20)
            if wants("gather", "switch"):
                _, ours = serving_process(around, *_serving(root))
                if wants("gather"):
                    _, echo = serving_process(around, "colonnade.bench.bare_echo")
                    rows.append(_gather(ours, echo, fast))
                if wants("switch"):
                    rows.append(_switch(ours, fast))
    return rows + deadline_rows(fast, wants)


def _trained(root: Path) -> tuple[dict[str, pd.DataFrame], Result]:
    """Two runs side by side, their tables as files, and the first one's result."""
    numbers = np.random.default_rng(0)
    ids = pd.Index(np.arange(_FIRST_ID, _FIRST_ID + _NUM_ROWS), name="id")
    names = [f"c{number:02d}" for number in range(_NUM_COLUMNS)]
    blocks = {
        f"party_{number}": pd.DataFrame(
            numbers.normal(size=(_NUM_ROWS, _NUM_COLUMNS)), ids, columns=names
        )
        for number in range(_NUM_PARTIES)
    }
    labels = pd.Series(numbers.integers(0, 2, _NUM_ROWS), ids, name="label")
    for name, block in blocks.items():
        block.to_csv(root / f"{name}.csv")
    for run, seed in (("first", 0), ("second", 1)):
        fit(blocks, labels, epochs=1, seed=seed, out=root / "runs" / run)
    return blocks, Result.load(root / "runs" / "first")


class _Bare:
    """A result's networks by themselves."""

    def __init__(self, result: Result, rows: int) -> None:
        federation = result._federation
        self._fusion = federation.holder.fusion
        parties = local_parties(federation)
        self._encoders = {name: party.encoder for name, party in parties.items()}
        self._features: Mapping[str, Tensor] = {
            name: torch.randn(rows, _NUM_COLUMNS) for name in parties
        }

    def __call__(self, _: int) -> None:
        with torch.no_grad():
            embeddings = {
                name: encoder(self._features[name]) for name, encoder in self._encoders.items()
            }
            self._fusion(embeddings)


def _one_sample(result: Result, blocks: Mapping[str, pd.DataFrame], runs: int) -> dict[str, Any]:
    one = {name: block.iloc[:1] for name, block in blocks.items()}
    bare = _Bare(result, 1)
    ours, theirs = interleaved(lambda _: _ask(result, one), bare, runs=runs)
    return {
        "case": "one-sample",
        "ratio": ours / theirs,
        "unit": "time of Result.predict of one row / time of the bare networks",
        "against": "the same networks on prepared tensors",
        "runs": runs,
        "microseconds": ours * 1e6,
        "microseconds_against": theirs * 1e6,
    }


class _FromTables(_Bare):
    """The same networks from tables to labels, and nothing else.

    It makes tensors of the columns, looks whether the tables have the same ids, predicts in one
    batch, as ours does, and gives labels by id. No name, type or range is checked.
    """

    def __init__(self, result: Result, blocks: Mapping[str, pd.DataFrame]) -> None:
        super().__init__(result, 1)
        self._blocks, self._classes = blocks, np.array(result.classes)
        self._scales = {
            name: (block.to_numpy().mean(0), block.to_numpy().std(0))
            for name, block in blocks.items()
        }

    def __call__(self, _: int) -> None:
        first, *others = self._blocks.values()
        if not all(first.index.equals(block.index) for block in others):
            raise RunError("the tables have different ids")
        features = {}
        for name, block in self._blocks.items():
            mean, scale = self._scales[name]
            scaled = (block.to_numpy() - mean) / scale
            features[name] = torch.from_numpy(scaled.astype(np.float32))
        with torch.no_grad():
            embeddings = {name: self._encoders[name](item) for name, item in features.items()}
            outputs = self._fusion(embeddings)[:, 0].numpy()
        pd.Series(self._classes[(outputs > 0).astype(np.int64)], first.index)


def _rows(
    result: Result, blocks: Mapping[str, pd.DataFrame], num_turns: int
) -> list[dict[str, Any]]:
    """Each turn waits for a quiet machine; what disturbs it lasts for longer than a turn."""
    bare, least, quiet = _Bare(result, _NUM_ROWS), _FromTables(result, blocks), Quiet()
    # By turn, median seconds: ours and the bare networks beside it, then the bound and they again.
    turns: list[tuple[float, float, float, float]] = []
    for _ in range(num_turns):
        quiet.wait()
        turns.append(
            (
                *interleaved(lambda _: _ask(result, blocks), bare, runs=_RUNS_PER_TURN),
                *interleaved(least, bare, runs=_RUNS_PER_TURN),
            )
        )
    ours, theirs, bound, _ = (statistics.median(times) for times in zip(*turns, strict=True))
    row = {
        "against": "the same networks on prepared tensors",
        "runs": num_turns * _RUNS_PER_TURN,
        **quiet.told(),
    }
    return [
        {
            **row,
            "case": "rows",
            "ratio": statistics.median(turn[1] / turn[0] for turn in turns),
            "unit": f"rows a second of Result.predict of {_NUM_ROWS} rows / of the bare networks",
            "rows_a_second": _NUM_ROWS / ours,
            "rows_a_second_against": _NUM_ROWS / theirs,
            "ratios_by_turn": [turn[1] / turn[0] for turn in turns],
        },
        {
            **row,
            "case": "rows-bare",
            "ratio": statistics.median(turn[3] / turn[2] for turn in turns),
            "unit": "the same of the networks from tables to labels: the bound",
            "rows_a_second": _NUM_ROWS / bound,
        },
    ]


def _ask(result: Result, blocks: Mapping[str, pd.DataFrame]) -> None:
    result.predict(blocks)


def _serving(root: Path) -> list[str]:
    files = [f"--features=party_{k}={root / f'party_{k}.csv'}" for k in range(_NUM_PARTIES)]
    return ["colonnade", "serve", str(root / "runs" / "first"), "--id=id", "--port=0", *files]


def _request(number: int) -> dict[str, Any]:
    return {"ids": [_FIRST_ID + number % _NUM_ROWS], "deadline_ms": 10_000}


def _gather(ours: int, echo: int, fast: bool) -> dict[str, Any]:
    num_callers, turns, seconds = 64, 3 if fast else 9, 1.0 if fast else 2.0
    rates: dict[int, list[float]] = {ours: [], echo: []}
    for turn in range(turns + 1):
        for port in (echo, ours):
            calls = call_together(port, num_callers=num_callers, seconds=seconds, content=_request)
            _refuse_failures(calls)
            if turn:
                rates[port].append(len(calls.seconds) / seconds)
    mine, theirs = statistics.median(rates[ours]), statistics.median(rates[echo])
    return {
        "case": "gather",
        "ratio": mine / theirs,
        "unit": f"requests a second with {num_callers} callers / of a bare echo",
        "against": "FastAPI and uvicorn that give back the request",
        "runs": turns,
        "requests_a_second": mine,
        "requests_a_second_against": theirs,
    }


def _refuse_failures(calls: Calls) -> None:
    if calls.num_failed:
        raise RunError(f"requests failed, so there is nothing to compare: {calls.told_statuses()}")


def _switch(ours: int, fast: bool) -> dict[str, Any]:
    num_switches = 20

    async def switching() -> None:
        _, loaded = await call_once(ours, "/v1/versions/load", {"run": "second"})
        versions = [loaded["version"], loaded["current"]]
        for number in range(num_switches):
            wanted = {"version": versions[number % 2]}
            status, _ = await call_once(ours, "/v1/versions/switch", wanted)
            if status != 200:
                raise RunError(f"a switch failed with {status}")
            for ahead in range(8):
                await call_once(ours, "/v1/predict", _request(ahead))

    calls = call_together(
        ours, num_callers=16, seconds=3.0 if fast else 15.0, content=_request, between=switching
    )
    return {
        "case": "switch",
        "ratio": float(calls.num_failed),
        "unit": f"failed requests during {num_switches} switches of version, 16 callers",
        "against": f"{len(calls.seconds)} requests",
        "runs": num_switches,
        "statuses": calls.told_statuses(),
    }
