"""Organisations with hub and agents in threads: alignment, training and protections over links."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from agents import hub_of
from colonnade.core.errors import ConfigError, Refused
from colonnade.core.schedules import CosineSchedule
from colonnade.federate.peers import own_signer
from colonnade.federate.refused_proposals import refused_proposals
from colonnade.federate.run_at_party import read_agreed
from colonnade.federate.training import train_over
from colonnade.protect.ledger import verify_ledger
from colonnade.run.spec import read_spec
from e2e.organisations import CONFIG, HOLDER, PARTIES, Organisations
from federations import assert_bitwise_equal

BLIND = 'protect = [{ kind = "blind", range = 8.0 }]'


def trained(organisations: Organisations, **settings: Any) -> dict[str, Any]:
    spec = read_spec(organisations.config)
    with hub_of(organisations) as hub:
        return train_over(hub, spec, HOLDER, organisations.run, **settings)


@pytest.fixture
def make(tmp_path: Path) -> Any:
    # Nobody starts a process here, so nobody is needed who forks.
    return partial(Organisations, tmp_path, nursery=None, exchanges=6)


@pytest.mark.parametrize("method", ["splitnn", "fedbcd"])
def test_the_bits_are_those_without_a_network(make: Any, method: str) -> None:
    organisations = make(method=method, rates=', schedule = "cosine", clip = 0.5')
    told: list[str] = []
    remote = trained(organisations, say=told.append)
    assert told == ["aligning with shop, telco"]
    local, summary = organisations.in_process()
    assert_bitwise_equal(organisations.weights(), local)
    for key in ("quality", "exchanges", "local_steps", "bytes_up", "bytes_down", "num_samples"):
        assert remote[key] == summary[key], key
    assert json.loads((organisations.run / "summary.json").read_text()) == remote


def test_sample_weights_and_a_split_by_time_stay_with_the_label_holder(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIG.replace("[data]", '[data]\nsplit.time = "since_day"')
    config = config.replace("[label_holder]", '[label_holder]\nsample_weight = "weighs"')
    monkeypatch.setattr("e2e.organisations.CONFIG", config)
    organisations = make()
    file = organisations.root / "bank.csv"
    table = pd.read_csv(file, dtype={"id": str})
    days = pd.date_range("2024-01-01", periods=len(table))
    table.assign(weighs=np.arange(len(table)) % 3 + 1, since_day=days).to_csv(file, index=False)
    remote = trained(organisations)
    local, summary = organisations.in_process()
    assert_bitwise_equal(organisations.weights(), local)
    assert remote["quality"] == summary["quality"]
    assert remote["num_samples"] == summary["num_samples"]
    # Neither is a feature of the bank's, and no party hears of them.
    weights = organisations.weights()
    assert weights["bank.encoder.hidden0.weight"].shape[1] == table.shape[1] - 2
    for party in PARTIES:
        kept = [item for item in organisations.home(party).rglob("*.json*") if item.is_file()]
        assert kept
        for name in ("weighs", "since_day"):
            assert not [item.name for item in kept if name in item.read_text("utf-8", "replace")]


def test_a_run_is_resumed_on_its_alignment_and_no_other_one(make: Any) -> None:
    organisations = make(exchanges=9)
    wanted = organisations.config.read_text()
    organisations.config.write_text(wanted.replace("exchanges = 9", "exchanges = 6"))
    assert trained(organisations)["exchanges"] == 6
    organisations.config.write_text(wanted)
    # As an earlier revision wrote them, that did not know some keys.
    name = (organisations.run / "run_name").read_text()
    kept = [organisations.home(party) / "runs" / name / "agreed.json" for party in PARTIES]
    for file in (organisations.run / "config.json", *kept):
        plain = json.loads(file.read_text())
        settings = plain.get("settings", plain)
        del settings["start"], settings["label_holder"]["class_weights"]
        file.write_text(json.dumps(plain))
    told: list[str] = []
    assert trained(organisations, resume=True, say=told.append)["exchanges"] == 9
    assert told == []
    local, _ = organisations.in_process()
    assert_bitwise_equal(organisations.weights(), local)
    organisations.config.write_text(wanted.replace("batch_size = 8", "batch_size = 4"))
    with pytest.raises(ConfigError, match="batch_size"):
        trained(organisations, resume=True)


class TestFirstWeightsAreAPartysOwn:
    FIRST = "telco.encoder.hidden0.weight"

    def test_the_label_holders_seed_does_not_give_them(self, make: Any) -> None:
        organisations = make(common_seed=False, exchanges=3)
        trained(organisations)
        weights = organisations.weights()
        assert_bitwise_equal(weights, organisations.in_process()[0])
        guessed, _ = organisations.in_process(with_secrets=False)
        assert not torch.equal(weights[self.FIRST], guessed[self.FIRST])
        for name in PARTIES:
            secret = organisations.home(name) / "first_weights.key"
            assert secret.stat().st_mode & 0o777 == 0o600
            secret.write_text("00" * 32)
        assert not torch.equal(weights[self.FIRST], organisations.in_process()[0][self.FIRST])

    def test_a_resumed_run_has_the_same_bits(self, make: Any) -> None:
        organisations = make(common_seed=False, exchanges=9)
        wanted = organisations.config.read_text()
        organisations.config.write_text(wanted.replace("exchanges = 9", "exchanges = 6"))
        trained(organisations)
        organisations.config.write_text(wanted)
        assert trained(organisations, resume=True)["exchanges"] == 9
        assert_bitwise_equal(organisations.weights(), organisations.in_process()[0])


def test_a_party_trains_with_its_own_settings(make: Any) -> None:
    organisations = make(exchanges=3)
    with (organisations.home("telco") / "party.toml").open("a") as file:
        file.write('\n[own.encoder]\nkind = "mlp"\nhidden = [7, 5]\n')
        file.write('[own.optimizer]\nname = "sgd"\nlr = 0.01\nschedule = "cosine"\n')
        file.write('[own.prepare]\nskewed = "log"\n')
    trained(organisations)
    weights = organisations.weights()
    assert weights["telco.encoder.hidden0.weight"].shape == (7, 3)
    # The width is the agreed one; the shop has taken what was proposed.
    assert weights["telco.encoder.output.weight"].shape == (4, 5)
    assert weights["shop.encoder.hidden0.weight"].shape == (6, 3)
    name = (organisations.run / "run_name").read_text()
    agreed = read_agreed(organisations.home("telco") / "runs" / name)
    assert agreed.spec.optimizer_of("telco").lr == 0.01
    assert agreed.spec.optimizer_of("telco").schedule == CosineSchedule()
    assert agreed.preparation.spec.skewed == "log"


def test_blinded_by_pinned_keys_the_bits_are_the_same_too(make: Any) -> None:
    policies = dict.fromkeys(PARTIES, 'require = ["blind"]')
    organisations = make(combine="mean", protect=BLIND, policies=policies)
    for name, other in (PARTIES, PARTIES[::-1]):
        key = own_signer(organisations.home(other)).public.hex()
        path = organisations.root / f"{name}.policy.toml"
        path.write_text(f'{path.read_text()}\npeers = {{ {other} = "{key}" }}\n')
    trained(organisations)
    local, _ = organisations.in_process()
    assert_bitwise_equal(organisations.weights(), local)
    name = (organisations.run / "run_name").read_text()
    for party in PARTIES:
        place = organisations.home(party) / "runs" / name
        assert verify_ledger(place)[1] is None
        assert '"protection":"blind"' in (place / "ledger.jsonl").read_text()


def test_what_a_policy_forbids_is_refused_and_noted(make: Any) -> None:
    policies = dict.fromkeys(PARTIES, 'methods = ["fedbcd"]')
    organisations = make(policies=policies)
    with pytest.raises(Refused, match="splitnn"):
        trained(organisations)
    name = (organisations.run / "run_name").read_text()
    entries = list(refused_proposals(organisations.home("shop")))
    assert [(item["run"], item["verb"]) for item in entries] == [(name, "consider")]
    assert not (organisations.home("shop") / "runs" / name).exists()
    # Nobody spent an alignment on it.
    assert not (organisations.home("shop") / "alignments.json").exists()
