"""Free text and categories of very many levels: a fixed number of columns, learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade
from colonnade.core.errors import ColonnadeError, ConfigError, DataError
from colonnade.data.hashed_columns import hashed_categories, hashed_words
from colonnade.data.prepare import PrepareSpec
from colonnade.run.result import Result
from messages import says

COUNT = 200
DRAW = np.random.default_rng(1)
IDS = [f"u{number}" for number in range(COUNT)]
ANGRY = DRAW.random(COUNT) < 0.5
WORDS = np.array(["tea", "bus", "rain", "tree", "song", "lamp", "road", "cake"])
NOTES = [
    " ".join([*DRAW.choice(WORDS, 6), "Terrible!" if angry else "lovely", f"nr {number}"])
    for number, angry in enumerate(ANGRY)
]
SHOP = pd.DataFrame({"note": NOTES}, index=IDS)
BANK = pd.DataFrame({"age": DRAW.normal(size=COUNT)}, index=IDS)
LABELS = pd.Series(ANGRY, index=IDS, name="angry")


def trained(shop: pd.DataFrame, **prepare: Any) -> Result:
    return colonnade.fit(
        {"bank": BANK, "shop": shop},
        LABELS,
        label_holder="bank",
        epochs=25,
        batch_size=16,
        settings={
            "party": {"shop": {"prepare": prepare}},
            "defaults": {"optimizer": {"name": "adam", "lr": 0.01}},
        },
    )


def test_free_text_is_learned_from(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=says("different text", "party.shop.prepare.text_columns")):
        trained(SHOP)
    result = trained(SHOP, text_columns=["note"], hash_width=64)
    assert result.evaluate()["accuracy"] > 0.9
    new = pd.DataFrame({"note": ["a TERRIBLE zebra", "lovely, lovely"]}, index=["a", "b"])
    blocks = {"bank": pd.DataFrame({"age": [0.0, 0.0]}, index=["a", "b"]), "shop": new}
    found = result.predict_proba(blocks)
    assert found.loc["a", True] > found.loc["b", True]
    again = Result.load(result.save(tmp_path / "model"))
    assert again.predict_proba(blocks).equals(found)
    # Nothing of the words is kept.
    kept = (tmp_path / "model" / "parties" / "shop" / "preparation.json").read_text()
    assert "lovely" not in kept
    assert result._blueprint.preparations["shop"].columns == ("note",)  # type: ignore[union-attr]


def test_very_many_categories_take_no_column_each() -> None:
    code = np.where(ANGRY ^ (DRAW.random(COUNT) < 0.1), "bad", "good").astype(object)
    rare = np.array([f"branch {number}" for number in DRAW.integers(0, 10**5, COUNT)])
    shop = pd.DataFrame({"branch": rare, "kind": code}, index=IDS)
    result = trained(shop.assign(b=BANK["age"] ** 2), hashed_columns=["branch"], hash_width=16)
    fitted: Any = result._blueprint.preparations["shop"]
    assert fitted.shape == (1 + 16 + 2,)
    new = shop.assign(b=1.0, branch="never seen")
    assert result.predict({"bank": BANK, "shop": new}).notna().all()
    embedded = trained(shop, hashed_columns=["branch"], categorical="embedding", hash_width=8)
    assert embedded._blueprint.preparations["shop"].shape == (8 + 1,)


def test_hashing_by_itself() -> None:
    levels = np.array([f"level {number}" for number in range(10**5)])
    found = hashed_categories(levels[:1000], 32)
    assert found.shape == (1000, 32)
    assert set(np.abs(found).sum(axis=1)) == {1.0}
    assert len(np.unique(found, axis=0)) == 64
    words = hashed_words(pd.Series(["Tea and cake", "cake AND tea", "", None, "rain"]), 64)
    assert np.array_equal(words[0], words[1])
    assert not words[2:4].any()
    assert np.linalg.norm(words[4]) == 1.0


def test_what_can_not_be_hashed_is_told() -> None:
    with pytest.raises(ConfigError, match=says("hash_width", "at least 2")):
        PrepareSpec(hash_width=1)
    with pytest.raises(ConfigError, match=says("'note' is named twice")):
        PrepareSpec(text_columns=("note",), hashed_columns=("note",))
    with pytest.raises(ColonnadeError, match=says("'shop'", "noet")):
        trained(SHOP, text_columns=["noet"])
    lacking = SHOP.assign(note=SHOP["note"].where(~ANGRY))
    with pytest.raises(DataError, match=says("'note'", "missing values")):
        trained(lacking, text_columns=["note"])
    trained(lacking, text_columns=["note"], missing="mean", hash_width=16)
