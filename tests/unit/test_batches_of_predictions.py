"""A prediction in one process has larger batches than between organisations; the same answers."""

import numpy as np
import pandas as pd
import pytest
import torch

import colonnade
from colonnade.run import assembly
from colonnade.run.party_building import rows_at_once

_NUM_ROWS = 5000


def _table(name: str, seed: int) -> pd.DataFrame:
    numbers = np.random.default_rng(seed).normal(size=(_NUM_ROWS, 3))
    ids = pd.Index([f"id{row:05d}" for row in range(_NUM_ROWS)], name="id")
    return pd.DataFrame(numbers, ids, columns=[f"{name}_{place}" for place in range(3)])


@pytest.mark.parametrize(
    ("shapes", "wanted"),
    [
        ([(5000, 16), (5000, 3)], 4096),
        ([(5000, 128)], 2048),
        ([(5000, 3, 32, 32), (5000, 2)], 1024),
        ([(0, 9000), (5000, 2)], 4096),
        ([], 4096),
    ],
)
def test_the_widest_rows_say_how_many_go_together(
    shapes: list[tuple[int, ...]], wanted: int
) -> None:
    features = {f"party_{place}": torch.empty(shape) for place, shape in enumerate(shapes)}
    assert rows_at_once(features) == wanted


@pytest.mark.parametrize("method", ["splitnn", "laser"])
def test_large_batches_give_the_answers_of_small_ones(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = {"bank": _table("bank", 1), "shop": _table("shop", 2)}
    label = (blocks["bank"]["bank_0"] + blocks["shop"]["shop_1"] > 0).astype(int).rename("label")
    some = label.index[:400]
    result = colonnade.fit(
        {name: block.loc[some] for name, block in blocks.items()},
        label.loc[some],
        method=method,
        label_holder="bank",
        epochs=1,
    )
    if method == "laser":
        blocks["shop"] = blocks["shop"].iloc[::2]
    large = result.outputs(blocks)
    monkeypatch.setattr(assembly, "rows_at_once", lambda features: 1024)
    small = result.outputs(blocks)
    assert large.index.equals(small.index)
    np.testing.assert_allclose(large, small, rtol=1e-5, atol=1e-6)
