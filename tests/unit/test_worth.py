"""What each party is worth: axioms, the slow obvious way, sampling, intervals, a run's value."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.core.errors import ConfigError, DataError, StorageError
from colonnade.quality.worth import (
    exact_shapley,
    mean_ratings,
    r2_ratings,
    sampled_orders,
    sets_of_orders,
    worth_of,
)
from colonnade.run.engine import reopen_with_data
from colonnade.run.engine import train as train_run
from colonnade.run.party_worth import measure_worth, read_costs
from colonnade.run.spec import parse_spec
from messages import says

games = st.integers(1, 5).flatmap(
    lambda parties: st.lists(
        st.floats(-10, 10, allow_nan=False), min_size=2**parties, max_size=2**parties
    )
)


def by_all_orders(values: list[float]) -> list[float]:
    """Shapley's definition: the mean gain over every order in which parties come together."""
    num_parties = len(values).bit_length() - 1
    gains = [0.0] * num_parties
    for order in itertools.permutations(range(num_parties)):
        here = 0
        for party in order:
            gains[party] += values[here | 1 << party] - values[here]
            here |= 1 << party
    return [gain / math.factorial(num_parties) for gain in gains]


@given(values=games)
def test_exact_values_are_the_mean_over_every_order(values: list[float]) -> None:
    found = exact_shapley(np.array(values), len(values).bit_length() - 1)
    assert found == pytest.approx(by_all_orders(values), abs=1e-9)


@given(values=games)
def test_worths_add_up_to_what_all_have_more_than_none(values: list[float]) -> None:
    found = exact_shapley(np.array(values), len(values).bit_length() - 1)
    assert found.sum() == pytest.approx(values[-1] - values[0], abs=1e-9)


@given(values=games)
def test_parties_that_add_the_same_are_worth_the_same(values: list[float]) -> None:
    """The first two parties made alike: a set's value depends on how many of them are in it."""
    num_parties = len(values).bit_length() - 1
    if num_parties < 2:
        return
    alike = [values[number if number & 3 != 2 else number ^ 3] for number in range(len(values))]
    found = exact_shapley(np.array(alike), num_parties)
    assert found[0] == pytest.approx(found[1], abs=1e-9)


@given(values=games)
def test_a_party_that_adds_nothing_is_worth_nothing(values: list[float]) -> None:
    same = [values[number & ~1] for number in range(len(values))]
    assert exact_shapley(np.array(same), len(values).bit_length() - 1)[0] == 0


@given(values=games, other=games, factor=st.floats(-3, 3))
def test_worths_are_linear_in_the_value(
    values: list[float], other: list[float], factor: float
) -> None:
    if len(values) != len(other):
        return
    parties = len(values).bit_length() - 1
    both = np.array(values) + factor * np.array(other)
    found = exact_shapley(both, parties)
    first, second = (exact_shapley(np.array(item), parties) for item in (values, other))
    assert found == pytest.approx(first + factor * second, abs=1e-8)


def test_values_of_other_sets_are_refused() -> None:
    with pytest.raises(ConfigError, match=says(7, 3)):
        exact_shapley(np.zeros(7), 3)


# Ratings of samples


def ratings_of(num_parties: int, num_samples: int, seed: int) -> dict[int, Any]:
    """Each party speaks for some samples; a sample is right if one of the set speaks for it."""
    draw = np.random.default_rng(seed)
    speaks = draw.random((num_parties, num_samples)) < np.linspace(0.1, 0.5, num_parties)[:, None]
    return {
        number: np.any(
            [speaks[k] for k in range(num_parties) if number >> k & 1] or [speaks[0] & False],
            axis=0,
        ).astype(float)
        for number in range(1 << num_parties)
    }


def test_values_are_those_of_the_samples_and_lie_in_their_intervals() -> None:
    by_set = ratings_of(3, 400, 1)
    found = worth_of(("a", "b", "c"), mean_ratings(by_set), seed=5)
    means = np.array([by_set[number].mean() for number in range(8)])
    assert [item.value for item in found.parties] == pytest.approx(exact_shapley(means, 3))
    assert found.total == pytest.approx(means[-1])
    assert found.nothing == 0
    assert found.num_orders == 0
    for item in found.parties:
        assert item.low < item.value < item.high
    assert found == worth_of(("a", "b", "c"), mean_ratings(by_set), seed=5)


def test_an_interval_holds_what_the_whole_population_says() -> None:
    """Of 60 samples of a population 54 or more should have its worth in their 95 % interval."""
    whole = ratings_of(2, 100_000, 3)
    exact = worth_of(("a", "b"), mean_ratings(whole), num_replicates=2).parties[0].value
    draw = np.random.default_rng(0)
    inside = 0
    for number in range(60):
        chosen = draw.integers(0, 100_000, 300)
        some = mean_ratings({key: item[chosen] for key, item in whole.items()})
        item = worth_of(("a", "b"), some, seed=number).parties[0]
        inside += item.low <= exact <= item.high
    assert inside >= 54


@pytest.mark.parametrize("seed", range(5))
def test_sampled_orders_come_to_the_exact_values_within_their_interval(seed: int) -> None:
    by_set = ratings_of(6, 500, seed)
    names = tuple("abcdef")
    exact = worth_of(names, mean_ratings(by_set), seed=seed)
    errors = []
    for num_orders in (20, 400):
        orders = sampled_orders(6, num_orders, seed)
        sampled = worth_of(names, mean_ratings(by_set), orders=orders, seed=seed)
        assert sampled.num_orders == num_orders
        pairs = list(zip(sampled.parties, exact.parties, strict=True))
        assert all(ours.low <= theirs.value <= ours.high for ours, theirs in pairs)
        errors.append(max(abs(ours.value - theirs.value) for ours, theirs in pairs))
        # Whatever orders were drawn: the worths add up.
        total = sum(item.value for item in sampled.parties)
        assert total == pytest.approx(sampled.total - sampled.nothing)
    assert errors[1] < errors[0]


def test_all_orders_give_the_exact_values() -> None:
    by_set = ratings_of(4, 50, 2)
    orders = np.array(list(itertools.permutations(range(4))))
    sampled = worth_of(tuple("abcd"), mean_ratings(by_set), orders=orders)
    exact = worth_of(tuple("abcd"), mean_ratings(by_set))
    for ours, theirs in zip(sampled.parties, exact.parties, strict=True):
        assert ours.value == pytest.approx(theirs.value, abs=1e-12)


def test_orders_come_with_their_reverse_and_go_from_none_to_all() -> None:
    orders = sampled_orders(15, 6, 1)
    assert (orders[1] == orders[0][::-1]).all()
    sets = sets_of_orders(orders)
    assert sets.shape == (6, 16)
    assert set(sets[:, 0]) == {0}
    assert set(sets[:, -1]) == {2**15 - 1}


@settings(max_examples=20)
@given(seed=st.integers(0, 100))
def test_r2_is_that_of_the_chosen_samples(seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth, said = draw.normal(3.0, 2.0, 30), draw.normal(3.0, 2.0, 30)
    counts = draw.multinomial(30, np.full(30, 1 / 30))
    chosen = np.repeat(np.arange(30), counts)
    ratings = r2_ratings({0: (said - truth) ** 2}, truth)
    found = ratings.values([0], counts[None].astype(float))[0, 0]
    own = truth[chosen]
    wanted = 1 - ((said[chosen] - own) ** 2).sum() / ((own - own.mean()) ** 2).sum()
    assert found == pytest.approx(wanted)


# A run


SETTINGS: dict[str, Any] = {
    "method": "laser",
    "data": {"dataset": "breast_cancer"},
    "defaults": {"encoder": {"kind": "mlp", "hidden": [8], "embedding": 4}},
    "stop": {"epochs": 5},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("worth") / "run"
    train_run(parse_spec(SETTINGS), directory=place)
    return place


def test_a_runs_worth_is_its_quality_by_every_set(run: Path) -> None:
    """Against predictions of a loaded model from some blocks only, set by set."""
    blueprint, data, federation = reopen_with_data(run)
    found = measure_worth(blueprint, data, federation)
    names = blueprint.participants
    truth = data.labels["test"]
    values = []
    for number in range(8):
        some = [name for place, name in enumerate(names) if number >> place & 1]
        if not some:
            classes, counts = np.unique(data.labels["train"], return_counts=True)
            values.append(float(np.mean(truth == classes[counts.argmax()])))
            continue
        rows = data.roll.samples["test"]
        blocks = {name: data.features[name][data.rows[name][rows]] for name in some}
        outputs = []
        for name in some:
            party = federation.fabric.parties[name]
            party.model.eval()
            average = sum(
                federation.fabric.parties[other].model.eval()["encoder"](blocks[other])
                for other in some
            ) / len(some)
            outputs.append(party.model["head"](average))
        decided = blueprint.task.decide((sum(outputs) / len(outputs)).detach())
        values.append(float(np.mean(decided == truth)))
    assert found["num_sets"] == 8
    assert found["metric"] == "accuracy"
    assert [item["party"] for item in found["parties"]] == list(names)
    expected = exact_shapley(np.array(values), 3)
    assert [item["value"] for item in found["parties"]] == pytest.approx(expected, abs=1e-9)
    assert found["total"] == pytest.approx(values[-1])
    assert found["nothing"] == pytest.approx(values[0])


def test_the_command_writes_it_into_the_run_and_the_report_shows_it(
    run: Path, tmp_path: Path
) -> None:
    classes = reopen_with_data(run)[0].task.classes
    costs = tmp_path / "costs.csv"
    zero, one = map(str, classes)
    costs.write_text(f"truth,{zero},{one}\n{zero},0,1\n{one},10,-1\n")
    found = CliRunner().invoke(app, ["worth", str(run), "--costs", str(costs)])
    assert found.exit_code == 0, found.output
    written = json.loads((run / "worth.json").read_text())
    assert "95 %" in found.output
    assert len(written["by_costs"]["parties"]) == 3
    total = sum(item["value"] for item in written["by_costs"]["parties"])
    by_costs = written["by_costs"]
    assert total == pytest.approx(by_costs["total"] - by_costs["nothing"])
    # Accuracy is the gain of costs that are 0 for a right answer and 1 for a wrong one, plus 1.
    costs.write_text(f"truth,{one},{zero}\n{zero},1,0\n{one},0,1\n")
    said = CliRunner().invoke(app, ["worth", str(run), "--costs", str(costs), "--json"])
    plain = json.loads(said.output)
    for ours, theirs in zip(plain["by_costs"]["parties"], plain["parties"], strict=True):
        assert ours["value"] == pytest.approx(theirs["value"])
    page = tmp_path / "report.html"
    assert CliRunner().invoke(app, ["report", str(run), "--out", str(page)]).exit_code == 0
    shown = page.read_text(encoding="utf-8")
    assert "What each party is worth" in shown
    assert "by the given costs" in shown


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("truth,a\nb,1\n", ["row", "classes"]),
        ("truth,x,y\nx,1,nothing\ny,0,0\n", ["finite number"]),
        ("", ["costs"]),
    ],
    ids=["other classes", "no number", "empty"],
)
def test_costs_that_do_not_fit_are_refused(
    run: Path, tmp_path: Path, content: str, words: list[str]
) -> None:
    file = tmp_path / "costs.csv"
    file.write_text(content)
    with pytest.raises(DataError, match=says(*words)):
        measure_worth(*reopen_with_data(run), costs=read_costs(file))


def test_bad_requests_are_refused_with_the_remedy(run: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        read_costs(tmp_path / "none.csv")
    with pytest.raises(DataError, match=says("'extra'", "test", "train")):
        measure_worth(*reopen_with_data(run), part="extra")
    for changes, words in (
        ({"method": "splitnn"}, ["'splitnn'", "every block", "laser"]),
        ({"defaults": {"protect": [{"kind": "perturb", "noise": 1.0, "clip": 1.0}]}}, ["noise"]),
    ):
        place = tmp_path / words[0].strip("'")
        train_run(parse_spec({**SETTINGS, **changes, "stop": {"exchanges": 2}}), directory=place)
        with pytest.raises(ConfigError, match=says(*words)):
            measure_worth(*reopen_with_data(place))


def test_missing_blocks_and_numbers(tmp_path: Path) -> None:
    """A sample of which a set has no block gets the constant; a regression is valued by R²."""
    place = tmp_path / "diabetes"
    spec = {
        **SETTINGS,
        "data": {
            "dataset": "diabetes",
            "presence": {"inference": {"kind": "uniform", "missing": 0.5}},
        },
    }
    train_run(parse_spec(spec), directory=place)
    found = measure_worth(*reopen_with_data(place))
    assert found["metric"] == "r2"
    total = sum(item["value"] for item in found["parties"])
    assert total == pytest.approx(found["total"] - found["nothing"])
    assert found["nothing"] <= 0


def test_a_table_of_costs_is_read_as_text_classes(tmp_path: Path) -> None:
    file = tmp_path / "costs.csv"
    file.write_text("truth,0,1\n0,0,2\n1,5,0\n")
    assert read_costs(file).equals(
        pd.DataFrame([[0, 2], [5, 0]], index=["0", "1"], columns=["0", "1"])
    )
