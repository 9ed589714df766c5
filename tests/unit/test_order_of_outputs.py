"""Outputs come back in the order of the samples asked for, whatever blocks each of them has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade
from colonnade.run.result import Result
from tolerant import frames, labels_of

# Which blocks a sample has; they come in no simple order.
PATTERNS = (("bank",), ("bank", "shop", "telco"), ("telco",), ("shop", "telco"), ("shop",))


@pytest.fixture(scope="module", params=["laser", "local"])
def result(request: pytest.FixtureRequest) -> Result:
    blocks = frames(200)
    return colonnade.fit(
        blocks, labels_of(blocks), label_holder="bank", method=request.param, epochs=2
    )


def mixed(num_samples: int = 23) -> dict[str, pd.DataFrame]:
    """New samples, each with the blocks of one of the patterns; every party's rows shuffled."""
    whole = frames(num_samples, seed=5)
    draw = np.random.default_rng(1)
    kinds = draw.integers(len(PATTERNS), size=num_samples)
    found = {}
    for name, block in whole.items():
        here = [at for at, kind in enumerate(kinds) if name in PATTERNS[kind]]
        found[name] = block.iloc[draw.permutation(here)]
    return found


def only(blocks: dict[str, pd.DataFrame], sample: Any) -> dict[str, pd.DataFrame]:
    return {name: block.loc[[sample]] for name, block in blocks.items() if sample in block.index}


def asked_in_an_order_of_their_own(blocks: dict[str, pd.DataFrame]) -> list[Any]:
    ids = sorted(set().union(*(block.index for block in blocks.values())))
    order = np.random.default_rng(2).permutation(len(ids))
    # No order that a permutation and its inverse would both restore.
    assert not np.array_equal(order[order], np.arange(len(ids)))
    return [ids[place] for place in order]


def test_of_samples_with_different_blocks(result: Result) -> None:
    blocks = mixed()
    together = result.answer(blocks, ids=asked_in_an_order_of_their_own(blocks))
    assert together["blocks"].nunique() >= 3
    raw = result.outputs(blocks)
    assert len(raw) == len(together) == 23
    for sample in together.index:
        alone = only(blocks, sample)
        expected = result.answer(alone).loc[sample]
        assert together.loc[sample, "blocks"] == expected["blocks"]
        assert together.loc[sample, "bought"] == expected["bought"]
        assert together.loc[sample, "confidence"] == pytest.approx(expected["confidence"], abs=1e-6)
        found = result.outputs(alone).loc[sample].to_numpy()
        assert raw.loc[sample].to_numpy() == pytest.approx(found, abs=1e-5)
    # Different enough that another order would show.
    assert raw[0].nunique() == 23


def test_of_every_partys_own_model(result: Result) -> None:
    blocks = frames(9, seed=6)
    for name in result.parties:
        together = result.outputs(blocks, model=name)
        assert together[0].nunique() == 9
        for sample in together.index:
            alone = result.outputs(only(blocks, sample), model=name).loc[sample].to_numpy()
            assert together.loc[sample].to_numpy() == pytest.approx(alone, abs=1e-5)
