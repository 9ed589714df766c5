"""The account of what was released: against the library's own figures, and the budget."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import dp_accounting
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import BudgetSpent, ConfigError
from colonnade.core.messages import Batch
from colonnade.core.protection import Encoding
from colonnade.protect.accounting import Account, epsilon_of, mu_of, num_releases_within
from colonnade.protect.budget import Budget
from messages import says

PLAN = BatchPlan(10, 4, seed=0, shuffle=False)


def release(
    number: int, batch: int = 0, part: str = "train", plan: BatchPlan = PLAN
) -> tuple[Encoding, bytes]:
    """An encoding, and the name of what it releases."""
    return Encoding("encode", number, Batch(part, batch), plan), b"%d" % number


@pytest.mark.parametrize(("noise", "count"), [(4.0, 1), (8.0, 20), (10.0, 100)])
def test_epsilon_is_the_accountants(noise: float, count: int) -> None:
    """Replacing a record moves a clipped embedding by up to 2C: half the noise multiplier."""
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise / 2), count)
    tight = pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    loose = rdp.RdpAccountant().compose(event).get_epsilon(1e-5)
    found = epsilon_of(count, noise, 1e-5)
    assert found == pytest.approx(tight, rel=1e-3)
    assert found <= loose


def test_published_values_of_the_gaussian_mechanism() -> None:
    """Balle and Wang's exact δ(ε), written out: the ε for δ solves it."""

    def delta(epsilon: float, mu: float) -> float:
        def phi(x: float) -> float:
            return 0.5 * math.erfc(-x / math.sqrt(2))

        return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)

    for count, noise in ((1, 2.0), (50, 20.0), (7, 5.0)):
        found = epsilon_of(count, noise, 1e-5)
        assert delta(found, mu_of(count, noise)) == pytest.approx(1e-5, rel=1e-6)


def test_theorem_6_is_the_closed_form_of_the_account() -> None:
    """VAFL, Theorem 6: c grows as √K/µ in the number of queries; per sample, N_m/N is 1.

    Without amplification by sampling, c = 2C √k / µ for k releases of a sample.
    """
    for releases in (1, 9, 400):
        for mu in (0.5, 1.0, 3.0):
            c_over_clip = 2 * math.sqrt(releases) / mu
            assert mu_of(releases, c_over_clip) == pytest.approx(mu)
            assert num_releases_within(Budget(mu=mu * (1 + 1e-9)), c_over_clip) == releases


def test_budget_allows_as_many_as_fit() -> None:
    for budget in (Budget(epsilon=3.0), Budget(epsilon=1.0, delta=1e-6), Budget(mu=1.0)):
        allowed = num_releases_within(budget, 15.0)
        assert allowed > 0
        if budget.epsilon is not None:
            assert epsilon_of(allowed, 15.0, budget.delta) <= budget.epsilon
            assert epsilon_of(allowed + 1, 15.0, budget.delta) > budget.epsilon
        else:
            assert mu_of(allowed, 15.0) <= 1.0 < mu_of(allowed + 1, 15.0)
    assert num_releases_within(Budget(epsilon=0.01), 1.0) == 0


def test_counting_is_per_sample() -> None:
    account = Account(party="bank", noise=2.0, delta=1e-5, budget=None)
    account.charge(*release(1, batch=0))
    account.charge(*release(2, batch=1))
    assert account.num_releases == 1
    account.charge(*release(3, batch=3))  # the next epoch's first
    assert account.num_releases == 2
    assert account.spent() == {
        "releases": 2.0,
        "mu": pytest.approx(math.sqrt(2)),
        "epsilon": pytest.approx(epsilon_of(2, 2.0, 1e-5)),
        "delta": 1e-5,
    }


def test_the_same_encoding_again_is_the_same_release() -> None:
    account = Account(party="bank", noise=2.0, delta=1e-5, budget=None)
    assert [account.charge(*release(1)) for _ in range(3)] == [True, False, False]
    assert account.num_releases == 1
    account.charge(*release(2))
    assert account.num_releases == 2


def test_spent_budget_refuses_and_says_why() -> None:
    account = Account(party="bank", noise=2.0, delta=1e-5, budget=Budget(mu=1.8))
    assert account.allowed == 3
    for number in range(3):
        account.charge(*release(number, batch=3 * number))
    with pytest.raises(BudgetSpent, match=says("'bank'", "policy", "rule 'budget'", "allows 3")):
        account.charge(*release(9, batch=9))
    account.charge(*release(10, batch=1))  # others were released less often
    assert account.num_releases == 3


def test_a_saved_state_goes_on_where_it_was() -> None:
    account = Account(party="bank", noise=2.0, delta=1e-5, budget=None)
    account.charge(*release(1))
    again = Account(party="bank", noise=2.0, delta=1e-5, budget=None)
    again.restore(account.state())
    assert again.num_releases == 1
    again.charge(*release(2))
    assert again.num_releases == 2
    assert account.num_releases == 1


def test_going_back_to_a_state_takes_nothing_back() -> None:
    account = Account(party="bank", noise=2.0, delta=1e-5, budget=Budget(mu=1.8))
    account.charge(*release(1))
    before = account.state()
    for number in (2, 3):
        account.charge(*release(number))
    account.restore(before)
    assert account.num_releases == 3
    assert not account.charge(*release(3))  # sent again, bit for bit
    with pytest.raises(BudgetSpent):
        account.charge(*release(4))


def test_a_ledger_is_recalled_to_the_last_sample() -> None:
    first = Account(party="bank", noise=2.0, delta=1e-5, budget=None)
    entries: list[dict[str, Any]] = [{"event": "opened"}]
    early = first.state()
    for number, batch in enumerate((0, 1, 3, 6, 2)):
        encoding, name = release(number, batch)
        assert first.charge(encoding, name)
        left = [(name.hex(), encoding.batch.part, encoding.batch.number)]
        entries.append({"event": "left", "spent": first.spent(), "released": left})
    again = Account(party="bank", noise=2.0, delta=1e-5, budget=Budget(mu=mu_of(3, 2.0)))
    again.recall(entries)
    again.restore(early)
    assert again.num_releases == 3
    assert not again.charge(*release(1, 1))
    # Batches 0, 3 and 6 are the first of three epochs: those samples have had theirs.
    with pytest.raises(BudgetSpent, match=says("rule 'budget'", "released 3")):
        again.charge(*release(9, 9))
    assert again.charge(*release(10, 4))
    assert again.num_releases == 3
    assert again.state()["counts"]["train"].tolist() == [3, 3, 3, 2, 2, 2, 1, 1, 1, 1]


def test_new_samples_without_a_lasting_name_take_the_worst_case() -> None:
    account = Account(party="bank", noise=2.0, delta=1e-5, budget=None)
    account.charge(*release(1, part="new"))
    account.charge(*release(2, part="new", plan=BatchPlan(7, 4, seed=0, shuffle=False)))
    assert account.num_releases == 2


@settings(max_examples=60, deadline=None)
@given(
    releases=st.lists(
        st.tuples(st.sampled_from(["train", "test", "new"]), st.integers(0, 11)), max_size=200
    ),
    allowed=st.none() | st.integers(1, 12),
    look_every=st.integers(1, 90),
)
def test_what_is_counted_later_is_counted_as_if_at_once(
    releases: list[tuple[str, int]], allowed: int | None, look_every: int
) -> None:
    """The slow way: one count per sample, looked at before every release."""
    budget = None if allowed is None else Budget(mu=mu_of(allowed, 2.0) + 1e-9)
    account = Account(party="bank", noise=2.0, delta=1e-5, budget=budget)
    assert account.allowed == allowed
    slow: Counter[tuple[str, int]] = Counter()
    for number, (part, batch) in enumerate(releases):
        samples = [(part, position) for position in PLAN.positions(batch).tolist()]
        if allowed is not None and max(slow[sample] for sample in samples) >= allowed:
            with pytest.raises(BudgetSpent):
                account.charge(*release(number, batch, part))
        else:
            account.charge(*release(number, batch, part))
            slow.update(samples)
        if number % look_every == 0:
            assert account.num_releases == max(slow.values(), default=0)
    counts = account.state()["counts"]
    assert all(counts[part][position] == count for (part, position), count in slow.items())
    assert sum(int(item.sum()) for item in counts.values()) == slow.total()


def test_a_budget_is_one_of_two() -> None:
    with pytest.raises(ConfigError, match=says("epsilon", "mu")):
        Budget()
    with pytest.raises(ConfigError, match=says("epsilon", "mu")):
        Budget(epsilon=1.0, mu=1.0)
    with pytest.raises(ConfigError, match="delta"):
        Budget(epsilon=1.0, delta=1.0)
