"""Blocks that go missing by label or by another block, and the warning that they do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from colonnade.core.errors import ConfigError
from colonnade.data.association import STRONG, presence_and_label
from colonnade.data.dependent_presence import ByColumn, ByLabel
from colonnade.data.drawn_presence import PresenceSpec, draw_presence
from colonnade.methods import register
from colonnade.run.samples import arrange
from colonnade.run.spec import parse_spec
from messages import says
from tolerant import MeanOfObserved, frames, labels_of, sources_of


@pytest.fixture(autouse=True)
def _registered(own_methods: None) -> None:
    register(MeanOfObserved)


def arranged(drawing, kind="binary", seed=0, num_samples=4000):
    blocks = frames(num_samples)
    labels = labels_of(blocks, kind)
    settings = {
        "seed": seed,
        "method": "mean_of_observed",
        "data": {"presence": {"train": drawing}, "split": {"validation": 0.0, "test": 0.1}},
    }
    return arrange(parse_spec(settings), sources_of(blocks, labels)), blocks, labels


def shares(arrangement, chosen):
    """How often each party's block is there, among the training samples that are chosen."""
    roll = arrangement.roll
    here = roll.presence["train"][chosen]
    return dict(zip(roll.names, here.mean(axis=0), strict=True))


def test_blocks_go_missing_by_label():
    drawing = {"kind": "by_label", "classes": {"1": 0.6, "0": 0.1}, "parties": ["telco"]}
    found, _, _ = arranged(drawing)
    truth = found.values[found.samples["train"]]
    ones, zeros = shares(found, truth == 1), shares(found, truth == 0)
    assert ones["telco"] == pytest.approx(0.4, abs=0.03)
    assert zeros["telco"] == pytest.approx(0.9, abs=0.03)
    assert ones["bank"] == zeros["bank"] == 1.0
    again, _, _ = arranged(drawing)
    assert np.array_equal(again.roll.presence["train"], found.roll.presence["train"])
    other, _, _ = arranged(drawing, seed=1)
    assert not np.array_equal(other.roll.presence["train"], found.roll.presence["train"])
    # The test part is drawn by its own settings.
    assert found.roll.is_complete("test")


def test_blocks_go_missing_by_a_number():
    found, _, _ = arranged({"kind": "by_label", "above": 0.5}, kind="regression")
    truth = found.values[found.samples["train"]]
    median = np.median(found.values)
    # Samples that nobody has left are gone: 1 in 8 of those above.
    assert shares(found, truth > median)["bank"] == pytest.approx(0.5 / (1 - 0.125), abs=0.03)
    assert set(shares(found, truth <= median).values()) == {1.0}


def test_blocks_go_missing_by_another_block():
    drawing = {"kind": "by_column", "party": "bank", "column": "bank1", "above": 0.8, "below": 0.2}
    found, blocks, _ = arranged(drawing)
    column = blocks["bank"]["bank1"].sort_index().to_numpy()[found.samples["train"]]
    median = np.median(blocks["bank"]["bank1"])
    high, low = shares(found, column > median), shares(found, column <= median)
    assert high["bank"] == low["bank"] == 1.0
    for name in ("shop", "telco"):
        assert high[name] == pytest.approx(0.2, abs=0.03)
        assert low[name] == pytest.approx(0.8, abs=0.03)


def test_a_party_that_lacks_the_sample_decides_nothing():
    blocks = frames(400)
    labels = labels_of(blocks)
    blocks["bank"] = blocks["bank"].iloc[:200]
    drawing = {"kind": "by_column", "party": "bank", "column": "bank0", "above": 1.0, "below": 1.0}
    settings = {"method": "mean_of_observed", "data": {"presence": {"train": drawing}}}
    roll = arrange(parse_spec(settings), sources_of(blocks, labels)).roll
    bank, others = roll.presence["train"][:, 0], roll.presence["train"][:, 1:]
    assert np.array_equal(others.all(axis=1), ~bank)


@pytest.mark.parametrize(
    ("drawing", "message"),
    [
        (
            {"kind": "by_label", "classes": {"yes": 0.5}},
            says("data.presence", "class 'yes'", "0, 1"),
        ),
        (
            {"kind": "by_label", "classes": {"1": 0.5}, "parties": ["bnak"]},
            says("data.presence", "'bnak'", "'bank'"),
        ),
        ({"kind": "by_label"}, says("data.presence.train.above", "below", "label")),
        (
            {"kind": "by_label", "classes": {"1": 0.5}, "above": 0.1},
            says("data.presence.train.classes", "above", "below"),
        ),
        (
            {"kind": "by_label", "classes": {"1": 1.5}},
            says("data.presence.train.classes.1", "0 to 1", 1.5),
        ),
        (
            {"kind": "by_column", "party": "bnak", "column": "x"},
            says("data.presence", "'bnak'", "'bank'"),
        ),
        (
            {"kind": "by_column", "party": "bank", "column": "x"},
            says("data.presence", "'bank'", "'x'", "bank0"),
        ),
    ],
)
def test_what_makes_no_sense_is_refused(drawing, message):
    with pytest.raises(ConfigError, match=message):
        arranged(drawing, num_samples=100)


@pytest.mark.parametrize(
    "drawing", [ByLabel(above=0.5), ByColumn(party="a", column="x", above=0.5)]
)
def test_they_need_all_values_in_one_process(drawing):
    with pytest.raises(
        ConfigError, match=says("data.presence", "one process", "uniform, beta or given")
    ):
        draw_presence(PresenceSpec(train=drawing), ("a", "b"), "train", 10, seed=0)


# The warning


def test_v_and_its_test_are_those_of_scipy():
    draw = np.random.default_rng(3)
    labels = draw.integers(0, 4, 500)
    here = draw.random(500) < 0.3 + 0.15 * labels
    (found,) = presence_and_label(
        {"bank": here, "all": np.ones(500, dtype=bool)}, labels, "multiclass"
    )
    table = np.array([[np.sum((labels == c) & side) for c in range(4)] for side in (here, ~here)])
    expected = stats.chi2_contingency(table, correction=False)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.value == pytest.approx(stats.contingency.association(table, method="cramer"))
    assert found.is_strong


def test_the_correlation_ratio_and_its_test_are_those_of_scipy():
    draw = np.random.default_rng(4)
    here = draw.random(300) < 0.5
    labels = draw.normal(size=300) + 0.7 * here
    (found,) = presence_and_label({"bank": here}, labels, "regression")
    expected = stats.f_oneway(labels[here], labels[~here])
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.value == pytest.approx(abs(np.corrcoef(here, labels)[0, 1]))


def test_chance_alone_is_not_warned_of():
    draw = np.random.default_rng(5)
    warned = 0
    for _ in range(200):
        labels = draw.integers(0, 2, 60)
        presence = {name: draw.random(60) < 0.5 for name in "abc"}
        warned += any(item.is_strong for item in presence_and_label(presence, labels, "binary"))
    # One in a hundred is what the threshold allows for.
    assert warned <= 6


def test_a_weak_association_is_told_and_not_warned_of():
    draw = np.random.default_rng(6)
    labels = draw.integers(0, 2, 50_000)
    here = draw.random(50_000) < 0.5 + 0.05 * labels
    (found,) = presence_and_label({"bank": here}, labels, "binary")
    assert found.p_value < 1e-10
    assert found.value < STRONG
    assert not found.is_strong


def test_a_run_notes_it_before_samples_are_left_out():
    drawing = {"kind": "by_label", "classes": {"1": 0.7}}
    found, _, _ = arranged(drawing)
    assert [item.party for item in found.associations] == ["bank", "shop", "telco"]
    assert all(item.is_strong for item in found.associations)
    assert "missing completely at random" in found.associations[0].warning
    even, _, _ = arranged({"kind": "uniform", "missing": 0.5})
    assert not any(item.is_strong for item in even.associations)
