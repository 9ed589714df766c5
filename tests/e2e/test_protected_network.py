"""Protections between real processes: at the party, by its own policy, in its own ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colonnade.federate.peers import own_signer
from colonnade.federate.refused_proposals import refused_proposals
from colonnade.protect.ledger import verify_ledger
from colonnade.run.storage import read_json
from e2e.organisations import Organisations
from federations import assert_bitwise_equal

SECONDS = 120
PARTIES = ("shop", "telco")
BLIND = 'protect = [{ kind = "blind", range = 8.0 }]'
PERTURB = 'protect = [{ kind = "perturb", clip = 1.0, noise = 0.5 }]'


def trained(organisations: Organisations) -> int | None:
    for name in PARTIES:
        organisations.start_party(name)
    return organisations.start_hub().wait(SECONDS)


def pin(organisations: Organisations) -> None:
    """Each party has the other's key in its policy, as told by telephone."""
    for name, other in (PARTIES, PARTIES[::-1]):
        key = own_signer(organisations.home(other)).public.hex()
        policy = organisations.root / f"{name}.policy.toml"
        policy.write_text(f'{policy.read_text()}\npeers = {{ {other} = "{key}" }}\n')


def ledger_of(organisations: Organisations, name: str) -> Path:
    run = (organisations.run / "run_name").read_text()
    return organisations.home(name) / "runs" / run


def test_a_blinded_run_gives_the_bits_of_one_process(make: Any) -> None:
    organisations = make(
        combine="mean", protect=BLIND, policies=dict.fromkeys(PARTIES, 'require = ["blind"]')
    )
    pin(organisations)
    assert trained(organisations) == 0, organisations.logs()
    local, _ = organisations.in_process()
    assert_bitwise_equal(organisations.weights(), local)
    for name in PARTIES:
        place = ledger_of(organisations, name)
        assert verify_ledger(place)[1] is None
        assert '"protection":"blind"' in (place / "ledger.jsonl").read_text()


def test_without_the_others_key_in_its_policy_a_party_does_not_blind(make: Any) -> None:
    organisations = make(combine="mean", protect=BLIND)
    assert trained(organisations) == 1
    assert "Refused: party 'shop' refuses, rule 'identity'" in organisations.logs()
    summary = read_json(organisations.run / "summary.json")
    assert (summary["stopped_by"], summary["exchanges"]) == ("refused", 0)
    assert "it knows no party" in (organisations.run / "run.log").read_text()


def test_a_policy_is_enforced_at_the_party_and_the_refusal_is_in_its_log(make: Any) -> None:
    rules = {"shop": 'require = ["perturb"]', "telco": ""}
    organisations = make(policies=rules)
    assert trained(organisations) not in (0, None)
    assert "rule 'require'" in organisations.logs()
    (refused,) = refused_proposals(organisations.home("shop"))
    assert "rule 'require'" in refused["reason"]


def test_a_spent_budget_ends_the_run_and_is_told(make: Any) -> None:
    rules = {"shop": "budget = { mu = 4.0 }", "telco": ""}
    organisations = make(protect=PERTURB, policies=rules, exchanges=100)
    assert trained(organisations) == 0
    assert "rule 'budget'" in (organisations.run / "run.log").read_text()
    summary = read_json(organisations.run / "summary.json")
    assert summary["stopped_by"] == "refused"
    assert summary["exchanges"] > 0
    for name in PARTIES:
        assert verify_ledger(ledger_of(organisations, name))[1] is None
