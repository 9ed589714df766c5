"""A label holder that has a party train on one sample, and reads it off other samples' embeddings.

After 200 uncharged steps on one sample its value was told by other samples' noisy embeddings (AUC
0.98), while its account said that nothing had left.
"""

from __future__ import annotations

import copy
import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attack.canaries import excess
from colonnade.core.batches import BatchPlan
from colonnade.core.doors import Door
from colonnade.core.errors import ConfigError
from colonnade.core.messages import Batch, Call, Reply
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.party import Part
from colonnade.core.protection import Encoding
from colonnade.parts.split_step import SplitParty
from colonnade.protect import Budget, Perturb, Place, PrivateSteps
from colonnade.protect.lifetime_account import LifetimeAccount, Rules

SIZE, WIDTH, COLUMNS = 4, 2, 3
FIRST = Batch("train", 0)


def party(
    canary: float,
    account: LifetimeAccount | None = None,
    *,
    steps: float | None = None,
    embeddings: float | None = None,
    largest_gradient: float | None = None,
    secret: str = "",
) -> SplitParty:
    """A party whose first sample is a canary, in batches of two."""
    features = torch.randn(SIZE, COLUMNS, generator=torch.Generator().manual_seed(1))
    features[0] = torch.tensor([canary, 0.0, 0.0])
    torch.manual_seed(2)
    encoder = nn.Linear(COLUMNS, WIDTH, bias=False)
    own = hashlib.sha256(secret.encode()).digest()
    place = Place(owner="telco", encoder=encoder, account=account, secret=own)
    specs: list[Any] = [] if embeddings is None else [Perturb(noise=embeddings)]
    specs += [] if steps is None else [PrivateSteps(noise=steps)]
    plan = BatchPlan(SIZE, 2, seed=0, shuffle=False)
    people = None if account is None else account.people(map(str, range(SIZE)))
    return SplitParty(
        name="telco",
        encoder=encoder,
        optimizer=OptimizerSpec(name="sgd", lr=1.0),
        parts={"train": Part(features=features, plan=plan, people=people)},
        door=Door(
            owner="telco",
            protections=[spec.stand_at(place) for spec in specs],
            account=account,
            largest_gradient=largest_gradient,
        ),
    )


def ask(whom: SplitParty, verb: str, *arguments: Any) -> Reply:
    return whom.execute(Call(0, "telco", verb, arguments, 0, True))


def refusal(reply: Reply) -> str:
    assert reply.failure is not None
    return reply.failure.message


def steep(size: float = 5.0) -> Tensor:
    """A gradient for the canary alone."""
    gradient = torch.zeros(2, WIDTH)
    gradient[0, 0] = size
    return gradient


def releases(account: LifetimeAccount, person: str) -> float:
    (place,) = account._sums.places_of(account.people([person]).numpy())
    return float(account._sums.table[place, 0])


@pytest.mark.attack(
    what="Paid steps that carry a sample into others' embeddings all the same",
    has="the verb 'descend' with any gradient, after a charged release (cheating)",
    before="nothing of what weights tell was in an account",
    now="under 'private_steps' each step is charged; canaries find no more than the account says",
)
def test_every_private_step_is_charged_and_a_spent_budget_ends_them(tmp_path: Path) -> None:
    rules = Rules(budget=Budget(mu=1.0))
    account = LifetimeAccount(tmp_path / "a.sqlite", party="telco", rules=rules)
    attacked = party(1.0, account, steps=4.0, embeddings=4.0)
    # One embedding and three steps are (2/4)² each.
    assert ask(attacked, "embed", FIRST).failure is None
    for _ in range(3):
        assert ask(attacked, "descend", FIRST, steep()).failure is None
    before = attacked.encoder.weight.detach().clone()
    assert "rule 'budget'" in refusal(ask(attacked, "descend", FIRST, steep()))
    assert torch.equal(attacked.encoder.weight, before)
    assert releases(account, "0") == 4
    assert attacked.door.spent()["step_mu"] == pytest.approx(math.sqrt(3) / 2)


def test_incoming_gradients_are_shortened() -> None:
    taken = {}
    for size in (0.5, 2.0, 1e30):
        attacked = party(1.0, largest_gradient=2.0)
        assert ask(attacked, "descend", FIRST, steep(size)).failure is None
        taken[size] = attacked.encoder.weight.detach().clone()
    torch.testing.assert_close(taken[2.0], taken[1e30])
    assert not torch.equal(taken[0.5], taken[2.0])


def test_gradients_by_sample_are_those_of_one_sample_at_a_time() -> None:
    """With next to no noise, the step is the sum of gradients that were clipped one by one."""
    gradient = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(3))
    attacked = party(0.3, steps=1e-9, embeddings=1e-9)
    before = attacked.encoder.weight.detach().clone()
    slow = torch.zeros_like(before)
    for row, own in zip(attacked.parts["train"].features[:2], gradient, strict=True):
        weight = before.clone().requires_grad_()
        output = weight @ row
        clipped = output * torch.clamp(1.0 / output.norm(), max=1.0)
        (found,) = torch.autograd.grad(clipped, weight, own * 2)
        slow += found * min(1.0, 1.0 / float(found.norm()))
    assert ask(attacked, "embed", FIRST).failure is None
    assert ask(attacked, "descend", FIRST, gradient).failure is None
    moved = before - attacked.encoder.weight.detach()
    torch.testing.assert_close(moved, slow / 2, atol=1e-5, rtol=1e-4)


def test_a_resumed_run_repeats_its_steps_and_nobody_repeats_their_noise() -> None:
    def stepped(whom: SplitParty, gradient: Tensor) -> Tensor:
        assert ask(whom, "descend", FIRST, gradient).failure is None
        return whom.encoder.weight.detach().clone()

    one = party(1.0, steps=1.0)
    kept = copy.deepcopy(one.state())
    first = stepped(one, steep())
    one.restore(copy.deepcopy(kept))
    assert torch.equal(stepped(one, steep()), first)
    one.restore(copy.deepcopy(kept))
    # Put back and made to step along something else, the noise is another one.
    other = stepped(one, steep(0.01))
    assert (other - first).abs().min() > 1e-4
    assert not torch.equal(stepped(party(1.0, steps=1.0, secret="other"), steep()), first)


def test_a_budget_over_both_needs_an_account_by_person() -> None:
    place = Place(owner="telco", budget=Budget(mu=1.0))
    with pytest.raises(ConfigError, match=r"party\.telco\.policy.*private_steps"):
        PrivateSteps(noise=1.0).stand_at(place)


TRIALS, NUM_STEPS, NOISE = 400, 2, 4.0


def score(canary: float, noise: float, trial: int) -> float:
    """What one embedding and some steps tell of the canary, to somebody who sees the weights.

    The gradient of each step stands upright on the canary's embedding: clipping takes none of it.
    """
    secret = f"{trial} {canary}"
    attacked = party(canary, steps=noise, embeddings=noise, secret=secret)
    weight = attacked.encoder.weight
    towards = weight.detach()[:, 0] / weight.detach()[:, 0].norm()
    seen = ask(attacked, "embed", FIRST).value
    assert isinstance(seen, Tensor)
    total = float(seen[0] @ towards)
    for _ in range(NUM_STEPS):
        before = weight.detach().clone()
        upright = torch.stack([-before[1, 0], before[0, 0]]) / before[:, 0].norm()
        assert (
            ask(attacked, "descend", FIRST, torch.stack([upright * 1e6, upright * 0])).failure
            is None
        )
        total -= 2 * float((weight.detach() - before)[:, 0] @ upright)
    return total


@pytest.mark.parametrize("halved", [False, True], ids=["as claimed", "noise halved"])
def test_canaries_find_no_more_than_the_theorem_says(halved: bool) -> None:
    """μ² is (2/σ)² for the embedding and for each step; noise of half the size is found out."""
    mu = math.sqrt((1 + NUM_STEPS) * (2 / NOISE) ** 2)
    noise = NOISE / 2 if halved else NOISE
    # Large: its embedding has the clipping norm, and so has its gradient.
    one, two = (
        np.array([score(sign * 100.0, noise, trial) for trial in range(TRIALS)]) for sign in (1, -1)
    )
    # One look and each step tell 1 for the one and -1 for the other; supposed is half the noise.
    looks = 1 + NUM_STEPS
    spread = math.sqrt(looks) * NOISE / 2
    assert (excess(one, two, mu, distance=2 * looks, spread=spread) > 0) == halved


@pytest.mark.parametrize("halved", [False, True], ids=["as claimed", "noise halved"])
@pytest.mark.parametrize("noise", [1.0, 2.0, 8.0])
def test_canaries_find_no_more_in_one_release_than_it_is_charged(
    noise: float, halved: bool
) -> None:
    many = 400_000
    encoding = Encoding("encode", 1, FIRST, BatchPlan(many, many, seed=0, shuffle=False))
    scores = []
    for sign in (5.0, -5.0):
        secret = hashlib.sha256(f"{sign}".encode()).digest()
        spec = Perturb(noise=noise / 2 if halved else noise)
        protection = spec.stand_at(Place(owner="telco", secret=secret))
        rows = torch.tensor([[sign, 0.0]]).repeat(many, 1)
        scores.append(protection.encoded(rows, encoding)[:, 0].numpy())
    found = excess(scores[0], scores[1], 2 / noise, distance=2.0, spread=noise / 2)
    assert (found > 0) == halved
