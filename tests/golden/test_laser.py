"""LASER-VFL against slow and obvious versions of itself, and against the methods it contains."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import colonnade
from colonnade.core.errors import ConfigError, ProtocolError
from colonnade.core.federation import Federation
from colonnade.core.messages import Batch
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.parties import Patience
from colonnade.core.party import Party
from colonnade.core.presence import Observed
from colonnade.core.seeds import derive_seed
from colonnade.core.task import Task
from colonnade.methods import laser
from colonnade.methods.laser import Laser, LaserParty
from colonnade.methods.local import Local
from colonnade.methods.splitnn import SplitNN
from colonnade.parts import fused_sets
from colonnade.parts.block_sets import (
    PassOverSets,
    rarity_of_sets,
    sample_sets,
    set_weights,
    weighted_losses,
)
from colonnade.parts.embedding_ring import EmbeddingRing, PartialRing
from colonnade.parts.partial_sets import (
    PartialPass,
    Tasks,
    sample_partial_sets,
    task_rows,
    task_weights,
)
from federations import (
    ENCODERS,
    FABRICS,
    KIND_OF_LOSS,
    assert_bitwise_equal,
    make_federation,
    train,
    weights,
)
from messages import says

F64 = torch.float64
LABELS = ("private", "shared")
# Narrower than an embedding, wider, with a layer between, and none that narrows first.
HEADS: Mapping[str, tuple[int, ...]] = {"linear": (), "narrow": (2,), "wide": (9, 5)}
LR = 0.1


def containing(first: int, num_blocks: int) -> Iterator[tuple[int, ...]]:
    """Every set of blocks that has the first one."""
    others = [block for block in range(num_blocks) if block != first]
    for size in range(num_blocks):
        for chosen in itertools.combinations(others, size):
            yield (first, *chosen)


def as_row(members: tuple[int, ...], num_blocks: int) -> list[float]:
    return [1 / len(members) if block in members else 0.0 for block in range(num_blocks)]


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=F64)


def network(sizes: tuple[int, ...]) -> nn.Sequential:
    torch.manual_seed(sum(sizes))
    layers: list[nn.Module] = []
    for wide, narrow in itertools.pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(F64)


# Sampled sets


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("num_blocks", [1, 2, 3, 5, 16])
def test_one_set_of_every_size(num_blocks: int, own: bool) -> None:
    for seed in range(40):
        sets = sample_sets(num_blocks, seed, F64, own=own)
        assert sets.shape == (num_blocks, num_blocks)
        assert (sets > 0).sum(1).tolist() == list(range(1, num_blocks + 1))
        assert torch.allclose(sets.sum(1), torch.ones(num_blocks, dtype=F64))
        if own:
            assert (sets[:, 0] > 0).all()


@pytest.mark.parametrize("own", [True, False])
def test_sets_of_a_size_are_equally_likely(own: bool) -> None:
    num_draws = 6000
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(num_draws):
        for row in sample_sets(4, seed, F64, own=own):
            members = tuple(row.nonzero()[:, 0].tolist())
            counts[members] = counts.get(members, 0) + 1
    for size, number in zip(range(1, 5), (1, 3, 3, 1) if own else (4, 6, 4, 1), strict=True):
        found = [count for members, count in counts.items() if len(members) == size]
        assert len(found) == number
        assert all(abs(count / num_draws - 1 / number) < 0.025 for count in found)


def test_weights_are_those_of_equation_8_and_add_up() -> None:
    assert set_weights(4, "paper", own=True).tolist() == [1, 3 / 2, 3 / 3, 1 / 4]
    for num_blocks in (1, 2, 5, 16, 32):
        total = set_weights(num_blocks, "paper", own=True).sum().item()
        assert total == pytest.approx((2**num_blocks - 1) / num_blocks, rel=1e-12)
        for own in (True, False):
            normalised = set_weights(num_blocks, "normalised", own=own)
            assert normalised.sum().item() == pytest.approx(1.0, rel=1e-12)
            plain = set_weights(num_blocks, "paper", own=own)
            assert torch.allclose(normalised, plain / plain.sum(), rtol=1e-12)
            whole = set_weights(num_blocks, "whole", own=own)
            assert whole.sum().item() == pytest.approx(1.0, rel=1e-12)
            assert torch.allclose(whole[:-1], normalised[:-1] / 2, rtol=1e-12)


# Lemma 1


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4, 5])
def test_the_estimate_is_unbiased_over_all_task_sets(num_blocks: int) -> None:
    """The mean over every choice of S_k1 .. S_km is equation (5) and its gradient."""
    head = network((3, 2))
    encoders = [nn.Linear(2, 3).to(F64) for _ in range(num_blocks)]
    inputs = random(num_blocks, 6, 2)
    task = Task(kind="multiclass", loss_name="cross_entropy", classes=(0, 1))
    targets = torch.tensor([0, 1, 1, 0, 1, 0])
    parameters = [*head.parameters(), *(item for own in encoders for item in own.parameters())]
    blocks = torch.stack([own(x) for own, x in zip(encoders, inputs, strict=True)])

    exact = sum(
        task.loss(head(blocks[list(members)].mean(0)), targets) / len(members)
        for members in containing(0, num_blocks)
    )
    by_size = [
        [item for item in containing(0, num_blocks) if len(item) == size]
        for size in range(1, num_blocks + 1)
    ]
    choices = list(itertools.product(*by_size))
    weights_of_sizes = set_weights(num_blocks, "paper", own=True)
    mean, of_blocks = 0.0, torch.zeros_like(blocks)
    of_head = [torch.zeros_like(item) for item in head.parameters()]
    for choice in choices:
        sets = torch.tensor([as_row(members, num_blocks) for members in choice], dtype=F64)
        over_sets = PassOverSets(head, sets, blocks[0], blocks[1:])
        leaf = over_sets.outputs.detach().requires_grad_()
        losses = task.losses(leaf.flatten(0, 1), targets.repeat(num_blocks))
        estimate = weighted_losses(losses.view(num_blocks, -1), weights_of_sizes)
        own, others, found = over_sets.pull(torch.autograd.grad(estimate, leaf)[0])
        mean += estimate.item() / len(choices)
        of_blocks += torch.cat([own[None], others]) / len(choices)
        of_head = [total + item / len(choices) for total, item in zip(of_head, found, strict=True)]

    assert mean == pytest.approx(exact.item(), rel=1e-12)
    of_encoders = torch.autograd.grad(
        blocks, parameters[len(of_head) :], of_blocks, retain_graph=True
    )
    for found, wanted in zip(
        [*of_head, *of_encoders], torch.autograd.grad(exact, parameters), strict=True
    ):
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4])
def test_one_network_for_all_sets_is_unbiased_too(num_blocks: int) -> None:
    values = {
        members: random(1, seed=sum(2**m for m in members)) for members in subsets(num_blocks)
    }
    exact = sum(item.item() for item in values.values())
    found = 0.0
    for size, weight in enumerate(set_weights(num_blocks, "paper", own=False).tolist(), start=1):
        of_size = [item.item() for members, item in values.items() if len(members) == size]
        found += weight * sum(of_size) / len(of_size)
    assert found == pytest.approx(exact, rel=1e-12)


def subsets(num_blocks: int) -> list[tuple[int, ...]]:
    return [
        members
        for size in range(1, num_blocks + 1)
        for members in itertools.combinations(range(num_blocks), size)
    ]


# Stacked tasks


@settings(max_examples=60, deadline=None)
@given(
    num_blocks=st.integers(1, 6),
    num_samples=st.integers(1, 5),
    sizes=st.sampled_from([(4, 3), (4, 4), (4, 7), (4, 2, 3), (4, 6, 2), (4, 1)]),
    seed=st.integers(0, 10_000),
)
def test_stacked_sets_equal_the_loop_over_them(
    num_blocks: int, num_samples: int, sizes: tuple[int, ...], seed: int
) -> None:
    head = network(sizes)
    blocks = random(num_blocks, num_samples, 4, seed=seed).requires_grad_()
    sets = sample_sets(num_blocks, seed, F64, own=True)
    upstream = random(num_blocks, num_samples, sizes[-1], seed=seed + 1)
    assert_equals_the_loop(head, sets, blocks, upstream)


@pytest.mark.parametrize(
    "head",
    [
        nn.Sequential(nn.Tanh(), nn.Linear(4, 2)),
        nn.Linear(4, 2),
        nn.Linear(4, 2, bias=False),
        nn.Sequential(nn.Linear(4, 2), nn.Tanh()),
        nn.Sequential(nn.Linear(4, 2, bias=False), nn.Tanh(), nn.Linear(2, 3)),
    ],
    ids=["no linear layer first", "bare", "no bias", "then one more", "no bias, then more"],
)
def test_other_networks_equal_the_loop_too(head: nn.Module) -> None:
    head = head.to(F64)
    blocks = random(3, 5, 4).requires_grad_()
    upstream = random(*head(blocks).shape, seed=1)
    assert_equals_the_loop(head, sample_sets(3, 1, F64, own=True), blocks, upstream)


def assert_equals_the_loop(head: nn.Module, sets: Tensor, blocks: Tensor, upstream: Tensor) -> None:
    """Outputs and every gradient, against autograd of one set after the other."""
    over_sets = PassOverSets(head, sets, blocks[0], blocks[1:])
    looped = torch.stack([head(blocks[row > 0].mean(0)) for row in sets])
    assert torch.allclose(over_sets.outputs, looped, rtol=1e-12, atol=1e-12)
    own, others, of_parameters = over_sets.pull(upstream)
    wanted = torch.autograd.grad(looped, [blocks, *head.parameters()], upstream)
    for ours, theirs in zip([torch.cat([own[None], others]), *of_parameters], wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_ring_gives_the_others_in_order_and_adds_up_what_comes_back() -> None:
    embeddings = {name: torch.full((2, 3), float(place)) for place, name in enumerate("abcd")}
    ring = EmbeddingRing(embeddings)
    assert ring.others()["c"][:, 0, 0].tolist() == [3, 0, 1]
    assert ring.turned({"a": 1, "b": 2, "c": 3, "d": 4})["b"].tolist() == [2, 3, 4, 1]
    # Everybody sends what it got: each embedding comes back from the three others.
    sums = ring.sums(ring.others())
    assert {name: item[0, 0].item() for name, item in sums.items()} == {
        "a": 0,
        "b": 3,
        "c": 6,
        "d": 9,
    }
    # One that did not answer is absent.
    partly = ring.sums({name: item for name, item in ring.others().items() if name != "a"})
    assert {name: item[0, 0].item() for name, item in partly.items()} == {
        "a": 0,
        "b": 2,
        "c": 4,
        "d": 6,
    }


def test_a_partial_ring_gives_what_is_there_and_adds_up_what_comes_back() -> None:
    table = torch.tensor([[True, True, True], [True, False, True], [False, True, True]])
    here = Observed.of(("a", "b", "c"), table)
    embeddings = {
        name: torch.tensor([[10.0 * place + row] for row in here.rows[name].tolist()])
        for place, name in enumerate("abc")
    }
    ring = PartialRing(embeddings, here)
    others, there = ring.others(), ring.there()
    # Of its samples 0 and 1: b has the first, c has both.
    assert there["a"].tolist() == [[True, False], [True, True]]
    assert others["a"][:, 0].tolist() == [10, 20, 21]
    assert others["b"][:, 0].tolist() == [20, 22, 0]
    assert others["c"][:, 0].tolist() == [0, 1, 10, 12]
    # Everybody sends what it got: an embedding comes back from each other who has the sample.
    sums = ring.sums(others)
    for name, item in embeddings.items():
        expected = item[:, 0] * (here.counts[here.rows[name]] - 1)
        assert sums[name][:, 0].tolist() == expected.tolist()


# Batches that mix observed sets


MIXED = st.integers(2, 5).flatmap(
    lambda blocks: st.lists(
        st.lists(st.booleans(), min_size=blocks, max_size=blocks), min_size=1, max_size=7
    )
)


@settings(max_examples=60, deadline=None)
@given(table=MIXED, own=st.booleans(), seed=st.integers(0, 1000))
def test_every_sample_has_a_set_of_every_size_of_its_own_blocks(
    table: list[list[bool]], own: bool, seed: int
) -> None:
    there = torch.tensor(table).t()
    tasks = sample_partial_sets(there, seed, F64, own=own)
    drawn: dict[tuple[bool, ...], Tensor] = {}
    for sample, present in enumerate(table):
        blocks = [True, *present] if own else present
        assert tasks.valid[sample].sum() == sum(blocks)
        for size, row in enumerate(tasks.sets[sample][tasks.valid[sample]], start=1):
            assert (row > 0).sum() == size
            assert row.sum().item() == pytest.approx(1.0)
            assert not (row[~torch.tensor(blocks)] > 0).any()
            assert not own or row[0] > 0
        # Samples of one observed set share the draw, as in a batch of that set alone.
        before = drawn.setdefault(tuple(present), tasks.sets[sample])
        assert torch.equal(before, tasks.sets[sample])


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("num_blocks", [2, 3, 6])
def test_where_everybody_has_everything_the_sets_are_the_same(num_blocks: int, own: bool) -> None:
    for seed in range(20):
        there = torch.ones(num_blocks - (1 if own else 0), 4, dtype=torch.bool)
        tasks = sample_partial_sets(there, seed, F64, own=own)
        wanted = sample_sets(num_blocks, seed, F64, own=own)
        assert tasks.valid.all()
        assert all(torch.equal(item, wanted) for item in tasks.sets)


def test_sets_of_a_size_are_equally_likely_among_the_blocks_of_a_sample() -> None:
    there = torch.tensor([[True, True], [True, False], [True, True], [False, True]])
    num_draws = 3000
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(num_draws):
        tasks = sample_partial_sets(there, seed, F64, own=True)
        members = tuple(tasks.sets[0][2].nonzero()[:, 0].tolist())
        counts[members] = counts.get(members, 0) + 1
    assert sorted(counts) == [(0, 1, 2), (0, 1, 3), (0, 2, 3)]
    assert all(abs(count / num_draws - 1 / 3) < 0.03 for count in counts.values())


@settings(max_examples=60, deadline=None)
@given(
    table=MIXED,
    sizes=st.sampled_from([(4, 3), (4, 7), (4, 2, 3), (4, 6, 2)]),
    seed=st.integers(0, 10_000),
)
def test_tasks_of_all_observed_sets_at_once_equal_the_loop_over_the_sets(
    table: list[list[bool]], sizes: tuple[int, ...], seed: int
) -> None:
    """Every observed set by itself, as a batch of its own, through the pass for one set."""
    head = network(sizes)
    present = torch.tensor(table)
    there = present.t()
    num_samples, num_blocks = len(table), there.shape[0] + 1
    blocks = random(num_blocks, num_samples, 4, seed=seed)
    tasks = sample_partial_sets(there, seed, F64, own=True)
    others = blocks[1:][there]
    partial = PartialPass(head, tasks, blocks[0], others, there)
    upstream = random(*partial.outputs.shape, seed=seed + 1)
    own, of_others, of_head = partial.pull(upstream)
    spread = torch.zeros(num_blocks - 1, num_samples, 4, dtype=F64)
    spread[there] = of_others

    samples, sizes_of = task_rows(there.sum(0) + 1)
    looped_own, looped_others = torch.zeros_like(own), torch.zeros_like(spread)
    looped_head = [torch.zeros_like(item) for item in head.parameters()]
    for row in torch.unique(present, dim=0):
        places = (present == row).all(dim=1).nonzero()[:, 0]
        some = torch.cat([torch.ones(1, dtype=torch.bool), row]).nonzero()[:, 0]
        sets = tasks.sets[places[0]][: len(some)][:, some]
        over_sets = PassOverSets(head, sets, blocks[0, places], blocks[some[1:]][:, places])
        mine = torch.stack(
            [
                torch.stack(
                    [
                        ((samples == place) & (sizes_of == size)).nonzero()[0, 0]
                        for place in places.tolist()
                    ]
                )
                for size in range(len(some))
            ]
        )
        assert torch.allclose(over_sets.outputs, partial.outputs[mine], rtol=0, atol=1e-12)
        first, rest, found = over_sets.pull(upstream[mine])
        looped_own[places] = first
        for place, block in enumerate(some[1:].tolist()):
            looped_others[block - 1, places] = rest[place]
        looped_head = [total + item for total, item in zip(looped_head, found, strict=True)]
    for ours, theirs in zip(
        [own, spread, *of_head], [looped_own, looped_others, *looped_head], strict=True
    ):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["paper", "normalised"])
def test_the_estimate_of_a_mixed_batch_is_unbiased_over_all_task_sets(kind: Any) -> None:
    """Lemma 1 for the batch as it is drawn: the mean over every choice of sets of every observed
    set is the mean over the batch of every sample's own objective, and its gradient."""
    present = torch.tensor([[True, True], [False, True], [True, True], [False, False]])
    there, num_samples, num_blocks = present.t(), 4, 3
    head = network((3, 2))
    blocks = random(num_blocks, num_samples, 3)
    blocks[1:][~there] = 0.0
    task = Task(kind="multiclass", loss_name="cross_entropy", classes=(0, 1))
    targets = torch.tensor([0, 1, 1, 0])
    counts = there.sum(0) + 1
    samples, sizes = task_rows(counts)
    weights = task_weights(counts, kind, own=True) / num_samples

    def objective(leaf: Tensor) -> Tensor:
        """(1 / |B|) Σ_n Σ_S ∋ 0 of weight 1 / |S|, over the subsets of each sample's blocks."""
        total = torch.zeros((), dtype=F64)
        for sample in range(num_samples):
            mine = [0, *(block + 1 for block in range(2) if present[sample, block])]
            norm = 1.0 if kind == "paper" else (2 ** len(mine) - 1) / len(mine)
            for members in containing(0, num_blocks):
                if set(members) <= set(mine):
                    mean = leaf[list(members), sample].mean(0)
                    loss = task.loss(head(mean[None]), targets[sample : sample + 1])
                    total = total + loss / len(members) / norm / num_samples
        return total

    leaf = blocks.clone().requires_grad_()
    exact = objective(leaf)
    wanted = torch.autograd.grad(exact, [leaf, *head.parameters()])
    kinds, kind_of = torch.unique(present, dim=0, return_inverse=True)
    by_kind = []
    for row in kinds.tolist():
        mine = [0, *(block + 1 for block in range(2) if row[block])]
        by_size = [
            [item for item in containing(0, 3) if len(item) == size and set(item) <= set(mine)]
            for size in range(1, len(mine) + 1)
        ]
        by_kind.append(list(itertools.product(*by_size)))
    choices = list(itertools.product(*by_kind))
    assert len(choices) == 2
    mean = 0.0
    found = [torch.zeros_like(item) for item in wanted]
    for choice in choices:
        sets = torch.zeros(len(kinds), num_blocks, num_blocks, dtype=F64)
        for place, drawn in enumerate(choice):
            for size, members in enumerate(drawn):
                sets[place, size] = torch.tensor(as_row(members, num_blocks), dtype=F64)
        tasks = Tasks(sets[kind_of], torch.arange(num_blocks) < counts[:, None])
        partial = PartialPass(head, tasks, blocks[0], blocks[1:][there], there)
        loss, gradient = task.weighed(partial.outputs, targets[samples], weights)
        own, of_others, of_head = partial.pull(gradient)
        mean += (loss * weights.sum()).item() / len(choices)
        spread = torch.zeros_like(blocks[1:])
        spread[there] = of_others
        parts = [torch.cat([own[None], spread]), *of_head]
        found = [total + item / len(choices) for total, item in zip(found, parts, strict=True)]
    assert sizes.max() == 2
    assert mean == pytest.approx(exact.item(), rel=1e-12)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)


# Against centralized autograd of equation (7)


PRESENCE = torch.tensor(
    [[True, True, True, True]] * 9
    + [[True, False, True, True]] * 7
    + [[False, True, True, False]] * 8
)


def build(method: Laser, **changes: Any) -> Federation:
    return make_federation(
        **{
            "num_parties": 4,
            "method": method,
            "dtype": F64,
            "kind": "multiclass",
            "presence": {"train": PRESENCE},
            "fusion_hidden": (),
            "optimizer": OptimizerSpec(name="sgd", lr=LR),
        }
        | changes
    )


def loss_of_equation_7(
    federation: Federation, batch: Batch, models: Mapping[str, nn.ModuleDict], method: Laser
) -> Tensor:
    """One graph over everybody's networks, one sample and one task after the other."""
    holder, parties = federation.holder, federation.fabric.parties
    here = holder.observed(batch, federation.fabric.names)
    names, targets = here.names, holder.targets(batch)
    embedded = {name: models[name]["encoder"](parties[name].rows(batch)) for name in names}
    shares = dict.fromkeys(names, 1.0)
    if method.normalise_presence:
        table = PRESENCE.double().mean(0)
        common = table.log().mean().exp()
        shares = {name: (common / table[int(name[1])]).item() for name in names}
    drawn = {name: drawn_sets(parties[name], batch, here) for name in names}
    total = torch.zeros((), dtype=F64)
    for observed, places in here.sets():
        a = set_weights(len(observed), method.weights, own=True)
        for name, place in itertools.product(observed, places.tolist()):
            for size, weight in enumerate(a):
                members = drawn[name][place][size]
                factor = 1.0
                for member in members:
                    factor *= shares[member]
                row = torch.tensor([place])
                rows = [here.picked(member, embedded[member], row) for member in members]
                output = models[name]["head"](sum(rows) / len(members))
                loss = holder.task.loss(output, targets[place : place + 1])
                total = total + weight * factor * loss / len(targets)
    return total


def drawn_sets(party: Party, batch: Batch, here: Observed) -> dict[int, list[list[str]]]:
    """By place in the batch, the members of the set of every size that a party drew."""
    place = here.names.index(party.name)
    order = [*here.names[place:], *here.names[:place]]
    seed = derive_seed(party._seed, "sets", batch.part, batch.number)
    rows = here.rows[party.name]
    if here.table is None:
        table = torch.ones(len(rows), len(order), dtype=torch.bool)
    else:
        table = here.table.roll(-place, dims=1)[rows]
    tasks = sample_partial_sets(table[:, 1:].t(), seed, F64, own=True)
    return {
        int(at): [
            [name for name, part in zip(order, row, strict=True) if part > 0] for row in sets[valid]
        ]
        for at, sets, valid in zip(rows, tasks.sets, tasks.valid, strict=True)
    }


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize(
    "settings_of", [{}, {"weights": "paper"}, {"normalise_presence": True}], ids=str
)
def test_every_step_is_that_of_centralized_autograd(
    head: str, labels: Any, settings_of: dict[str, Any]
) -> None:
    method = Laser(labels=labels, **settings_of)
    federation = build(method, fusion_hidden=HEADS[head])
    twin = build(method, fusion_hidden=HEADS[head])
    models = {name: party.model for name, party in twin.fabric.parties.items()}
    parameters = [item for model in models.values() for item in model.parameters()]
    num_sets = []
    assert federation.exchanges_per_epoch == 3
    for number in range(federation.exchanges_per_epoch * 2):
        batch = Batch("train", number)
        here = federation.holder.observed(batch, federation.fabric.names)
        num_sets.append(len(list(here.sets())))
        loss = loss_of_equation_7(twin, batch, models, method)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter -= LR * gradient
        federation.fabric.run(method.exchange(federation.holder, federation.parties, batch))
        ours, theirs = weights(federation), weights(twin)
        assert all(torch.allclose(ours[key], theirs[key], rtol=0, atol=1e-12) for key in ours)
    assert max(num_sets) == 3


@pytest.mark.parametrize("loss", KIND_OF_LOSS)
def test_every_loss_has_the_gradient_of_centralized_autograd(loss: str) -> None:
    method = Laser()
    changes = {"kind": KIND_OF_LOSS[loss], "loss": loss}
    federation, twin = build(method, **changes), build(method, **changes)
    models = {name: party.model for name, party in twin.fabric.parties.items()}
    parameters = {
        f"{name}.{key}": item
        for name, model in models.items()
        for key, item in model.named_parameters()
    }
    batch = Batch("train", 1)
    total = loss_of_equation_7(twin, batch, models, method)
    gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    before = weights(federation)
    federation.fabric.run(method.exchange(federation.holder, federation.parties, batch))
    after = weights(federation)
    for key, gradient in zip(parameters, gradients, strict=True):
        change = torch.zeros_like(before[key]) if gradient is None else -LR * gradient
        assert torch.allclose(after[key] - before[key], change, rtol=0, atol=1e-12)


# Labels private or shared: the same numbers


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("normalise", [False, True])
def test_private_labels_give_the_bits_of_shared_ones(
    encoder: str, fabric: str, normalise: bool
) -> None:
    changes = {
        "encoder": ENCODERS[encoder],
        "fabric": fabric,
        "fusion_hidden": (3,),
        "fusion_dropout": 0.3,
        "optimizer": OptimizerSpec(name="adam", lr=0.01),
    }
    found = []
    for labels in LABELS:
        method = Laser(labels=labels, normalise_presence=normalise)  # type: ignore[arg-type]
        federation = build(method, **changes)
        losses = [event.loss for event in train(federation, 10)]
        found.append((losses, weights(federation)))
    assert found[0][0] == found[1][0]
    assert_bitwise_equal(found[0][1], found[1][1])


# What it contains


ONE_EACH = torch.eye(4, dtype=torch.bool).repeat(6, 1)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_one_block_per_sample_is_local_training_bit_for_bit(
    dtype: torch.dtype, encoder: str, labels: Any, kind: Any
) -> None:
    changes: dict[str, Any] = {
        "dtype": dtype,
        "kind": kind,
        "presence": {"train": ONE_EACH},
        "encoder": ENCODERS[encoder],
        "fusion_hidden": (5,),
        "fusion_dropout": 0.25,
        "batch_size": 3,
        "optimizer": OptimizerSpec(name="adam", lr=0.01),
    }
    federation = build(Laser(labels=labels), **changes)
    local = build(Local(), **changes)  # type: ignore[arg-type]
    losses = [[event.loss for event in train(item, 16)] for item in (federation, local)]
    assert_bitwise_equal(weights(federation), weights(local))
    assert losses[0] == losses[1]


def only_the_full_set(num_blocks: int, kind: str, *, own: bool) -> Tensor:
    return torch.tensor([0.0] * (num_blocks - 1) + [1.0], dtype=F64)


@pytest.mark.parametrize("labels", LABELS)
def test_only_the_full_set_is_splitnn_by_averages_with_a_head_per_party(
    labels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laser, "set_weights", only_the_full_set)
    method = Laser(labels=labels)
    federation, twin = (build(method, presence=None) for _ in range(2))
    models = {name: party.model for name, party in twin.fabric.parties.items()}
    parameters = [item for model in models.values() for item in model.parameters()]
    for number in range(6):
        batch = Batch("train", number)
        embedded = [
            model["encoder"](twin.fabric.parties[name].rows(batch))
            for name, model in models.items()
        ]
        average, targets = torch.stack(embedded).mean(0), twin.holder.targets(batch)
        heads = [model["head"](average) for model in models.values()]
        loss = sum(twin.holder.task.loss(item, targets) for item in heads)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= LR * gradient
    train(federation, 6)
    ours, theirs = weights(federation), weights(twin)
    assert all(torch.allclose(ours[key], theirs[key], rtol=0, atol=1e-12) for key in ours)


def test_one_head_on_the_full_set_is_splitnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_sets, "set_weights", only_the_full_set)
    changes: dict[str, Any] = {"presence": None, "combine": "mean", "fusion_hidden": (6,)}
    federation = build(Laser(heads="label_holder"), **changes)
    splitnn = build(SplitNN(), **changes)  # type: ignore[arg-type]
    losses = [[event.loss for event in train(item, 9)] for item in (federation, splitnn)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    ours, theirs = weights(federation), weights(splitnn)
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[key], theirs[key], rtol=0, atol=1e-12) for key in ours)


@pytest.mark.parametrize("normalise", [False, True])
def test_one_head_at_the_label_holder_has_the_gradient_of_centralized_autograd(
    normalise: bool,
) -> None:
    method = Laser(heads="label_holder", normalise_presence=normalise)
    changes: dict[str, Any] = {"combine": "mean", "fusion_hidden": (6,)}
    federation, twin = build(method, **changes), build(method, **changes)
    parties, holder = twin.fabric.parties, twin.holder
    batch = Batch("train", 2)
    here = holder.observed(batch, twin.fabric.names)
    observed, targets = here.names, holder.targets(batch)
    assert here.table is not None
    embedded = torch.stack(
        [here.spread(name, parties[name].encoder(parties[name].rows(batch))) for name in observed]
    )
    seed = derive_seed(holder.seed, "sets", batch.part, batch.number)
    tasks = sample_partial_sets(here.table.t(), seed, F64, own=False)
    shares = PRESENCE.double().mean(0)
    factors = shares.log().mean().exp() / shares
    loss = torch.zeros((), dtype=F64)
    for place, count in enumerate(here.counts.tolist()):
        sets = tasks.sets[place][:count]
        scale = set_weights(count, method.weights, own=False)
        if normalise:
            scale = scale * rarity_of_sets(sets, factors[[int(name[1]) for name in observed]])
        for row, weight in zip(sets, scale, strict=True):
            output = holder.fusion.head(embedded[row > 0, place].mean(0)[None])
            own = holder.task.loss(output, targets[place : place + 1])
            loss = loss + weight * own / len(targets)
    models = {"fusion": holder.fusion} | {name: parties[name].model for name in observed}
    named = {
        f"{name}.{key}": item
        for name, model in models.items()
        for key, item in model.named_parameters()
    }
    gradients = torch.autograd.grad(loss, list(named.values()))
    before = weights(federation)
    federation.fabric.run(method.exchange(federation.holder, federation.parties, batch))
    after = weights(federation)
    for key, gradient in zip(named, gradients, strict=True):
        assert torch.allclose(after[key] - before[key], -LR * gradient, rtol=0, atol=1e-12)


# Normalisation by presence


def test_equal_presence_needs_no_normalisation() -> None:
    table = torch.tensor([[True, True, False, False], [False, False, True, True]] * 12)
    runs = [
        build(Laser(normalise_presence=normalise), presence={"train": table})
        for normalise in (False, True)
    ]
    for federation in runs:
        train(federation, 8)
    ours, theirs = map(weights, runs)
    assert all(torch.allclose(ours[key], theirs[key], rtol=0, atol=1e-14) for key in ours)


# Prediction


INFERENCE = torch.tensor(
    [[True, True, True, True], [False, True, False, True], [True, False, False, False]]
).repeat(3, 1)


def test_every_party_that_has_a_sample_predicts_from_all_that_is_there() -> None:
    federation = build(
        Laser(),
        num_validation=9,
        presence={"train": PRESENCE, "validation": INFERENCE},
        encoder=ENCODERS["both"],
    )
    train(federation, 5)
    parties = federation.fabric.parties
    plan = federation.holder.parts["validation"].plan
    found = federation.predictions("validation", plan, each=True).each
    one = federation.predictions("validation", plan).outputs
    for position in range(9):
        here = [name for name, there in zip(parties, INFERENCE[position], strict=True) if there]
        embedded = []
        for name in here:
            part = parties[name].parts["validation"]
            row = position if part.rows is None else int(part.rows[position])
            parties[name].model.eval()
            embedded.append(parties[name].encoder(part.features[row : row + 1]))
        average = torch.stack(embedded).mean(0)
        wanted = {name: parties[name].model["head"](average)[0] for name in here}
        for name in parties:
            places = found[name].positions.tolist()
            assert (position in places) == (name in here)
            if name in here:
                outputs = found[name].outputs[places.index(position)]
                assert torch.allclose(outputs, wanted[name], rtol=0, atol=1e-12)
        mean = torch.stack(list(wanted.values())).mean(0)
        assert torch.allclose(one[position], mean, rtol=0, atol=1e-12)


def test_one_head_at_the_label_holder_predicts_for_all() -> None:
    federation = build(
        Laser(heads="label_holder"),
        num_validation=9,
        presence={"train": PRESENCE, "validation": INFERENCE},
        combine="mean",
    )
    train(federation, 5)
    plan = federation.holder.parts["validation"].plan
    assert federation.predictions("validation", plan).outputs.shape == (9, 3)
    assert federation.predictions("validation", plan, each=True).each == {}


# Who sends what


def test_what_crosses_the_links() -> None:
    batch_size, width, classes, num_parties = 8, 4, 3, 4
    block, logits = batch_size * width * 8, num_parties * batch_size * classes * 8
    ask = 8
    for labels in LABELS:
        federation = build(Laser(labels=labels), presence=None)  # type: ignore[arg-type]
        train(federation, 1)
        for traffic in federation.fabric.meter.parties.values():
            if labels == "private":
                # Batches by name with every call; the others' embeddings, dL/dlogits, one sum.
                assert traffic.bytes_down == 4 * ask + 3 * block + logits + block
                assert traffic.bytes_up == block + logits + 3 * block
                assert traffic.calls == 4
            else:
                weights_of_sizes = num_parties * 8
                assert traffic.bytes_down == 3 * ask + 3 * block + weights_of_sizes + block
                names = len("loss") + len("gradient")
                assert traffic.bytes_up == block + names + 8 + 3 * block
                assert traffic.calls == 3


def test_only_rows_that_are_there_cross_the_links() -> None:
    """With blocks missing: no zeros in their place, and no row of a sample that is not there."""
    width, classes = 4, 3
    federation = build(Laser())
    here = federation.holder.observed(Batch("train", 0), federation.fabric.names)
    assert here.table is not None
    train(federation, 1)
    for name, traffic in federation.fabric.meter.parties.items():
        rows = here.rows[name]
        num_tasks = int(here.counts[rows].sum())
        num_others = num_tasks - len(rows)
        block, others, logits = (
            8 * count for count in (len(rows) * width, num_others * width, num_tasks * classes)
        )
        there = (len(here.names) - 1) * len(rows)
        assert traffic.bytes_up == block + logits + others
        assert traffic.bytes_down == 4 * 8 + others + there + logits + block


@pytest.mark.parametrize(
    ("others", "there"),
    [
        (torch.zeros(3, 4), torch.ones(3, 5, dtype=torch.bool)),
        (torch.zeros(15, 4), torch.ones(3, 5)),
        (torch.zeros(12, 3), torch.ones(3, 4, dtype=torch.bool)),
        (torch.zeros(4, 4), torch.ones(4, dtype=torch.bool)),
    ],
    ids=["fewer rows", "no booleans", "another width", "no table"],
)
def test_others_that_do_not_fit_the_own_rows_are_refused(others: Tensor, there: Tensor) -> None:
    party = build(Laser()).fabric.parties["p0"]
    assert isinstance(party, LaserParty)
    with pytest.raises(ProtocolError, match=says("'p0'", "rows", "batch 0")):
        party.outputs(Batch("train", 0), others.to(F64), None, there)


def test_a_party_that_does_not_answer_takes_its_rows_along() -> None:
    """The others' samples count as ever; one that only the silent party has teaches nothing."""
    table = torch.tensor([[True, False], [True, True], [False, True], [True, True]] * 6)
    federation, twin = (build(Laser(), num_parties=2, presence={"train": table}) for _ in range(2))
    batch = Batch("train", 0)
    parties, holder = twin.fabric.parties, twin.holder
    ask = federation.parties.ask

    async def without_p1(verb: str, *arguments: Any, among: Any, **more: Any) -> dict[str, Any]:
        left = [name for name in among if name != "p1"]
        return await ask(verb, *arguments, among=left, **more)

    federation.parties.ask = without_p1  # type: ignore[method-assign]
    federation.fabric.run(federation.method.exchange(federation.holder, federation.parties, batch))
    rows = holder.observed(batch, ("p0", "p1")).rows["p0"]
    model = parties["p0"].model
    losses = holder.task.losses(
        model["head"](model["encoder"](parties["p0"].rows(batch))), holder.targets(batch)[rows]
    )
    gradients = torch.autograd.grad(
        losses.sum() / len(holder.targets(batch)), list(model.parameters())
    )
    before, after = weights(twin), weights(federation)
    for (key, _), gradient in zip(model.named_parameters(), gradients, strict=True):
        change = after[f"p0.{key}"] - before[f"p0.{key}"]
        assert torch.allclose(change, -LR * gradient, rtol=0, atol=1e-12)
    assert all(torch.equal(after[key], before[key]) for key in after if key.startswith("p1."))


def test_a_gradient_that_nobody_awaits_is_refused() -> None:
    party = build(Laser()).fabric.parties["p0"]
    assert isinstance(party, LaserParty)
    with pytest.raises(ProtocolError, match=says("'p0'", "batch 0", "(4, 8, 3)")):
        party.backward(Batch("train", 0), torch.zeros(4, 8, 3, dtype=F64))


def test_shared_labels_are_for_heads_at_the_parties() -> None:
    with pytest.raises(
        ConfigError,
        match=says("labels", '"shared"', 'heads = "label_holder"', 'labels = "private"'),
    ):
        Laser(heads="label_holder", labels="shared")


def test_private_labels_stay_at_the_label_holder() -> None:
    for party in build(Laser()).fabric.parties.values():
        assert isinstance(party, Party)
        with pytest.raises(ProtocolError, match=says("labels", "private")):
            _ = party.replica


def test_nobody_there_leaves_the_exchange_out() -> None:
    federation = build(Laser(), patience=Patience(timeout=1, then="continue"))
    federation.parties.ask = _nobody  # type: ignore[method-assign]
    before = weights(federation)
    federation.fabric.run(
        federation.method.exchange(federation.holder, federation.parties, Batch("train", 0))
    )
    assert_bitwise_equal(before, weights(federation))
    assert federation.method.findings(federation.holder) == {"num_left_out": 1}


async def _nobody(*arguments: Any, **settings: Any) -> dict[str, Any]:
    return {}


def test_a_fusion_that_does_not_average_is_refused_before_training() -> None:
    ids = [f"s{number}" for number in range(20)]
    blocks = {name: pd.DataFrame({"x": range(20)}, index=ids) for name in ("bank", "telco")}
    labels = pd.Series([0, 1] * 10, index=ids)
    with pytest.raises(
        ConfigError, match=says("label_holder.fusion.combine", "'laser'", 'combine = "mean"')
    ):
        colonnade.fit(blocks, labels, method={"name": "laser", "heads": "label_holder"}, epochs=1)
    settings_of = {"party": {"bank": {"encoder": {"kind": "mlp", "embedding": 3}}}}
    with pytest.raises(ConfigError, match=says("'laser'", "bank = 3", "telco = 32")):
        colonnade.fit(blocks, labels, method="laser", settings=settings_of, epochs=1)
