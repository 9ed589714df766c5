"""Methods of one's own: known by name once registered, and as good as those of the house."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade
from colonnade import methods
from colonnade.core.errors import ConfigError
from colonnade.core.method import Method
from colonnade.methods import METHODS, register
from colonnade.methods.splitnn import SplitNN
from colonnade.parts.split_step import predict_by_fusion
from messages import says

pytestmark = pytest.mark.usefixtures("own_methods")


def make_twin(name: str = "twin") -> type[Method]:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Twin(SplitNN):
        info = dataclasses.replace(SplitNN.info, name=name)
        every: int = 2

    return Twin


def data() -> tuple[dict[str, pd.DataFrame], pd.Series]:
    draw = np.random.default_rng(0)
    ids = [f"s{number}" for number in range(60)]
    blocks = {
        name: pd.DataFrame(draw.normal(size=(60, 2)), index=ids, columns=["a", "b"])
        for name in ("bank", "shop", "telco")
    }
    return blocks, (blocks["shop"]["a"] + blocks["telco"]["b"] > 0).astype(int)


def fit(**settings: Any) -> colonnade.Result:
    blocks, labels = data()
    return colonnade.fit(blocks, labels, label_holder="bank", epochs=2, **settings)


@pytest.mark.parametrize("protect", [[], ["blind"], [{"kind": "top_k", "keep": 0.5}]], ids=str)
def test_it_trains_as_a_method_of_the_house_would(protect: list[Any], tmp_path: Path) -> None:
    twin = register(make_twin())
    settings = {
        "defaults": {"protect": protect},
        "label_holder": {"fusion": {"kind": "mlp", "hidden": [4], "combine": "mean"}},
    }
    blocks, _ = data()
    expected = fit(method="splitnn", settings=settings).outputs(blocks)
    for place, method in enumerate(("twin", {"name": "twin", "every": 3}, twin())):
        result = fit(method=method, settings=settings, out=tmp_path / str(place))
        np.testing.assert_array_equal(result.outputs(blocks), expected)
        loaded = colonnade.Result.load(tmp_path / str(place))
        np.testing.assert_array_equal(loaded.outputs(blocks), expected)


def test_without_it_a_run_can_t_be_loaded(tmp_path: Path) -> None:
    register(make_twin())
    fit(method="twin", out=tmp_path / "run")
    del methods._METHODS["twin"]
    with pytest.raises(ConfigError, match=says("method.name", "'twin'")):
        colonnade.Result.load(tmp_path / "run")


def test_the_same_class_again_takes_its_own_place() -> None:
    first, second = register(make_twin()), register(make_twin())
    assert first is not second
    assert METHODS["twin"] is second


def test_a_name_that_is_taken() -> None:
    with pytest.raises(
        ConfigError, match=says("'easter'", "colonnade.methods.easter", "info.name")
    ):
        register(make_twin("easter"))


def test_what_is_no_method_yet() -> None:
    class Plain(SplitNN):
        """Not a dataclass of its own; the settings of its parent would be taken for its own."""

        every = 2

    class Unfinished(Method):
        pass

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Nameless(Method):
        predict = predict_by_fusion

        async def exchange(self, *_: Any) -> None:
            pass

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mute(Method):
        async def exchange(self, *_: Any) -> None:
            pass

    for method, complaint in (
        (Plain, "dataclass"),
        (Unfinished, "exchange, predict"),
        (Mute, "predict"),
        (Nameless, "'info'"),
    ):
        with pytest.raises(ConfigError, match=says(method.__qualname__, complaint)):
            register(method)
