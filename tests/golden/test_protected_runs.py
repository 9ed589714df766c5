"""Whole runs under protection: every composition, bit for bit where it should be, and refusals."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from colonnade.core.errors import (
    BudgetSpent,
    ColonnadeError,
    ConfigError,
    NoAnswer,
    PartyFailed,
    Refused,
)
from colonnade.core.federation import Federation, LoopState
from colonnade.core.messages import Batch, Call, Summand
from colonnade.core.party import Party
from colonnade.data.blocks import Labels, make_block
from colonnade.methods import METHODS
from colonnade.protect.ledger import Ledger, read_ledger, verify_ledger
from colonnade.protect.secure_sum import RingSums
from colonnade.quality.evaluation import evaluate
from colonnade.run.engine import train
from colonnade.run.fitting import fit_blueprint
from colonnade.run.samples import arrange
from colonnade.run.sources import Sources
from colonnade.run.spec import parse_spec
from colonnade.run.storage import party_directory, read_json
from federations import MemoryVault, assert_bitwise_equal, checkpoint, resume, weights
from federations import train as train_on
from messages import says

NUM_SAMPLES = 48
PERTURB = {"kind": "perturb", "noise": 2.0}
CHAINS: Mapping[str, list[Any]] = {
    "perturb": [PERTURB],
    "top_k": [{"kind": "top_k", "keep": 0.5, "feedback": True}],
    "random_k": [{"kind": "random_k", "keep": 0.5}],
    "quantize": [{"kind": "quantize", "bits": 4, "feedback": True}],
    "perturb, then quantize": [PERTURB, {"kind": "quantize", "bits": 8}],
}
SUMS: Mapping[str, list[Any]] = {
    "fixed": ["fixed"],
    "blind": ["blind"],
    "blind in the large ring": [{"kind": "blind", "ring_bits": 64, "fraction_bits": 40}],
    "perturb, then blind": [PERTURB, "blind"],
}
MEAN = {"fusion": {"kind": "mlp", "hidden": [5], "combine": "mean"}}
# Labels that parties share are a matter of their own; so is who is at one place.
FEDERATED = [
    name for name, item in METHODS.items() if item().needs.protectable and not item().needs.pooled
]


def sources(holder: str = "bank", names: tuple[str, ...] = ("bank", "shop", "telco")) -> Sources:
    draw = np.random.default_rng(5)
    ids = [f"c{number:03d}" for number in range(NUM_SAMPLES)]
    blocks = {}
    signal = np.zeros(NUM_SAMPLES)
    for name in names:
        table = pd.DataFrame(draw.normal(size=(NUM_SAMPLES, 3)), index=ids, columns=list("abc"))
        signal = signal + table["a"].to_numpy()
        blocks[name] = make_block(name, table)
    labels = Labels(ids=np.array(ids, dtype=object), values=(signal > 0).astype(int), name="y")
    return Sources(blocks=blocks, labels=labels, label_holder=holder)


def settings(protect: list[Any], method: Any = "splitnn", **more: Any) -> dict[str, Any]:
    return {
        "method": method,
        "data": {"batch_size": 8},
        "defaults": {
            "encoder": {"kind": "mlp", "hidden": [6], "embedding": 4, "dropout": 0.2},
            "optimizer": {"name": "sgd", "lr": 0.1},
            "protect": protect,
        },
        "label_holder": MEAN,
        "stop": {"exchanges": 9, "evaluate_every": 4},
        "record": {"checkpoint_every": 3},
        **more,
    }


def build(
    values: Mapping[str, Any], given: Sources | None = None, ledgers: Path | None = None
) -> Federation:
    spec = parse_spec(values)
    given = given or sources()
    arrangement = arrange(spec, given)
    blueprint = fit_blueprint(spec, given, arrangement)
    federation = blueprint.build(blueprint.training_data(arrangement))
    for name, party in federation.fabric.parties.items():
        if ledgers is not None:
            party.settle_in(MemoryVault(), Ledger(ledgers / name, run="run"))
    return federation


def counts_of(party: Party, part: str) -> Tensor:
    """How often each sample of a part was released."""
    return party.door.state()["protections"]["perturb"]["account"]["counts"][part]


def same_secrets(federation: Federation, other: Federation) -> None:
    """Give the parties of one federation the secrets of another's."""
    for name, party in federation.fabric.parties.items():
        party.door.restore(copy.deepcopy(other.fabric.parties[name].door.state()))


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("method", FEDERATED)
@pytest.mark.parametrize("fabric", ["in_process", "simulated"])
def test_every_method_runs_under_every_chain_that_keeps_embeddings_apart(
    method: str, chain: str, fabric: str
) -> None:
    result = train(parse_spec(settings(CHAINS[chain], method, fabric=fabric)), sources=sources())
    assert result.summary["stopped_by"] == "length"
    assert np.isfinite(result.summary["quality"]["test"]["loss"])
    spent = result.summary["privacy"]
    for name in result.summary["parties"]:
        has_account = name != "bank" and "perturb" in result.summary["protections"][name]
        assert (spent[name] is not None) == has_account


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {*FEDERATED, "centralized"}))
def test_method_that_goes_past_the_encoder_takes_no_protection(method: str) -> None:
    with pytest.raises(ConfigError, match=says("method.name", f"'{method}'", "protect")):
        build(settings(CHAINS["perturb"], method))


@pytest.mark.parametrize("method", ["splitnn", "fedbcd", "easter", "aggvfl"])
@pytest.mark.parametrize("chain", SUMS)
def test_sums_run_with_mean_fusion(method: str, chain: str) -> None:
    for holder in ("bank", "judge"):
        result = train(parse_spec(settings(SUMS[chain], method)), sources=sources(holder))
        assert result.summary["stopped_by"] == "length"
        proba = result.predict_proba(
            {name: pd.DataFrame(np.ones((3, 3)), columns=list("abc")) for name in result.parties}
        )
        assert proba.shape == (3, 2)


@pytest.mark.parametrize("method", ["splitnn", "fedbcd", "easter", "aggvfl"])
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("holder", ["bank", "judge"])
def test_blinded_training_is_unblinded_fixed_point_training(
    method: Any, bits: int, holder: str
) -> None:
    runs = []
    for kind in ("blind", "fixed"):
        protect = [{"kind": kind, "ring_bits": bits}]
        federation = build(settings(protect, method), sources(holder))
        losses = [event.loss for event in train_on(federation, 25)]
        outputs = federation.predictions("test", federation.holder.parts["test"].plan).outputs
        runs.append((weights(federation), losses, outputs))
    assert_bitwise_equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
    assert torch.equal(runs[0][2], runs[1][2])


def test_fixed_point_training_is_close_to_plain_training() -> None:
    protect = [{"kind": "fixed", "ring_bits": 64, "fraction_bits": 48}]
    fixed = build(settings(protect, dtype="float64"))
    plain = build(settings([], dtype="float64"))
    train_on(fixed, 20)
    train_on(plain, 20)
    for (key, one), other in zip(weights(fixed).items(), weights(plain).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=key)


def test_the_label_holder_sees_masked_numbers_only() -> None:
    seen: dict[str, list[torch.Tensor]] = {}
    blinded, fixed = build(settings(["blind"])), build(settings(["fixed"]))
    for kind, federation in (("blind", blinded), ("fixed", fixed)):
        party = federation.fabric.parties["shop"]
        execute = party.execute

        def noting(call: Call, kind: str = kind, execute: Any = execute) -> Any:
            reply = execute(call)
            if call.verb in ("embed", "infer"):
                seen.setdefault(kind, []).append(reply.value)
            return reply

        party.execute = noting
        train_on(federation, 6)
    for hidden, plain in zip(seen["blind"], seen["fixed"], strict=True):
        assert hidden.dtype == plain.dtype == torch.int32
        assert (plain.abs() < 2**26).all()
        assert (hidden.abs() > 2**26).float().mean() > 0.8


ALL = {**CHAINS, **SUMS}


@pytest.mark.parametrize("chain", ALL)
@pytest.mark.parametrize("method", ["splitnn", "easter"])
def test_resume_is_bitwise_under_every_chain(chain: str, method: str) -> None:
    values = settings(ALL[chain], method)
    whole = build(values)
    half = build(values)
    same_secrets(half, whole)
    list(train_on(whole, 7))
    train_on(half, 4)
    kept = checkpoint(half)
    train_on(half, 6)  # what is lost when the process is killed
    again = build(values)
    resume(again, kept)
    train_on(again, 7, LoopState(exchange=4))
    assert_bitwise_equal(weights(whole), weights(again))
    for name, party in whole.fabric.parties.items():
        if party.door.spent():
            # Of the training part: a run that stops on the way is evaluated there as well.
            counts, same = (
                counts_of(item, "train") for item in (party, again.fabric.parties[name])
            )
            assert torch.equal(counts, same)


@pytest.mark.parametrize("method", ["vafl", "flex", "async"])
def test_resume_is_bitwise_with_uploads_under_way(method: str) -> None:
    fabric = {"name": "simulated", "default": {"encode": 3, "step": 2, "latency": 5}}
    values = settings(CHAINS["perturb, then quantize"], method, fabric=fabric)
    whole, half, again = build(values), build(values), build(values)
    same_secrets(half, whole)
    train_on(whole, 20)
    train_on(half, 11)
    resume(again, checkpoint(half))
    train_on(again, 20, LoopState(exchange=11))
    assert_bitwise_equal(weights(whole), weights(again))


def test_noise_does_not_come_from_the_run_s_seed() -> None:
    one, other = build(settings([PERTURB])), build(settings([PERTURB]))
    batch = Batch("train", 0)
    party, same = (item.fabric.parties["shop"] for item in (one, other))
    assert not torch.equal(party.encode(batch), same.encode(batch))
    plain, plain_too = (build(settings([])).fabric.parties["shop"] for _ in range(2))
    assert torch.equal(plain.encode(batch), plain_too.encode(batch))


def test_local_steps_are_not_releases() -> None:
    method = {"name": "fedbcd", "local_steps": 5}
    federation = build(settings([PERTURB], method))
    num_batches = federation.holder.parts["train"].plan.num_batches
    train_on(federation, 2 * num_batches)
    # Two epochs; and one evaluation at the end, of other samples.
    assert federation.fabric.parties["shop"].door.spent()["releases"] == 2


def test_predictions_are_released_and_counted() -> None:
    federation = build(settings([PERTURB]))
    door = federation.fabric.parties["shop"].door
    first = federation.predictions("test", federation.holder.parts["test"].plan).outputs
    second = federation.predictions("test", federation.holder.parts["test"].plan).outputs
    assert door.spent()["releases"] == 2
    assert not torch.equal(first, second)


@pytest.mark.parametrize("holder", ["bank", "judge"])
@pytest.mark.parametrize("method", [name for name in FEDERATED if name != "alone"])
def test_an_evaluation_is_one_release_of_each_sample(method: str, holder: str) -> None:
    """Also where parties have models of their own and are measured beside the federation's."""
    federation = build(settings([PERTURB], method), sources(holder))
    federation.fabric.run(federation.method.begin(federation.holder, federation.parties))
    parties = {name: party for name, party in federation.fabric.parties.items() if name != holder}
    for number in (1, 2):
        evaluate(federation, "validation")
        for party in parties.values():
            counts = counts_of(party, "validation")
            assert set(counts.tolist()) == {number}


# Alone has no parties to ask without a block of the label holder's; cvfl rounds by lot.
REPEATABLE = [name for name in METHODS if name not in ("alone", "centralized", "cvfl")]


@pytest.mark.parametrize("holder", ["bank", "judge"])
@pytest.mark.parametrize("method", REPEATABLE)
def test_asked_once_the_answers_are_those_of_asking_twice(method: str, holder: str) -> None:
    federation = build(settings([], method), sources(holder))
    train_on(federation, 4)
    plan = federation.holder.parts["validation"].plan
    one, all_of_them = (
        federation.predictions("validation", plan, each=each) for each in (False, True)
    )
    assert torch.equal(one.outputs, all_of_them.outputs)
    assert one.used == all_of_them.used
    for name, item in one.each.items():
        assert torch.equal(item.outputs, all_of_them.each[name].outputs)


# What can't be is refused before the start.

IMPOSSIBLE: Mapping[str, tuple[dict[str, Any], str]] = {
    "concat": (
        settings(["blind"], label_holder={"fusion": {"kind": "mlp", "combine": "concat"}}),
        says("protect", "'blind'", "combine = 'concat'"),
    ),
    "vafl": (settings(["blind"], "vafl"), says("protect", "'blind'", "'vafl'")),
    "flex": (settings(["fixed"], "flex"), says("protect", "'fixed'", "'flex'")),
    "packed": (
        settings([{"kind": "quantize", "bits": 4}, "blind"]),
        r"party\.\w+\.protect: .*packed",
    ),
    "cvfl": (settings(["blind"], "cvfl"), r"protect: .*(packed|'cvfl')"),
    "twice": (settings([PERTURB, PERTURB]), says("party.shop.protect", "'perturb'", "once")),
    "order": (settings(["blind", PERTURB]), says("party.shop.protect", "'blind'", "last")),
    "late noise": (
        settings([{"kind": "quantize", "bits": 4}, PERTURB]),
        says("party.shop.protect", "'quantize'", "last"),
    ),
    "some only": (
        settings([], party={"shop": {"protect": ["blind"]}}),
        says("party.telco.protect", "'blind'", "defaults.protect"),
    ),
    "different rings": (
        settings(["blind"], party={"shop": {"protect": [{"kind": "blind", "range": 8.0}]}}),
        says("party.telco.protect", "'blind'", "defaults.protect"),
    ),
    "overflow": (
        settings([{"kind": "blind", "range": 1000.0}]),
        says("protect", "3 parties", 1000, "32 bits", "2 parties", "ring_bits"),
    ),
    "centralized": (
        settings([PERTURB], "centralized"),
        says("method.name", "'centralized'", "protect"),
    ),
    "unknown": (settings(["blur"]), says("defaults.protect[0].kind", "'blur'")),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_can_t_be_is_refused_before_the_start(case: str, tmp_path: Path) -> None:
    values, reason = IMPOSSIBLE[case]
    with pytest.raises(ConfigError, match=reason):
        train(parse_spec(values), sources=sources(), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_passive_party_has_nothing_to_hide_behind() -> None:
    for given in (sources("bank", ("bank", "shop")), sources("judge", ("shop",))):
        with pytest.raises(ConfigError, match=says("'blind'", "least 2", 1)):
            build(settings(["blind"]), given)


@pytest.mark.parametrize(
    ("method", "verbs"), [("splitnn", ("infer", "embed")), ("aggvfl", ("predict", "conclude"))]
)
def test_a_blinded_party_does_not_send_its_embedding_by_itself(
    method: str, verbs: tuple[str, ...]
) -> None:
    federation = build(settings(["blind"], method))
    for verb in verbs:
        with pytest.raises(Refused, match=says("'shop'", "rule 'blind'", f"'{verb}'")):
            federation.fabric.run(federation.parties.ask(verb, Batch("test", 0), among=["shop"]))
    # The label holder's own block is at its side.
    asked = federation.parties.ask("infer", Batch("test", 0), among=["bank"])
    assert set(federation.fabric.run(asked)) == {"bank"}


def test_a_sum_is_asked_for_call_by_call() -> None:
    """What one call said of a sum holds for no other, also if the call fails."""
    parties = build(settings(["blind"])).parties
    names = ("shop", "telco")
    batch = Batch("test", 0)

    def asked(verb: str, *arguments: Any, summand: Summand | None = None) -> dict[str, Any]:
        call = parties.ask(verb, *arguments, among=names, summand=summand)
        answers: dict[str, Any] = parties.fabric.run(call)
        return answers

    total = parties.fabric.run(parties.total("infer", batch, among=names))
    assert total.names == names
    with pytest.raises(PartyFailed, match=says("'shop'", "ProtocolError: 'local_steps'")):
        asked("local_steps", summand=Summand(1, names))
    with pytest.raises(Refused, match=says("'shop'", "rule 'fresh masks'", "serial 1")):
        asked("infer", batch, summand=Summand(1, names))
    with pytest.raises(Refused, match=says("'shop'", "rule 'blind'", "'infer'")):
        asked("infer", batch)
    answers = asked("infer", batch, summand=Summand(2, names))
    assert {item.dtype for item in answers.values()} == {torch.int32}


def test_who_sends_ordinary_numbers_is_part_of_no_sum() -> None:
    parties = build(settings([PERTURB])).parties
    summand = Summand(0, ("shop", "telco"))
    asked = parties.ask("infer", Batch("test", 0), among=summand.names, summand=summand)
    with pytest.raises(PartyFailed, match=says("'shop'", "sum")):
        parties.fabric.run(asked)


# Somebody drops out in the middle of an exchange.


def test_an_exchange_is_done_again_among_those_present() -> None:
    fabric = {
        "name": "simulated",
        "default": {"encode": 1, "step": 1, "latency": 1},
        "party": {"telco": {"sleep": {"kind": "random", "probability": 0.3, "ticks": 9000}}},
    }
    names = ("bank", "depot", "shop", "telco")
    patience = {"timeout": 1000, "then": "continue"}
    final = []
    for kind in ("blind", "fixed"):
        values = settings([kind], fabric=fabric, patience=patience, stop={"exchanges": 12})
        federation = build(values, sources("bank", names))
        events = train_on(federation, 12)
        assert np.isfinite([event.loss for event in events]).all()
        final.append(federation)
    sums = final[0].sums
    assert isinstance(sums, RingSums)
    assert sums.num_repeated > 0
    assert final[1].sums.num_repeated == 0


def test_a_sum_of_one_is_never_taken() -> None:
    fabric = {
        "name": "simulated",
        "party": {"telco": {"sleep": {"kind": "random", "probability": 1.0, "ticks": 9000}}},
    }
    patience = {"timeout": 1000, "then": "continue"}
    federation = build(settings(["blind"], fabric=fabric, patience=patience))
    with pytest.raises(NoAnswer, match=says("exchange 1", "'embed'", ["bank", "shop"])):
        train_on(federation, 3)


# Policy and budget.


def with_policy(tmp_path: Path, text: str, values: dict[str, Any]) -> dict[str, Any]:
    file = tmp_path / "shop-policy.toml"
    file.write_text(text, encoding="utf-8")
    return {**values, "party": {**values.get("party", {}), "shop": {"policy": str(file)}}}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('methods = ["fedbcd", "vafl"]', ("rule 'methods'", "'splitnn'")),
        ('columns = ["a", "b"]', ("rule 'columns'", ["c"])),
        ('require = ["perturb"]', ("rule 'require'", "'perturb'")),
        ('forbid = ["quantize"]', ("rule 'forbid'", "'quantize'")),
        ("least_noise = 4.0", ("rule 'least_noise'", 0, 4)),
        ("[budget]\nepsilon = 1.0", ("rule 'budget'", "'perturb'")),
        ("rows = 0.5", ("rule 'rows'", 48, 0.5)),
    ],
)
def test_every_refusal_names_the_rule(text: str, rule: tuple[object, ...], tmp_path: Path) -> None:
    values = with_policy(tmp_path, text, settings([{"kind": "quantize", "bits": 4}]))
    with pytest.raises(Refused, match=says("'shop'", "policy", *rule)) as caught:
        train(parse_spec(values), sources=sources(), directory=tmp_path / "run")
    assert caught.value.party == "shop"
    assert not (tmp_path / "run").exists()


def test_shared_labels_can_be_forbidden(tmp_path: Path) -> None:
    shared = settings([], {"name": "flex", "labels": "shared"})
    with pytest.raises(Refused, match=says("'shop'", "rule 'shared_labels'", "'flex'")):
        build(with_policy(tmp_path, "shared_labels = false", shared))
    build(with_policy(tmp_path, "shared_labels = false", settings([], "flex")))


def test_a_policy_that_can_t_be_read_is_named(tmp_path: Path) -> None:
    for text, reason in (
        ("rows = 2.0", ("rows", 2.0)),
        ("row = 1", ("row", "'rows'")),
        ("=", ("line 1",)),
    ):
        with pytest.raises(
            ConfigError, match=says("party.shop.policy", "shop-policy.toml", *reason)
        ):
            build(with_policy(tmp_path, text, settings([])))
    with pytest.raises(ConfigError, match=says("party.shop.policy", "none.toml", "no such file")):
        build(settings([], party={"shop": {"policy": str(tmp_path / "none.toml")}}))


@pytest.mark.parametrize("directory", [True, False])
def test_a_spent_budget_ends_the_run_with_the_last_checkpoint(
    directory: bool, tmp_path: Path
) -> None:
    """μ = 2√k/2 for k releases: two epochs fit, the third does not."""
    base = settings([PERTURB], stop={"epochs": 5, "evaluate_every": 100})
    values = with_policy(tmp_path, "[budget]\nmu = 1.5", base)
    root = tmp_path / "run" if directory else None
    result = train(parse_spec(values), sources=sources(), directory=root)
    summary = result.summary
    assert summary["stopped_by"] == "refused"
    assert summary["refusal"]["party"] == "shop"
    assert "rule 'budget'" in summary["refusal"]["reason"]
    assert summary["privacy"]["shop"]["releases"] == 2
    assert summary["privacy"]["shop"]["mu"] <= 1.5
    num_batches = -(-summary["num_samples"]["train"] // 8)
    assert summary["exchanges"] == 2 * num_batches // 3 * 3
    # Held-out samples were released less often: they are still measured.
    assert "test" in summary["quality"]
    if root is None:
        return
    assert read_json(root / "checkpoint.json")["tag"] == f"exchange-{summary['exchanges']:09d}"
    refusals = [
        entry for entry in read_ledger(party_directory(root, "shop")) if entry["event"] == "refused"
    ]
    assert [entry["rule"] for entry in refusals] == ["BudgetSpent"]
    # It stays spent: whoever resumes is refused again, at once.
    again = train(parse_spec(values), sources=sources(), directory=root, resume=True)
    assert again.summary["stopped_by"] == "refused"
    assert again.summary["privacy"]["shop"]["releases"] == 2


@pytest.mark.parametrize("directory", [True, False])
def test_a_refusal_before_anything_was_learned_is_an_error(directory: bool, tmp_path: Path) -> None:
    values = with_policy(tmp_path, "[budget]\nmu = 0.5", settings([PERTURB]))
    root = tmp_path / "run" if directory else None
    with pytest.raises(BudgetSpent, match="rule 'budget'"):
        train(parse_spec(values), sources=sources(), directory=root)
    if root is not None:
        summary = read_json(root / "summary.json")
        assert (summary["stopped_by"], summary["exchanges"]) == ("refused", 0)
        assert verify_ledger(party_directory(root, "shop"))[1] is None


@pytest.mark.parametrize("directory", [True, False])
def test_weights_that_go_back_to_the_best_take_no_release_back(
    directory: bool, tmp_path: Path
) -> None:
    """A run that ends with earlier weights has released what it has released."""
    stop = {"epochs": 40, "patience": 5}
    values = settings([PERTURB], stop=stop, record={}, seed=2)
    root = tmp_path / "run" if directory else None
    summary = train(parse_spec(values), sources=sources(), directory=root).summary
    assert summary["stopped_by"] == "patience"
    assert summary["best_exchange"] < summary["exchanges"]
    assert summary["privacy"]["shop"]["releases"] >= summary["epochs"]


def spent_at(federation: Federation) -> float:
    return federation.fabric.parties["shop"].door.spent()["releases"]


def test_a_party_that_begins_anew_recalls_what_it_released(tmp_path: Path) -> None:
    """Killed after 10 of 14 exchanges, resumed from the fifth: what is sent again is no news."""
    values = settings([PERTURB], data={"batch_size": 8, "split": {"test": 0.2}})
    whole = build(values, ledgers=tmp_path / "whole")
    for begin, end in ((0, 5), (5, 10), (10, 14)):
        train_on(whole, end, LoopState(exchange=begin))
    killed = build(values, ledgers=tmp_path / "killed")
    train_on(killed, 5)
    kept = checkpoint(killed)
    train_on(killed, 10, LoopState(exchange=5))
    before = spent_at(killed)
    again = build(values, ledgers=tmp_path / "killed")
    resume(again, kept)
    assert spent_at(again) == before
    train_on(again, 10, LoopState(exchange=5))
    assert spent_at(again) == before
    assert_bitwise_equal(weights(again), weights(killed))
    train_on(again, 14, LoopState(exchange=10))
    assert spent_at(again) == spent_at(whole)


def test_a_label_holder_can_not_go_back_to_an_earlier_budget(tmp_path: Path) -> None:
    """Put back to a checkpoint again and again, and asked for something else each time."""
    policies = tmp_path / "policies"
    policies.mkdir()
    values = with_policy(policies, "[budget]\nmu = 2.0", settings([PERTURB]))
    kept = checkpoint(build(values))

    def ask(turn: int) -> None:
        anew = build(values, ledgers=tmp_path / "ledgers")
        resume(anew, kept)
        anew.fabric.parties["shop"].parts["train"].features.mul_(1.0 + turn)
        anew.fabric.run(anew.parties.ask("embed", Batch("train", 0), among=["shop"]))

    for turn in range(4):  # μ = 2√k/2
        ask(turn)
    ask(3)  # the same again
    with pytest.raises(BudgetSpent, match=says("'shop'", "rule 'budget'", "5 releases")):
        ask(4)


# The ledger of a run.


@pytest.mark.parametrize(
    ("chain", "method", "expected"),
    [
        (["blind"], "easter", {"offer_key": "none", "embed": "blind", "decide": "none"}),
        ([PERTURB, "blind"], "easter", {"embed": "perturb+blind", "decide": "perturb"}),
        ([PERTURB], "splitnn", {"embed": "perturb", "infer": "perturb", "privacy_spent": "none"}),
        ([{"kind": "quantize", "bits": 4}], "easter", {"embed": "quantize", "decide": "none"}),
        # A whole model's outputs leave in the embedding's place, and like it.
        ([{"kind": "quantize", "bits": 4}], "aggvfl", {"predict": "quantize"}),
        ([{"kind": "top_k", "keep": 0.5}], "local", {"predict": "top_k", "conclude": "top_k"}),
        (["blind"], "aggvfl", {"predict": "blind", "conclude": "blind"}),
    ],
)
def test_an_entry_says_how_that_very_answer_was_protected(
    chain: list[Any], method: str, expected: dict[str, str], tmp_path: Path
) -> None:
    """A party that blinds its embeddings sends EASTER's predictions as they are."""
    train(parse_spec(settings(chain, method)), sources=sources(), directory=tmp_path / "run")
    entries = list(read_ledger(party_directory(tmp_path / "run", "shop")))
    found = {(entry["verb"], entry["protection"]) for entry in entries if entry["event"] == "left"}
    assert len(found) == len(dict(found))
    assert expected.items() <= dict(found).items()


def test_everything_that_left_is_in_the_ledger(tmp_path: Path) -> None:
    values = settings([PERTURB, {"kind": "quantize", "bits": 4}])
    train(parse_spec(values), sources=sources(), directory=tmp_path / "run")
    root = tmp_path / "run"
    entries = list(read_ledger(party_directory(root, "shop")))
    assert entries[0]["event"] == "opened"
    embeds = [entry for entry in entries if entry.get("verb") == "embed"]
    assert [entry["exchange"] for entry in embeds] == list(range(9))
    assert {entry["protection"] for entry in embeds} == {"perturb+quantize"}
    meter = read_json(root / "summary.json")["bytes_up"]["shop"]
    assert sum(entry["bytes"] for entry in embeds) == meter
    assert embeds[-1]["spent"]["releases"] == 2.0
    assert any(entry.get("verb") == "infer" for entry in entries)
    anchors = read_json(root / "checkpoint.json")["ledgers"]
    assert set(anchors) == {"bank", "shop", "telco"}
    for name, anchor in anchors.items():
        count, fault = verify_ledger(party_directory(root, name), {"checkpoint.json": anchor})
        assert fault is None
        assert count == anchor["entries"]


def test_a_resumed_run_goes_on_in_the_same_ledger(tmp_path: Path) -> None:
    values = settings([PERTURB])
    root = tmp_path / "run"
    train(parse_spec({**values, "stop": {"exchanges": 4}}), sources=sources(), directory=root)
    before = sum(1 for _ in read_ledger(party_directory(root, "shop")))
    train(parse_spec(values), sources=sources(), directory=root, resume=True)
    entries = list(read_ledger(party_directory(root, "shop")))
    assert len(entries) > before
    assert [entry["event"] for entry in entries].count("opened") == 2
    assert verify_ledger(party_directory(root, "shop"))[1] is None


def test_errors_of_protections_are_colonnade_s() -> None:
    assert issubclass(Refused, ColonnadeError)


@pytest.mark.parametrize("fabric", ["in_process", "simulated"])
def test_cvfl_with_one_local_step_and_nothing_left_out_is_splitnn(fabric: str) -> None:
    method = {"name": "cvfl", "local_steps": 1, "compression": "top_k", "keep": 1.0}
    packed = build(settings([], method, fabric=fabric))
    plain = build(settings([], "splitnn", fabric=fabric))
    assert train_on(packed, 9)[-1].loss == train_on(plain, 9)[-1].loss
    assert_bitwise_equal(weights(packed), weights(plain))


def test_cvfl_sends_fewer_bytes_and_a_party_may_pack_otherwise() -> None:
    own = {"shop": {"protect": [{"kind": "top_k", "keep": 0.25}]}}
    result = train(parse_spec(settings([], "cvfl", party=own)), sources=sources())
    plain = train(parse_spec(settings([], "fedbcd")), sources=sources())
    protections = result.summary["protections"]
    assert protections == {"bank": [], "shop": ["top_k"], "telco": ["quantize"]}
    for name in ("shop", "telco"):
        assert result.summary["bytes_up"][name] < plain.summary["bytes_up"][name]
