"""A cheating label holder undoes blinding while masks cancel: by rolls, weights, sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from at_home import AtHome
from colonnade.core.errors import Refused
from colonnade.core.messages import Batch, Summand
from colonnade.federate.party_policy import PartyPolicy
from colonnade.federate.peers import own_signer
from colonnade.protect.blind import Blind, Blinding
from colonnade.protect.protection_spec import SumRules
from colonnade.protect.ring import sum_of
from colonnade.protect.signatures import Ed25519Signer, PinnedVerifier

Measured = Callable[..., None]
NAMES = ("shop", "telco")
RING = Blind(range=8.0)
BLINDED = {
    "label_holder": {"name": "bank", "fusion": {"kind": "mlp", "combine": "mean"}},
    "defaults": {
        "encoder": {"kind": "mlp", "hidden": [8], "embedding": 4},
        "protect": [{"kind": "blind", "range": 8.0}],
    },
}
NUM = 24


@pytest.fixture
def pair(tmp_path: Path) -> AtHome:
    """Shop and telco, who know each other's keys."""
    draw = np.random.default_rng(4)
    keys = {name: own_signer(tmp_path / name).public.hex() for name in NAMES}
    policies = {
        name: PartyPolicy(peers={other: keys[other] for other in NAMES if other != name})
        for name in NAMES
    }
    tables = {name: draw.normal(size=(NUM, 3)) for name in NAMES}
    return AtHome(tmp_path, tables, policies=policies, allow_unprotected=False)


def agree(pair: AtHome) -> None:
    offers = {name: pair.ask(name, "offer_key")["offer"] for name in NAMES}
    for name in NAMES:
        pair.ask(name, "accept_keys", offers)


def received_sum(pair: AtHome, serial: int = 0) -> Tensor:
    batch, summand = Batch("train", 0), Summand(serial, NAMES)
    answers = tuple(pair.ask(name, "embed", batch, summand=summand) for name in NAMES)
    total = sum_of(answers, RING, torch.float32)
    assert total is not None
    return total


def plain(pair: AtHome, name: str) -> Tensor:
    party = pair.party(name)
    with torch.no_grad():
        return party.encoder(party.rows(Batch("train", 0)))  # type: ignore[no-any-return]


def error_of(pair: AtHome) -> float:
    """How far the sum received is from that of both embeddings."""
    true = plain(pair, "shop") + plain(pair, "telco")
    return float((received_sum(pair) - true).abs().median())


def assembled(pair: AtHome, **rolls: Any) -> None:
    for name in NAMES:
        failure = pair.assemble(name, rolls.get(f"{name}_settings", BLINDED), rolls.get(name))
        assert failure is None, failure
    agree(pair)


def test_told_the_same_the_sum_is_exact(pair: AtHome) -> None:
    """Else the attacks below would show nothing."""
    assembled(pair)
    assert error_of(pair) < 1e-3


@pytest.mark.attack(
    what="Peers told another roll or other settings, so that the sum shows one party",
    has="the rolls and settings that it tells each party (cheating)",
    before="masks cancelled: the sum was one party's embedding and a constant",
    now="masks don't cancel: the sum is off by {error:.0f} (range ±8)",
)
@pytest.mark.parametrize("lie", ["another roll", "another seed", "another batch size"])
def test_masks_of_parties_that_were_told_different_things_don_t_cancel(
    pair: AtHome, lie: str, measured: Measured
) -> None:
    told: dict[str, Any] = {"shop": [*range(1, NUM), 0]}
    if lie == "another seed":
        told = {"shop_settings": {**BLINDED, "seed": 1}}
    elif lie == "another batch size":
        told = {"shop_settings": {**BLINDED, "data": {"batch_size": NUM + 1}}}
    assembled(pair, **told)
    error = error_of(pair)
    measured(error=error)
    assert error > 100


@pytest.mark.attack(
    what="A roll of one repeated sample, so that a peer's part is constant",
    has="the roll (cheating)",
    before="the sum was the other party's embedding, up to a constant",
    now="refused, rule 'distinct samples'",
)
def test_a_roll_of_one_sample_is_refused(pair: AtHome) -> None:
    failure = pair.assemble("shop", BLINDED, [3] * NUM)
    assert failure is not None
    assert "rule 'distinct samples'" in failure.message


@pytest.mark.attack(
    what="Peers' weights driven to zero by weight decay",
    has="the peers' optimizer settings, gradients of zero (cheating)",
    before="the sum was one party's embedding after some hundred steps",
    now="refused, rule 'largest_shrinkage'; the most that is allowed leaves {left:.0%} of the "
    "weights after 1,000 steps; a part that is the same for all samples is refused, 'flat_parts'",
)
def test_weights_can_t_be_driven_to_zero(pair: AtHome, measured: Measured) -> None:
    for name, decay in (("sgd", 0.5), ("adamw", 0.5), ("adam", 1e-6)):
        optimizer = {"name": name, "lr": 0.5, "options": {"weight_decay": decay}}
        proposed = {**BLINDED, "party": {"shop": {"optimizer": optimizer}}}
        failure = pair.assemble("shop", proposed)
        assert failure is not None
        assert "rule 'largest_shrinkage'" in failure.message
    # The most that is allowed, with gradients of zero.
    most = {"name": "sgd", "lr": 1.0, "options": {"weight_decay": 1e-4}}
    told = {**BLINDED, "party": {"shop": {"optimizer": most}}}
    assembled(pair, shop_settings=told)
    shop = pair.party("shop")
    before = shop.encoder.hidden0.weight.norm().item()  # type: ignore[union-attr, operator]
    for _ in range(1000):
        for parameter in shop.encoder.parameters():
            parameter.grad = torch.zeros_like(parameter)
        shop.optimizer.step()
    left = shop.encoder.hidden0.weight.norm().item() / before  # type: ignore[union-attr, operator]
    measured(left=left)
    assert left > 0.9


def test_a_party_whose_weights_are_zero_stays_out_of_sums(pair: AtHome) -> None:
    assembled(pair)
    with torch.no_grad():
        for parameter in pair.party("shop").encoder.parameters():
            parameter.zero_()
    failure = pair.failure("shop", "embed", Batch("train", 0), summand=Summand(0, NAMES))
    assert failure is not None
    assert "rule 'flat_parts'" in failure.message


@pytest.mark.attack(
    what="Differencing: a sum with a party, and the same sum without it",
    has="the choice of parties in each sum (cheating)",
    before="the difference was the party's embedding",
    now="refused by default, rule 'fixed_participants'",
)
def test_sums_are_over_everybody_or_nobody() -> None:
    names = ("anna", "bert", "carl")
    signers = {name: Ed25519Signer() for name in names}
    pinned = {name: signer.public for name, signer in signers.items()}
    rules = PartyPolicy().sum_rules(frozenset(names))
    assert isinstance(rules, SumRules)
    parties = {
        name: Blinding(
            Blind(),
            party=name,
            signer=signers[name],
            verifier=PinnedVerifier(name, pinned),
            rules=rules,
        )
        for name in names
    }
    offers = {name: party.offer() for name, party in parties.items()}
    parties["anna"].accept(offers)
    parties["anna"].check(Summand(0, names))
    with pytest.raises(Refused, match="fixed_participants"):
        parties["anna"].check(Summand(1, ("anna", "bert")))
