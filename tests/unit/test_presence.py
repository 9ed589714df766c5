"""Presence as data: batches that mix observed sets, rows that are not there, drawings, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import colonnade
from colonnade.core.batches import BatchPlan
from colonnade.core.errors import ConfigError, DataError, ProtocolError
from colonnade.core.messages import Batch
from colonnade.core.presence import Observed, Presence
from colonnade.core.task import Task
from colonnade.data.blocks import Labels, make_block
from colonnade.data.drawn_presence import (
    BetaMissing,
    GivenMissing,
    PresenceSpec,
    UniformMissing,
    draw_presence,
)
from colonnade.quality.by_party import Predicted, measure_each
from colonnade.run.fitting import fit_blueprint
from colonnade.run.samples import arrange
from colonnade.run.sources import Sources
from colonnade.run.spec import parse_spec
from messages import says

tables = st.integers(1, 60).flatmap(
    lambda rows: st.integers(1, 4).flatmap(
        lambda columns: st.lists(
            st.lists(st.booleans(), min_size=columns, max_size=columns),
            min_size=rows,
            max_size=rows,
        )
    )
)


@settings(max_examples=80)
@given(table=tables, size=st.integers(1, 9), shuffle=st.booleans(), epoch=st.integers(0, 3))
def test_batches_hold_every_sample_once_and_never_mix_groups(
    table: list[list[bool]], size: int, shuffle: bool, epoch: int
) -> None:
    groups = torch.tensor(table).all(dim=1)
    plan = BatchPlan(len(table), size, seed=5, shuffle=shuffle, groups=groups)
    numbers = range(epoch * plan.num_batches, (epoch + 1) * plan.num_batches)
    batches = [plan.positions(number) for number in numbers]
    assert sorted(torch.cat(batches).tolist()) == list(range(len(table)))
    for positions in batches:
        assert len(groups[positions].unique()) == 1
        assert len(positions) <= size + 1


@settings(max_examples=80)
@given(table=tables, size=st.integers(1, 9), shuffle=st.booleans())
def test_everybody_finds_its_own_rows_of_a_batch(
    table: list[list[bool]], size: int, shuffle: bool
) -> None:
    """What a party derives for itself is what the label holder expects of it."""
    here = torch.tensor(table)
    names = tuple(f"p{place}" for place in range(here.shape[1]))
    plan = BatchPlan(len(table), size, seed=5, shuffle=shuffle)
    presence = Presence(names=names, table=here, plan=plan)
    for number in range(plan.num_batches):
        positions = plan.positions(number)
        observed = presence.observed(number, names)
        assert observed.num_samples == len(positions)
        for place, name in enumerate(names):
            own = plan.own(here[:, place]).positions(number)
            assert (name in observed.names) == bool(len(own))
            if len(own):
                assert torch.equal(positions[observed.rows[name]], own)
        seen = torch.zeros(len(positions), dtype=torch.bool)
        for parties, places in observed.sets():
            seen[places] = True
            for place in positions[places].tolist():
                assert parties == tuple(
                    name for name, there in zip(names, table[place], strict=True) if there
                )
        assert torch.equal(seen, here[positions].any(dim=1))


def test_rows_are_spread_to_their_places_and_picked_from_them() -> None:
    table = torch.tensor([[True, False], [True, True], [False, True]])
    observed = Observed.of(("a", "b"), table)
    assert not observed.is_complete
    assert observed.counts.tolist() == [1, 2, 1]
    values = torch.tensor([[1.0], [2.0]], requires_grad=True)
    spread = observed.spread("b", values)
    assert spread[:, 0].tolist() == [0.0, 1.0, 2.0]
    spread.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[1.0], [1.0]]
    assert observed.picked("b", values, torch.tensor([2])).tolist() == [[2.0]]
    only = observed.among(["a"])
    assert only.names == ("a",)
    # The sample that only b has is still one of the batch.
    assert only.counts.tolist() == [1, 1, 0]
    assert observed.among(["a", "b"]) is observed
    assert Observed.of(
        ("a", "b", "c"), table[:, [0, 0, 1]] & torch.tensor([True, False, False])
    ).names == ("a",)


def test_one_group_is_the_same_as_none() -> None:
    plain = BatchPlan(50, 8, seed=3, shuffle=True)
    grouped = BatchPlan(50, 8, seed=3, shuffle=True, groups=torch.ones(50))
    for number in range(3 * plan_length(plain)):
        assert torch.equal(plain.positions(number), grouped.positions(number))


def plan_length(plan: BatchPlan) -> int:
    return plan.num_batches


def test_groups_are_shuffled_among_each_other_and_differ_by_epoch() -> None:
    groups = torch.arange(400) % 4
    plan = BatchPlan(400, 10, seed=0, shuffle=True, groups=groups)
    first = [int(groups[plan.positions(number)[0]]) for number in range(plan.num_batches)]
    second = [
        int(groups[plan.positions(number + plan.num_batches)[0]])
        for number in range(plan.num_batches)
    ]
    assert first != sorted(first)
    assert first != second


# Drawings


def test_drawings_take_away_what_they_say() -> None:
    names = ("a", "b", "c")
    spec = PresenceSpec(train=UniformMissing(missing=0.3), inference=GivenMissing(party={"b": 1.0}))
    train = draw_presence(spec, names, "train", 20_000, seed=1)
    assert np.allclose(train.mean(axis=0), 0.7, atol=0.02)
    test = draw_presence(spec, names, "test", 100, seed=1)
    assert test[:, [0, 2]].all()
    assert not test[:, 1].any()
    again = draw_presence(spec, names, "train", 20_000, seed=1)
    assert np.array_equal(train, again)
    other = draw_presence(spec, names, "train", 20_000, seed=2)
    assert not np.array_equal(train, other)


def test_a_beta_drawing_gives_blocks_different_probabilities() -> None:
    spec = PresenceSpec(train=BetaMissing(), inference=BetaMissing())
    names = tuple("abcd")
    shares = draw_presence(spec, names, "train", 5_000, seed=0).mean(axis=0)
    assert shares.std() > 0.02
    # The same blocks are scarce at inference.
    assert np.allclose(
        draw_presence(spec, names, "test", 5_000, seed=0).mean(axis=0), shares, atol=0.03
    )


def test_bad_drawings_are_refused() -> None:
    with pytest.raises(ConfigError, match=says("missing", "0 to 1", 1.5)):
        UniformMissing(missing=1.5)
    with pytest.raises(ConfigError, match=says("a", 0, 0.0)):
        BetaMissing(a=0.0)
    with pytest.raises(ConfigError, match=says("data.presence", "'bnak'", "'bank'")):
        draw_presence(
            PresenceSpec(train=GivenMissing(party={"bnak": 0.1})), ("bank",), "train", 5, seed=0
        )


# Runs


def sources(num_missing: int = 6) -> Sources:
    draw = np.random.default_rng(0)
    ids = [f"s{number:03d}" for number in range(60)]
    bank = make_block("bank", pd.DataFrame({"x": draw.normal(size=60)}, index=ids))
    fewer = pd.DataFrame({"y": draw.normal(size=60)}, index=ids).iloc[num_missing:]
    return Sources(
        blocks={"bank": bank, "telco": make_block("telco", fewer)},
        labels=Labels(ids=bank.ids, values=np.arange(60) % 2),
        label_holder="bank",
    )


def test_a_method_that_needs_every_block_refuses_incomplete_samples() -> None:
    with pytest.raises(DataError) as caught:
        arrange(parse_spec({}), sources())
    message = str(caught.value)
    assert message.startswith("6 of 60 labelled samples are incomplete")
    assert 'data.incomplete = "drop"' in message


def test_incomplete_samples_are_dropped_when_the_settings_say_so() -> None:
    spec = parse_spec({"data": {"incomplete": "drop"}})
    found = arrange(spec, sources())
    assert sum(found.roll.num_samples.values()) == 54
    assert found.roll.num_complete == found.roll.num_samples


class BatchNormed(nn.Sequential):
    """A network that can't train on one sample."""

    def __init__(self, input_shape: tuple[int, ...], embedding: int) -> None:
        super().__init__(nn.Linear(*input_shape, embedding), nn.BatchNorm1d(embedding))


@pytest.mark.parametrize(("num_missing", "batch_size"), [(1, 8), (2, 8), (0, 8), (0, 1), (1, 1)])
def test_batch_norm_and_a_sample_in_a_batch_by_itself_are_refused_before_the_start(
    num_missing: int, batch_size: int
) -> None:
    spec = parse_spec(
        {
            "method": "laser",
            "data": {"batch_size": batch_size, "split": {"validation": 0.0, "test": 0.0}},
            "party": {"bank": {"encoder": {"kind": "custom", "module": f"{__name__}:BatchNormed"}}},
        }
    )
    found = arrange(spec, sources(num_missing))
    blueprint = fit_blueprint(spec, sources(num_missing), found)
    data = blueprint.training_data(found)
    if batch_size > 1:
        blueprint.build(data)
        return
    with pytest.raises(ConfigError, match=says("party.bank.encoder", 60, "batch_size")):
        blueprint.build(data)


def test_one_row_of_a_larger_batch_goes_by_running_statistics() -> None:
    """A party that has one row of a batch now and then trains on, batch norm or not."""
    spec = parse_spec(
        {
            "method": "laser",
            "data": {"batch_size": 8, "split": {"validation": 0.0, "test": 0.0}},
            "defaults": {"encoder": {"kind": "custom", "module": f"{__name__}:BatchNormed"}},
        }
    )
    found = arrange(spec, sources(50))
    blueprint = fit_blueprint(spec, sources(50), found)
    federation = blueprint.build(blueprint.training_data(found))
    party = federation.fabric.parties["telco"]
    part = party.parts["train"]
    counts = [len(part.own.positions(number)) for number in range(60)]
    number = counts.index(1)
    norm = party.encoder[1]
    before = norm.running_mean.clone()
    embedding = party.encode(Batch("train", number))
    assert embedding.shape[0] == 1
    assert torch.equal(norm.running_mean, before)
    assert norm.training
    party.encode(Batch("train", max(range(60), key=counts.__getitem__)))
    assert not torch.equal(norm.running_mean, before)


def test_drawn_absence_is_refused_too() -> None:
    presence = {"train": {"kind": "uniform", "missing": 0.5}}
    with pytest.raises(
        DataError, match=says("data.presence", "'splitnn'", 'data.incomplete = "drop"')
    ):
        arrange(parse_spec({"data": {"presence": presence}}), sources(0))


def test_a_dropped_sample_changes_nothing_for_the_others() -> None:
    """A run that drops equals a run whose parties never had those rows."""
    spec = parse_spec({"data": {"incomplete": "drop"}, "stop": {"epochs": 2}})
    whole = sources()
    kept = np.arange(6, 60)
    blocks = {"bank": whole.blocks["bank"].take(kept), "telco": whole.blocks["telco"]}
    labels = Labels(ids=whole.labels.ids[kept], values=whole.labels.values[kept])
    trimmed = Sources(blocks=blocks, labels=labels, label_holder="bank")
    first, second = (
        fit_blueprint(spec, item, arrange(spec, item)).training_data(arrange(spec, item))
        for item in (whole, trimmed)
    )
    for name, features in first.features.items():
        assert torch.equal(features, second.features[name])


def test_a_party_refuses_a_batch_that_it_does_not_have() -> None:
    result = colonnade.fit(
        {name: block.values.set_index(block.ids) for name, block in frames(sources(0)).items()},
        pd.Series(np.arange(60) % 2, index=sources(0).labels.ids),
        label_holder="bank",
        epochs=1,
    )
    party = result._federation.fabric.parties["telco"]
    part = party.parts["test"]
    party.parts["test"] = type(part)(
        features=part.features, plan=part.plan, rows=torch.full((part.plan.num_samples,), -1)
    )
    with pytest.raises(ProtocolError, match=says("'telco'", "none", "batch 0", "'test'")):
        party.rows(Batch("test", 0))


def frames(given: Sources) -> dict[str, Any]:
    return dict(given.blocks)


# Averages over predictors (appendix D)


def test_averages_over_predictors_are_those_of_the_paper() -> None:
    values = np.array([0, 1, 1, 0])
    task = Task.fit("binary", values)
    right, wrong = 5.0, -5.0
    first = Predicted(torch.tensor([0, 1, 2]), torch.tensor([[wrong], [right], [wrong]]))
    second = Predicted(torch.tensor([2, 3]), torch.tensor([[right], [right]]))
    found = measure_each(task, {"a": first, "b": second}, values)
    # Per sample: 1, 1, (0 + 1) / 2, 0.
    assert found["mean_accuracy"] == pytest.approx(2.5 / 4)
    f1_a = 2 * 1.0 * 0.5 / 1.5
    f1_b = 2 * 0.5 * 1.0 / 1.5
    assert found["mean_f1"] == pytest.approx((f1_a + f1_b) / 2)


@pytest.mark.parametrize("absent", [None, (4, 1)])
def test_a_complete_table_tells_the_same_without_a_look_at_its_rows(
    absent: tuple[int, int] | None,
) -> None:
    table = torch.ones(5, 2, dtype=torch.bool)
    if absent is not None:
        table[absent] = False
    plan = BatchPlan(5, 2, seed=0, shuffle=False)
    presence = Presence(names=("a", "b"), table=table, plan=plan)
    for number in range(plan.num_batches):
        rows = table[plan.positions(number)]
        seen = presence.observed(number, ("a", "b"))
        assert seen.is_complete == bool(rows.all())
        assert seen.num_samples == len(rows)
        for place, name in enumerate(("a", "b")):
            assert presence.num_rows(number, name) == int(rows[:, place].sum())


def test_a_table_of_another_shape_is_refused() -> None:
    plan = BatchPlan(3, 2, seed=0, shuffle=False)
    with pytest.raises(DataError, match=says("(3, 1)", "(3, 2)")):
        Presence(names=("a", "b"), table=torch.ones(3, 1, dtype=torch.bool), plan=plan)
