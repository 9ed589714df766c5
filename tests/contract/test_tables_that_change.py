"""Tables change after a training: what docs/life-of-a-model.md says of each change is so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from agents import hub_of
from colonnade.core.errors import ColonnadeError
from colonnade.federate.prediction_files import predict_over
from colonnade.federate.training import train_over
from colonnade.run.spec import read_spec
from e2e.organisations import HOLDER, PARTIES, Organisations

Change = Callable[[pd.DataFrame], pd.DataFrame]


class World:
    """A trained run whose tables a test changes."""

    def __init__(self, place: Path) -> None:
        self.organisations = partial(Organisations, place, nursery=None, exchanges=3)()
        path = self.path("shop")
        table = pd.read_csv(path)
        table["kind"] = np.where(np.arange(len(table)) % 2, "a", "b")
        table.to_csv(path, index=False)
        self.train()
        tables = {name: pd.read_csv(self.path(name)) for name in (HOLDER, *PARTIES)}
        common = set.intersection(*(set(item["id"]) for item in tables.values()))
        self.ids = sorted(common)
        self.before = self.predict()

    def path(self, name: str) -> Path:
        return self.organisations.root / f"{name}.csv"

    def change(self, name: str, how: Change) -> None:
        how(pd.read_csv(self.path(name))).to_csv(self.path(name), index=False)

    def train(self, *, run: str = "run", resume: bool = False) -> dict[str, Any]:
        with hub_of(self.organisations) as hub:
            return train_over(
                hub,
                read_spec(self.organisations.config),
                HOLDER,
                self.organisations.root / run,
                resume=resume,
                alignments=self.organisations.federation / "alignments",
            )

    def predict(self) -> pd.DataFrame:
        file = self.organisations.root / "ids.csv"
        pd.DataFrame({"id": self.ids}).to_csv(file, index=False)
        with hub_of(self.organisations) as hub:
            return predict_over(
                hub,
                self.organisations.federation,
                self.organisations.run,
                file,
                self.organisations.root / "answers.csv",
            )

    def refuses_to_resume(self, *words: str) -> None:
        with pytest.raises(ColonnadeError) as error:
            self.train(resume=True)
        assert all(word in str(error.value) for word in words), str(error.value)

    def confidence(self) -> list[float]:
        found: list[float] = self.predict()["confidence"].tolist()
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_rows_added_or_in_another_order(world: World) -> None:
    def more(table: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([table.iloc[:1].assign(id="somebody"), table.iloc[::-1]])

    world.change("shop", more)
    world.refuses_to_resume("shop", "not the one that was aligned")
    # Batches are those of the request, so the answers are the same to the bit.
    assert world.confidence() == world.before["confidence"].tolist()
    assert world.train(run="again")["exchanges"] == 3


def test_rows_deleted(world: World) -> None:
    gone = world.ids[0]
    world.change("shop", lambda table: table[table["id"] != gone])
    world.refuses_to_resume("shop", "not the one that was aligned")
    answers = world.predict()
    assert pd.isna(answers.loc[gone, "defaulted"])
    assert answers["defaulted"].isna().sum() == 1
    assert world.train(run="again")["exchanges"] == 3


def test_values_changed(world: World) -> None:
    world.change("shop", lambda table: table.assign(shop_0=table["shop_0"] + 1.0))
    world.refuses_to_resume("shop", "its table")
    assert world.confidence() != world.before["confidence"].tolist()


def test_a_column_renamed(world: World) -> None:
    world.change("shop", lambda table: table.rename(columns={"shop_0": "income"}))
    world.refuses_to_resume("shop")
    with pytest.raises(ColonnadeError, match="shop_0"):
        world.predict()
    assert world.train(run="again")["exchanges"] == 3


def test_a_column_retyped(world: World) -> None:
    world.change("shop", lambda table: table.assign(shop_0="many"))
    world.refuses_to_resume("shop")
    with pytest.raises(ColonnadeError, match="shop_0"):
        world.predict()


def test_a_new_column(world: World) -> None:
    world.change("shop", lambda table: table.assign(extra=np.arange(len(table)) % 3.0))
    world.refuses_to_resume("shop", "its table")
    assert world.confidence() == world.before["confidence"].tolist()
    assert world.train(run="again")["exchanges"] == 3


def test_a_new_level(world: World) -> None:
    world.change("shop", lambda table: table.assign(kind="c"))
    world.refuses_to_resume("shop")
    # Unknown to the preparation: neither "a" nor "b".
    assert world.confidence() != world.before["confidence"].tolist()


def test_a_new_class(world: World) -> None:
    def third(table: pd.DataFrame) -> pd.DataFrame:
        table.loc[:5, "defaulted"] = "perhaps"
        return table

    world.change(HOLDER, third)
    world.refuses_to_resume("label_holder.task", "differs")
    assert world.train(run="again")["task"] == "multiclass"
    assert set(world.predict()["defaulted"]) <= {"yes", "no"}
