"""One result, many threads: every answer is that of asking alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade
from tolerant import frames, labels_of

BLOCKS = frames(240)
LABELS = labels_of(BLOCKS)
NUM_THREADS, NUM_CALLS = 8, 240
NETWORK = {"kind": "mlp", "hidden": [8], "embedding": 4, "dropout": 0.3}
MEAN = {"fusion": {"kind": "mlp", "hidden": [6], "combine": "mean"}}


def fitted(method: Any = "splitnn", **settings: Any) -> colonnade.Result:
    defaults = {"encoder": NETWORK, **settings.pop("defaults", {})}
    given = {"defaults": defaults, "label_holder": MEAN, **settings}
    return colonnade.fit(
        BLOCKS, LABELS, method=method, label_holder="bank", epochs=2, settings=given
    )


def questions() -> list[dict[str, pd.DataFrame]]:
    """Different rows every time, of different number and order."""
    draw = np.random.default_rng(3)
    chosen = [draw.permutation(240)[: draw.integers(1, 60)] for _ in range(NUM_CALLS)]
    return [{name: block.iloc[rows] for name, block in BLOCKS.items()} for rows in chosen]


def asked_at_once(result: colonnade.Result) -> list[pd.DataFrame]:
    """All questions from eight threads that begin together."""
    start = threading.Barrier(NUM_THREADS)
    asked = questions()

    def ask(first: int) -> list[tuple[int, pd.DataFrame]]:
        start.wait()
        return [
            (number, result.outputs(asked[number]))
            for number in range(first, NUM_CALLS, NUM_THREADS)
        ]

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = dict(pair for pairs in pool.map(ask, range(NUM_THREADS)) for pair in pairs)
    return [found[number] for number in range(NUM_CALLS)]


@pytest.mark.parametrize("method", ["splitnn", "laser", "easter", "ensemble", "centralized"])
def test_every_answer_is_that_of_asking_alone(method: str) -> None:
    result = fitted(method)
    alone = [result.outputs(item) for item in questions()]
    for one, other in zip(alone, asked_at_once(result), strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_with_batch_norm_nothing_moves() -> None:
    """Evaluation mode holds for as long as anybody predicts."""
    network = {"encoder": {"kind": "resnet18", "widths": [4, 4, 8, 8]}}
    pictures = {
        name: np.random.default_rng(at).normal(size=(40, 1, 8, 8)).astype(np.float32)
        for at, name in enumerate(("left", "right"))
    }
    result = colonnade.fit(
        pictures,
        np.arange(40) % 2,
        ids=np.arange(40),
        label_holder="left",
        epochs=1,
        settings={"defaults": network},
    )
    parties = result._federation.fabric.parties  # type: ignore[attr-defined]
    before = {
        name: {key: value.clone() for key, value in party.model.named_buffers()}
        for name, party in parties.items()
    }
    blocks = {
        name: colonnade.data.blocks.make_block(name, item, ids=np.arange(40))
        for name, item in pictures.items()
    }
    expected = result.outputs(blocks)
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for found in pool.map(lambda _: result.outputs(blocks), range(32)):
            pd.testing.assert_frame_equal(found, expected, check_exact=True)
    for name, party in parties.items():
        assert not party.model.training  # a result only predicts
        for key, value in party.model.named_buffers():
            assert value.equal(before[name][key]), (name, key)


def test_blinded_sums_from_many_threads_are_right() -> None:
    result = fitted(defaults={"protect": ["blind"]})
    alone = [result.outputs(item) for item in questions()]
    for one, other in zip(alone, asked_at_once(result), strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_under_noise_every_prediction_is_charged_once() -> None:
    result = fitted(defaults={"protect": [{"kind": "perturb", "noise": 4.0}]})
    parties = result._federation.fabric.parties  # type: ignore[attr-defined]
    door = parties["shop"].door
    before = door.state()["num_inferences"]
    asked_at_once(result)
    assert door.state()["num_inferences"] == before + NUM_CALLS
    # All predictions are counted as if of the same samples.
    assert door.spent()["releases"] >= NUM_CALLS
