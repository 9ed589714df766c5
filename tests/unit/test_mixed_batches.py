"""Batches that mix observed sets: how many exchanges, and protections of what a party has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import colonnade
from colonnade.core.party import Party
from colonnade.methods import METHODS
from tolerant import frames, labels_of

TOLERANT = [name for name, item in METHODS.items() if item.info.tolerates_missing]
WHOLE = {"validation": 0.0, "test": 0.0}


def fitted(method: Any, protect: list[dict[str, Any]], **changes: Any) -> colonnade.Result:
    """A run over blocks of which a third is missing at random."""
    blocks = frames(num_samples=200, num_parties=4)
    draw = np.random.default_rng(3)
    some = {name: block[draw.random(len(block)) > 0.3] for name, block in blocks.items()}
    return colonnade.fit(
        some,
        labels_of(blocks),
        method=method,
        label_holder="bank",
        epochs=3,
        batch_size=16,
        settings={
            "data": {"split": WHOLE},
            "defaults": {
                "encoder": {"kind": "mlp", "hidden": [6], "embedding": 6},
                "protect": protect,
            },
            "label_holder": {"fusion": {"kind": "mlp", "combine": "mean"}},
            **changes,
        },
    )


def protected(result: colonnade.Result) -> list[Party]:
    """Everybody but the party at the label holder's side, from which nothing leaves."""
    parties = result._federation.fabric.parties
    return [party for name, party in parties.items() if name != "bank"]


@pytest.mark.parametrize("method", [name for name in TOLERANT if name not in ("alone", "standard")])
def test_an_epoch_has_as_many_exchanges_as_with_all_blocks_there(method: str) -> None:
    result = fitted(method, [])
    num_samples = result.summary["num_samples"]["train"]
    assert result.summary["exchanges"] == 3 * math.ceil(num_samples / 16)


@pytest.mark.parametrize("method", ["laser", "local", "plug"])
def test_noise_is_accounted_for_the_rows_that_a_party_has(method: str) -> None:
    """Once an epoch for every own sample, and never for one that is elsewhere."""
    settings = {"name": method, "dropout": 0.0} if method == "plug" else method
    result = fitted(settings, [{"kind": "perturb", "noise": 1.0, "clip": 1.0}])
    for party in protected(result):
        part = party.parts["train"]
        assert part.rows is not None
        state = party.door.state()["protections"]["perturb"]["account"]
        counts = state["counts"]["train"]
        assert counts[part.rows >= 0].tolist() == [3] * int((part.rows >= 0).sum())
        assert not counts[part.rows < 0].any()
        assert party.door.spent()["releases"] == 3


def test_compression_owes_only_what_it_left_out_of_own_rows() -> None:
    result = fitted("laser", [{"kind": "top_k", "keep": 0.4, "feedback": True}])
    for party in protected(result):
        part = party.parts["train"]
        owed = party.door.state()["protections"]["top_k"]["left_out"]
        assert owed[part.rows >= 0].any()
        assert not owed[part.rows < 0].any()


def test_noise_and_missing_blocks_still_predict_for_every_sample() -> None:
    result = fitted("laser", [{"kind": "perturb", "noise": 0.1, "clip": 1.0}])
    blocks = frames(num_samples=200, num_parties=4)
    fewer = {**blocks, "telco": blocks["telco"].iloc[:50], "shop": blocks["shop"].iloc[100:]}
    assert len(result.predict(fewer)) == 200
    assert np.isfinite(result.outputs(fewer).to_numpy()).all()
