"""Far more parties than an integer has bits: in one process, whether blocks are missing or not."""

from __future__ import annotations

import numpy as np
import pandas as pd

import colonnade
from colonnade.run.result import Result

IDS = [f"s{number:02}" for number in range(24)]


def table_of(num_rows: int, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame({"x": draw.normal(size=num_rows)}, index=IDS[:num_rows])


SMALL = {
    "defaults": {"encoder": {"kind": "linear", "embedding": 1}},
    "label_holder": {"fusion": "linear"},
}


def fitted(blocks: dict[str, pd.DataFrame], method: str) -> Result:
    labels = pd.Series(np.arange(24) % 2, index=IDS)
    return colonnade.fit(
        blocks, labels, method=method, label_holder="p0000", epochs=1, settings=SMALL
    )


def test_a_thousand_parties_train_and_predict_in_one_process() -> None:
    blocks = {f"p{number:04}": table_of(24, number) for number in range(1000)}
    result = fitted(blocks, "splitnn")
    assert result.summary["exchanges"] == 1
    assert len(result.summary["bytes_up"]) == 1000
    assert np.isfinite(result.outputs(blocks).to_numpy()).all()


def test_more_than_62_parties_may_differ_in_what_they_have() -> None:
    blocks = {f"p{number:04}": table_of(24, number) for number in range(70)}
    blocks["p0069"] = blocks["p0069"].iloc[::2]
    result = fitted(blocks, "plug")
    found = result.summary["presence"]
    assert [(len(item["parties"]), item["size"]) for item in found["by_set"]] == [
        (69, 69),
        (70, 70),
    ]
    assert result.answer(blocks)["blocks"].map(len).tolist() == [70, 69] * 12
