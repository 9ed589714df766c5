"""Predictions of organisations over real links, against the same weights in one process."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from agents import hub_of
from colonnade.core.batches import BatchPlan
from colonnade.core.errors import (
    NoAnswer,
    PartyFailed,
    PartyRestarted,
    ProtocolError,
    Refused,
    StorageError,
)
from colonnade.core.messages import Call
from colonnade.core.parties import Patience
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from colonnade.federate import attempts
from colonnade.federate.alignments import named_alignment
from colonnade.federate.networked_runs import networked_blueprint, networked_links
from colonnade.federate.own_account import account_path
from colonnade.federate.party_home import read_party
from colonnade.federate.predict_session import PredictSession
from colonnade.federate.prediction import OpenModel
from colonnade.federate.prediction_files import alignments_of, evaluate_over, predict_over
from colonnade.federate.prediction_requests import Request
from colonnade.federate.prediction_samples import part_of_run
from colonnade.federate.pseudonyms import (
    PairNames,
    Pseudonyms,
    agreed_key,
    keep_keys,
    kept_key,
)
from colonnade.federate.roll_calls import name_of_request
from colonnade.federate.train_session import TrainSession
from colonnade.federate.training import train_over
from colonnade.methods import METHODS
from colonnade.protect.ledger import read_ledger, verify_ledger
from colonnade.protect.lifetime_account import LifetimeAccount
from colonnade.run.result import Result
from colonnade.run.spec import read_spec
from colonnade.run.storage import party_directory, read_json, write_json
from e2e.organisations import HOLDER, PARTIES, Organisations
from networks import QUICK

NETWORKED = sorted(
    name
    for name, method in METHODS.items()
    if method().stays_home and method().participants((HOLDER, *PARTIES), HOLDER) != (HOLDER,)
)
MEAN = ("laser", "easter", "flex", "adaptive_flex", "sync", "pbcd")


@pytest.fixture
def make(tmp_path: Path) -> Any:
    return partial(Organisations, tmp_path, nursery=None, exchanges=2)


def train(organisations: Organisations, run: Path | None = None) -> list[str]:
    told: list[str] = []
    spec = read_spec(organisations.config)
    with hub_of(organisations) as hub:
        train_over(
            hub,
            spec,
            HOLDER,
            run or organisations.run,
            say=told.append,
            alignments=organisations.federation / "alignments",
        )
    return told


def ids_file(organisations: Organisations, ids: list[str], **columns: Any) -> Path:
    path = organisations.root / "new.csv"
    pd.DataFrame({"id": ids, **columns}).to_csv(path, index=False)
    return path


def tables(organisations: Organisations) -> dict[str, pd.DataFrame]:
    return {
        name: pd.read_csv(organisations.root / f"{name}.csv").set_index("id")
        for name in (HOLDER, *PARTIES)
    }


def in_all(organisations: Organisations) -> list[str]:
    found = tables(organisations)
    return [
        item for item in found[HOLDER].index if all(item in own.index for own in found.values())
    ]


def predict(organisations: Organisations, file: Path, *, names: Any = PARTIES, **more: Any) -> Any:
    with hub_of(organisations, names) as hub:
        return predict_over(
            hub,
            organisations.federation,
            organisations.run,
            file,
            organisations.root / "answers.csv",
            **{"wait_seconds": 0.0 if len(names) < 2 else 20.0, **more},
        )


def in_one_place(organisations: Organisations) -> Result:
    """The weights of a networked run, brought together for one process."""
    place = organisations.root / "together"
    shutil.copytree(organisations.run, place)
    name = (place / "run_name").read_text()
    task = read_json(place / "label_holder" / "task.json")
    write_json(place / "label_holder" / "task.json", {**task, "elsewhere": []})
    settings = read_json(place / "config.json")
    write_json(place / "config.json", {**settings, "fabric": {"name": "in_process"}})
    for party in PARTIES:
        kept = organisations.home(party) / "runs" / name
        own = party_directory(place, party)
        preparation = read_json(kept / "agreed.json")["preparation"]
        write_json(own / "preparation.json", {"party": party, **preparation})
        for file in kept.glob("*.safetensors"):
            shutil.copy(file, own)
    return Result.load(place)


@pytest.mark.parametrize("method", NETWORKED)
def test_every_networked_method_predicts_what_one_process_predicts(make: Any, method: str) -> None:
    organisations = make(method=method, combine="mean" if method in MEAN else "concat")
    train(organisations)
    summary = read_json(organisations.run / "summary.json")
    local = in_one_place(organisations)
    wanted = in_all(organisations)[::-1]
    blocks = {
        name: own.drop(columns="defaulted", errors="ignore")
        for name, own in tables(organisations).items()
    }
    expected = local.answer({name: blocks[name] for name in local.parties}, ids=wanted)
    found = predict(organisations, ids_file(organisations, wanted))
    assert found.index.tolist() == wanted
    assert found["defaulted"].tolist() == expected["defaulted"].tolist()
    # The very same batches: not one bit of difference.
    assert found["confidence"].tolist() == expected["confidence"].tolist()
    assert found["blocks"].tolist() == ["; ".join(names) for names in expected["blocks"]]
    with hub_of(organisations) as hub:
        measured = evaluate_over(hub, organisations.federation, organisations.run)
    told = summary["quality"]["test"]
    if method == "cvfl":  # draws how it rounds, anew in every session, which may swap two ranks
        assert measured["loss"] == pytest.approx(told["loss"], rel=0.05)
        assert measured.keys() == told.keys()
    else:
        assert measured == told


def test_new_ids_are_aligned_once_and_old_alignments_stay(make: Any) -> None:
    organisations = make(method="laser", combine="mean")
    assert train(organisations) == ["aligning with shop, telco"]
    found = tables(organisations)
    # Some that the bank never had: their columns come with the ids.
    unknown = sorted(set(found["shop"].index) - set(found[HOLDER].index))
    columns = {name: np.linspace(-1, 1, len(unknown)) for name in ("bank_0", "bank_1", "bank_2")}
    file = ids_file(organisations, unknown, **columns)
    told: list[str] = []
    first = predict(organisations, file, say=told.append)
    # A slow machine waits for agents to come back first.
    assert [line for line in told if not line.startswith("waiting")] == [
        "aligning with shop, telco"
    ]
    assert first["defaulted"].isin(["yes", "no"]).all()
    assert set(first["blocks"]) <= {"bank; shop", "bank; shop; telco"}
    told.clear()
    again = predict(organisations, file, say=told.append)
    assert [line.split("'")[0] for line in told] == ["the alignment "]
    pd.testing.assert_frame_equal(first, again)
    # The run still has its own.
    spec = read_spec(organisations.config)
    with hub_of(organisations) as hub:
        summary = train_over(
            hub,
            spec,
            HOLDER,
            organisations.run,
            resume=True,
            alignments=organisations.federation / "alignments",
        )
    assert summary["exchanges"] == 2
    digest = named_alignment(organisations.run)
    for name in PARTIES:
        kept = {item.name for item in (organisations.home(name) / "alignments").iterdir()}
        assert len(kept) == 2
        assert digest in kept


def test_another_run_of_the_same_ids_does_not_align_again(make: Any) -> None:
    organisations = make()
    assert train(organisations) == ["aligning with shop, telco"]
    (said,) = train(organisations, organisations.root / "second")
    assert said.startswith("the alignment '")
    first, second = (named_alignment(organisations.root / item) for item in ("run", "second"))
    assert first == second
    days = json.loads((organisations.home("shop") / "alignments.json").read_text())["days"]
    assert len(days) == 1


def test_a_table_with_more_rows_is_aligned_again_for_predictions(make: Any) -> None:
    organisations = make()
    train(organisations)
    before = predict(organisations, ids_file(organisations, in_all(organisations)))
    path = organisations.root / "shop.csv"
    table = pd.read_csv(path)
    more = table.iloc[:1].assign(id="somebody new")
    pd.concat([more, table]).to_csv(path, index=False)
    told: list[str] = []
    after = predict(organisations, ids_file(organisations, in_all(organisations)), say=told.append)
    # A slow machine waits for agents to come back first.
    assert [line for line in told if not line.startswith("waiting")] == [
        "aligning with shop, telco"
    ]
    pd.testing.assert_frame_equal(before, after)
    with (
        hub_of(organisations) as hub,
        pytest.raises(PartyFailed, match="not the one that was aligned"),
    ):
        evaluate_over(hub, organisations.federation, organisations.run)


def test_samples_that_somebody_lacks_have_no_answer_and_the_row_says_so(make: Any) -> None:
    organisations = make()
    train(organisations)
    found = tables(organisations)
    lacking = sorted(set(found[HOLDER].index) - set(found["telco"].index))[:1]
    known = in_all(organisations)[:3]
    answers = predict(organisations, ids_file(organisations, [*known, *lacking]))
    assert answers["defaulted"].isna().tolist() == [False] * 3 + [True]
    assert answers["missing"].tolist() == ["", "", "", "bank; shop; telco"]


def test_a_method_that_tolerates_absence_answers_without_a_party(make: Any) -> None:
    organisations = make(method="laser", combine="mean")
    train(organisations)
    file = ids_file(organisations, in_all(organisations)[:5])
    told: list[str] = []
    answers = predict(organisations, file, names=("telco",), say=told.append)
    assert told == ["without shop"]
    assert set(answers["blocks"]) == {"bank; telco"}
    assert set(answers["missing"]) == {"shop"}
    assert set(answers["versions"].str.split("=").str[0]) == {"telco"}
    local = in_one_place(organisations)
    blocks = {name: tables(organisations)[name] for name in (HOLDER, "telco")}
    blocks[HOLDER] = blocks[HOLDER].drop(columns="defaulted")
    expected = local.answer(blocks, ids=answers.index.tolist())
    np.testing.assert_allclose(answers["confidence"].tolist(), expected["confidence"], rtol=1e-5)


def test_new_ids_that_are_integers_are_answered_without_a_party(make: Any) -> None:
    organisations = make(method="laser", combine="mean")
    for name in (HOLDER, *PARTIES):
        path = organisations.root / f"{name}.csv"
        table = pd.read_csv(path)
        table.assign(id=table["id"].str.extract(r"(\d+)")[0].astype(int)).to_csv(path, index=False)
    train(organisations)
    known = tables(organisations)
    in_both = known["shop"].index.intersection(known["telco"].index)
    unknown = [int(item) for item in in_both if item not in known[HOLDER].index]
    columns = {name: np.zeros(len(unknown)) for name in ("bank_0", "bank_1", "bank_2")}
    file = ids_file(organisations, unknown, **columns)
    said: list[str] = []

    def answered(*names: str) -> set[str]:
        said.clear()
        out = organisations.root / "answers.parquet"
        with hub_of(organisations, names) as hub:
            predict_over(
                hub,
                organisations.federation,
                organisations.run,
                file,
                out,
                wait_seconds=0.0 if len(names) < 2 else 20.0,
                say=said.append,
            )
        found = pd.read_parquet(out)
        # Numbers as they came, in a file that knows types.
        assert found["id"].tolist() == unknown
        assert found["id"].dtype == np.int64
        said[:] = [line for line in said if not line.startswith("waiting")]
        return set(found["blocks"])

    # No alignment knows these ids: those who are there are aligned.
    assert answered("telco") == {"bank; telco"}
    assert said == ["without shop", "aligning with telco"]
    assert answered("telco") == {"bank; telco"}
    assert said[1].startswith("the alignment '")
    assert answered(*PARTIES) == {"bank; shop; telco"}
    assert said == ["aligning with shop, telco"]
    # One of everybody is there now, and is preferred although a party is away.
    assert answered("shop") == {"bank; shop"}
    assert [line.split("'")[0] for line in said] == ["without telco", "the alignment "]


def test_others_end_with_the_partys_name_and_go_on_later(make: Any, monkeypatch: Any) -> None:
    organisations = make()
    train(organisations)
    wanted = in_all(organisations)
    file = ids_file(organisations, wanted)
    with pytest.raises(NoAnswer, match=r"shop is not connected.*same command again"):
        predict(organisations, file, names=("telco",))
    whole = predict(organisations, file)
    # Batches of four, of which one is finished when a party falls silent.
    for module in ("predict_session", "prediction_requests"):
        monkeypatch.setattr(f"colonnade.federate.{module}.make_plans", _small_plans)
    kept: list[int] = []
    original = OpenModel.predicting

    def interrupted(self: OpenModel, request: Request, **settings: Any) -> Any:
        def finished(number: int, answer: Any) -> None:
            settings["finished"](number, answer)
            kept.append(number)
            if len(kept) == 3:
                raise NoAnswer("no answer from 'shop'", parties=("shop",))

        return original(self, request, **{**settings, "finished": finished})

    with monkeypatch.context() as patch:
        patch.setattr(OpenModel, "predicting", interrupted)
        with pytest.raises(NoAnswer, match=r"3 of .* batches are finished and kept"):
            predict(organisations, file)
    told: list[str] = []
    answers = predict(organisations, file, say=told.append)
    assert told[0].startswith("3 of ")
    assert answers["defaulted"].tolist() == whole["defaulted"].tolist()
    np.testing.assert_allclose(
        answers["confidence"].tolist(), whole["confidence"].tolist(), rtol=1e-5
    )


def _small_plans(spec: Any, roll: Any, label_holder: str) -> Any:
    return {
        part: BatchPlan(len(table), 4, seed=0, shuffle=False)
        for part, table in roll.presence.items()
    }


def test_all_batches_are_on_their_way_before_the_first_answer(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 batches took 32 round trips; parties here answer none until all have been sent."""
    organisations = make()
    train(organisations)
    wanted = in_all(organisations)
    file = ids_file(organisations, wanted)
    for module in ("predict_session", "prediction_requests"):
        monkeypatch.setattr(f"colonnade.federate.{module}.make_plans", _small_plans)
    num_calls = len(PARTIES) * -(-len(wanted) // 4)
    assert num_calls > 10
    sent, all_sent = [], threading.Event()
    send, execute = GrpcFabric.send, PredictSession.execute

    def counted(fabric: GrpcFabric, call: Call) -> None:
        send(fabric, call)
        if call.verb == "infer" and call.party in PARTIES:
            sent.append(call.party)
            if len(sent) == num_calls:
                all_sent.set()

    def held(session: PredictSession, call: Call) -> Any:
        assert call.verb != "infer" or all_sent.wait(30)
        return execute(session, call)

    monkeypatch.setattr(GrpcFabric, "send", counted)
    monkeypatch.setattr(PredictSession, "execute", held)
    assert predict(organisations, file)["defaulted"].notna().all()
    assert len(sent) == num_calls


def test_predictions_are_releases_in_every_ledger(make: Any) -> None:
    organisations = make()
    train(organisations)
    name = (organisations.run / "run_name").read_text()
    place = organisations.home("shop") / "runs" / name
    before = len(list(read_ledger(place)))
    predict(organisations, ids_file(organisations, in_all(organisations)))
    entries = list(read_ledger(place))[before:]
    assert [item["verb"] for item in entries if item["event"] == "left"] == ["infer"]
    assert verify_ledger(place)[1] is None


def test_a_policy_of_now_refuses_predictions_too(make: Any) -> None:
    organisations = make(policies=dict.fromkeys(PARTIES, ""))
    train(organisations)
    (organisations.root / "shop.policy.toml").write_text('forbid = []\nmethods = ["fedbcd"]\n')
    with pytest.raises(Refused, match="methods"):
        predict(organisations, ids_file(organisations, in_all(organisations)))
    name = (organisations.run / "run_name").read_text()
    last = list(read_ledger(organisations.home("shop") / "runs" / name))[-1]
    assert (last["event"], last["verb"]) == ("refused", "load")


def test_blinded_runs_predict_from_sums(make: Any) -> None:
    from colonnade.federate.peers import own_signer

    blind = 'protect = [{ kind = "blind", range = 8.0 }]'
    organisations = make(combine="mean", protect=blind, policies=dict.fromkeys(PARTIES, ""))
    for name, other in (PARTIES, PARTIES[::-1]):
        key = own_signer(organisations.home(other)).public.hex()
        path = organisations.root / f"{name}.policy.toml"
        path.write_text(f'{path.read_text()}\npeers = {{ {other} = "{key}" }}\n')
    train(organisations)
    wanted = in_all(organisations)
    answers = predict(organisations, ids_file(organisations, wanted))
    local = in_one_place(organisations)
    blocks = {
        name: own.drop(columns="defaulted", errors="ignore")
        for name, own in tables(organisations).items()
    }
    expected = local.answer(blocks, ids=wanted)
    np.testing.assert_allclose(
        answers["confidence"].tolist(), expected["confidence"].tolist(), rtol=1e-5
    )


def test_one_open_model_answers_many_requests_by_pseudonyms(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    organisations = make()
    crossed: dict[str, list[Call]] = {name: [] for name in PARTIES}

    def noting(session: Any, call: Call, execute: Callable[[Any, Call], Any]) -> Any:
        crossed[session.name].append(call)
        return execute(session, call)

    for kind in (TrainSession, PredictSession):
        monkeypatch.setattr(kind, "execute", partialmethod(noting, execute=kind.execute))
    train(organisations)
    for name in PARTIES:
        # What a party considers is what it then agrees to, with the label holder among the names.
        shown = {
            call.verb: json.loads(call.arguments[1])
            for call in crossed[name]
            if call.verb in ("consider", "assemble")
        }
        assert shown["consider"] == shown["assemble"]
        assert sorted(shown["consider"]["names"]) == sorted((HOLDER, *PARTIES))
        crossed[name].clear()
    assert networked_links(organisations.run) == QUICK
    digest = named_alignment(organisations.run)
    assert digest is not None
    place = organisations.federation / "alignments" / digest
    with hub_of(organisations) as hub:
        assert not hub.wait_for(PARTIES, 20)
        model = OpenModel(hub, organisations.run, PairNames.read(place, HOLDER))
        try:
            names = model.names
            own = torch.zeros(4, 3)
            alignment = _alignment(organisations)
            complete = np.flatnonzero(alignment.presence.all(axis=1))[:4]
            outputs = []
            # The run knows no end to its patience, so a minute it is.
            assert model.blueprint.spec.patience == Patience(timeout=60_000, then="stop")
            for chosen, patience in zip(
                ([0, 1], [2], [3], [0, 1]),
                [None, None, None, Patience(timeout=20_000)],
                strict=True,
            ):
                request = Request(
                    numbers=complete[chosen],
                    presence=np.ones((len(chosen), len(names)), dtype=bool),
                    own=own,
                    own_rows=np.array(chosen),
                )
                asking = model.predicting(request, patience=patience)
                outputs.append(model.run(asking).outputs)
            assert [len(item) for item in outputs] == [2, 1, 1, 2]
            assert torch.equal(outputs[0], outputs[3])
        finally:
            model.close()
    asked = [complete[chosen].tolist() for chosen in ([0, 1], [2], [3], [0, 1])]
    told = {}
    for name in PARTIES:
        calls = [call for call in crossed[name] if call.verb in ("choose", "infer_about")]
        # With a patience of its own a request waits for nobody before its batch: one call does.
        assert [call.verb for call in calls] == ["choose", "choose", "choose", "infer_about"]
        assert all(call.wants_reply for call in calls)
        verbs = [call.verb for call in crossed[name]]
        assert not {"infer", "forget"} & set(verbs[verbs.index("infer_about") :])
        choosing = [call.arguments[:3] for call in calls]
        assert len({request for request, *_ in choosing}) == len(asked)
        told[name] = [samples.numpy() for _, samples, _ in choosing]
        key = kept_key(organisations.home(name) / "alignments" / digest, HOLDER)
        pair = Pseudonyms(key, alignment.num_samples)
        assert [pair.numbers(samples).tolist() for samples in told[name]] == asked
        # What names samples to all parties crosses no link.
        names = {name_of_request(np.array(item), np.ones((len(item), 3), bool)) for item in asked}
        assert not names & set(re.findall(r"[0-9a-f]{64}", repr(crossed[name])))
    assert kept_key(place, "shop") not in (kept_key(place, "telco"), b"")
    assert kept_key(place, "shop") == kept_key(
        organisations.home("shop") / "alignments" / digest, HOLDER
    )


def test_a_key_is_kept_for_each_other_participant(tmp_path: Path) -> None:
    assert kept_key(tmp_path, "shop") == b""
    key = agreed_key("digest", "shop", "ab" * 32, "cd" * 32)
    keep_keys(tmp_path, {"shop": key})
    assert kept_key(tmp_path, "shop") == bytes.fromhex(key)
    # With somebody whom an earlier alignment did not know none is shared.
    assert kept_key(tmp_path, "gym") == b""
    with pytest.raises(ProtocolError, match="once"):
        keep_keys(tmp_path, {"shop": key})
    for damaged in (key[1:], key.replace(key[0], "x"), 7, None):
        write_json(tmp_path / "pseudonyms.json", {"shop": damaged})
        with pytest.raises(StorageError, match=r"pseudonyms\.json"):
            kept_key(tmp_path, "shop")


def _alignment(organisations: Organisations) -> Any:
    from colonnade.align.alignment_file import PartyAlignment

    digest = named_alignment(organisations.run)
    assert digest is not None
    place = organisations.federation / "alignments" / digest
    return PartyAlignment.load(party_directory(place, HOLDER) / "alignment.npz")


def test_a_party_that_keeps_crashing_ends_a_prediction_and_an_evaluation(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    organisations = make()
    train(organisations)
    tries: list[str] = []

    def crash(model: OpenModel, *_: Any, **__: Any) -> None:
        tries.append(model.tag)
        raise PartyRestarted("party 'telco' came back", party="telco")

    monkeypatch.setattr(OpenModel, "predicting", crash)
    monkeypatch.setattr(attempts, "MOST_RETURNS", 2)
    told: list[str] = []
    wanted = ids_file(organisations, in_all(organisations))
    with pytest.raises(PartyFailed, match=r"party 'telco' came back .* 3 times in a row.* again"):
        predict(organisations, wanted, say=told.append)
    assert len(tries) == 3
    assert sum("'telco' came back" in line for line in told) == 2
    tries.clear()
    with (
        hub_of(organisations) as hub,
        pytest.raises(PartyFailed, match=r"party 'telco' came back .* 3 times in a row.* again"),
    ):
        evaluate_over(hub, organisations.federation, organisations.run)
    assert len(tries) == 3
    monkeypatch.undo()
    answer = OpenModel.predicting

    def crash_once(model: OpenModel, *given: Any, **more: Any) -> Any:
        return crash(model) if len(tries) < 4 else answer(model, *given, **more)

    monkeypatch.setattr(OpenModel, "predicting", crash_once)
    with hub_of(organisations) as hub:
        assert "loss" in evaluate_over(hub, organisations.federation, organisations.run)
    assert len(tries) == 4


QUERIES = "[queries]\nmax_per_person = 1\nper_hours = 1000000\n"
RELEASES = "releases_per_row = 900\n"


@pytest.mark.parametrize("rule", [QUERIES, RELEASES], ids=["queries", "releases"])
@pytest.mark.parametrize("method", ["laser", "splitnn"])
def test_a_person_whom_a_party_refuses_spoils_no_other_row(
    make: Any, monkeypatch: pytest.MonkeyPatch, method: str, rule: str
) -> None:
    organisations = make(method=method, combine="mean", policies={"shop": rule, "telco": ""})
    train(organisations)
    everybody = in_all(organisations)[:22]
    spent = [everybody[6], everybody[21]]
    if rule == QUERIES:
        predict(organisations, ids_file(organisations, spent))
    else:
        # What left before leaves again for nothing; this has not.
        home = organisations.home("shop")
        with closing(LifetimeAccount(account_path(home, read_party(home)), party="shop")) as own:
            own.take_up(b"much else", own.people(spent * 900), 0.0)
    # Batches of four in flight together.
    for module in ("predict_session", "prediction_requests"):
        monkeypatch.setattr(f"colonnade.federate.{module}.make_plans", _small_plans)
    asked: list[Call] = []
    execute = PredictSession.execute

    def noted(session: PredictSession, call: Call) -> Any:
        if (call.party, call.verb) == ("telco", "infer"):
            asked.append(call)
        return execute(session, call)

    monkeypatch.setattr(PredictSession, "execute", noted)
    told: list[str] = []
    answers = predict(organisations, ids_file(organisations, everybody), say=told.append)
    monkeypatch.undo()
    # Six batches. Of those refused, and of no others, the rest is asked for once more.
    num_more = {("laser", RELEASES): 2, ("splitnn", RELEASES): 2, ("splitnn", QUERIES): -1}
    assert len(asked) == 6 + num_more.get((method, rule), 0)

    is_spent = answers.index.isin(spent)
    # A row that was asked for twice would be refused by the rule for queries.
    assert answers["refused"].tolist() == ["shop" if item else "" for item in is_spent]
    assert answers["blocks"][~is_spent].unique().tolist() == ["bank; shop; telco"]
    assert told[-1] == "'shop' refuses 2 of 22 people by its rules"
    local = in_one_place(organisations)
    blocks = tables(organisations)
    blocks[HOLDER] = blocks[HOLDER].drop(columns="defaulted")
    others = answers[~is_spent]
    expected = local.answer(blocks, ids=others.index.tolist())
    np.testing.assert_allclose(others["confidence"].tolist(), expected["confidence"], rtol=1e-5)
    if method == "splitnn":
        assert answers["defaulted"][is_spent].isna().all()
        with pytest.raises(Refused, match=rule.split(" =")[0].split("\n")[-1]):
            predict(organisations, ids_file(organisations, spent))
        return
    del blocks["shop"]
    expected = local.answer(blocks, ids=spent)
    found = answers[is_spent]
    assert found["blocks"].unique().tolist() == ["bank; telco"]
    np.testing.assert_allclose(found["confidence"].tolist(), expected["confidence"], rtol=1e-5)
    # A method that does without blocks does without the party that refuses all.
    again = predict(organisations, ids_file(organisations, spent))
    assert again["refused"].tolist() == ["shop", "shop"]
    assert again["blocks"].unique().tolist() == ["bank; telco"]


def test_an_answer_that_left_before_costs_nothing_and_is_given_again(make: Any) -> None:
    organisations = make(policies={"shop": RELEASES, "telco": ""})
    train(organisations)
    file = ids_file(organisations, in_all(organisations)[:5])
    first = predict(organisations, file)
    home = organisations.home("shop")
    with closing(LifetimeAccount(account_path(home, read_party(home)), party="shop")) as own:
        own.take_up(b"much else", own.people(in_all(organisations) * 900), 0.0)
    pd.testing.assert_frame_equal(predict(organisations, file), first)
    others = ids_file(organisations, in_all(organisations)[5:10])
    with pytest.raises(Refused, match="releases_per_row"):
        predict(organisations, others)
    with hub_of(organisations) as hub:
        # The test part was measured when the training ended.
        evaluate_over(hub, organisations.federation, organisations.run)


def test_an_evaluation_leaves_out_whom_a_party_refuses(make: Any) -> None:
    organisations = make(policies={"shop": QUERIES, "telco": ""})
    train(organisations)

    def measured() -> tuple[dict[str, float], list[str]]:
        told: list[str] = []
        with hub_of(organisations) as hub:
            found = evaluate_over(hub, organisations.federation, organisations.run, say=told.append)
        return found, [line for line in told if not line.startswith("waiting")]

    whole, told = measured()
    assert told == []
    (organisations.home("shop") / "queries.sqlite").unlink()
    numbers = part_of_test(organisations)
    predict(organisations, ids_file(organisations, numbers[:1]))
    less, told = measured()
    assert told == [
        f"'shop' refuses 1 of {len(numbers)} people by its rules",
        f"measured on {len(numbers) - 1} of {len(numbers)} samples",
    ]
    assert less["loss"] != whole["loss"]


def part_of_test(organisations: Organisations) -> list[str]:
    """The ids of the run's test part."""
    blueprint = networked_blueprint(organisations.run)
    kept = alignments_of(organisations.federation, organisations.run, blueprint)
    return list(part_of_run(blueprint, organisations.run, kept, "test").ids)


@pytest.mark.parametrize("said", [torch.ones(3, dtype=torch.bool), torch.ones(5)])
def test_a_party_that_says_something_else_than_whom_it_refuses_is_named(
    make: Any, monkeypatch: pytest.MonkeyPatch, said: torch.Tensor
) -> None:
    organisations = make()
    train(organisations)
    execute = PredictSession.execute

    def cheating(session: PredictSession, call: Call) -> Any:
        reply = execute(session, call)
        if call.verb == "refusing" and call.party == "telco":
            return replace(reply, value=said)
        return reply

    monkeypatch.setattr(PredictSession, "execute", cheating)
    with pytest.raises(ProtocolError, match="'telco' did not say whom"):
        predict(organisations, ids_file(organisations, in_all(organisations)[:5]))


@pytest.mark.attack(
    what="Other parties' accounts spent by refusing one person after the other",
    has="a spent account, and an own answer to who is refused (cheating party)",
    before="21 releases of a person elsewhere, of a batch of 20",
    now="{releases:.0f} releases",
)
def test_a_party_that_refuses_one_after_the_other_does_not_spend_the_accounts_of_others(
    make: Any, monkeypatch: pytest.MonkeyPatch, measured: Callable[..., None]
) -> None:
    organisations = make(method="laser", combine="mean", policies={"shop": RELEASES, "telco": ""})
    train(organisations)
    everybody = in_all(organisations)[:20]
    home = organisations.home("shop")
    with closing(LifetimeAccount(account_path(home, read_party(home)), party="shop")) as own:
        own.take_up(b"much else", own.people(everybody * 900), 0.0)
    asked: list[Call] = []
    execute = PredictSession.execute

    def cheating(session: PredictSession, call: Call) -> Any:
        reply = execute(session, call)
        if (call.party, call.verb) == ("telco", "infer"):
            asked.append(call)
        if (call.party, call.verb) == ("shop", "refusing") and reply.value.any():
            first = torch.zeros_like(reply.value)
            first[reply.value.int().argmax()] = True
            return replace(reply, value=first)
        return reply

    monkeypatch.setattr(PredictSession, "execute", cheating)
    answers = predict(organisations, ids_file(organisations, everybody))
    assert set(answers["refused"]) == {"shop"}
    assert set(answers["blocks"]) == {"bank; telco"}
    # One batch: asked for, once more without whom it named, and then without that party.
    assert len(asked) == 3
    measured(releases=len(asked))


def test_a_party_that_has_none_of_the_people_is_not_asked(make: Any) -> None:
    organisations = make(method="laser", combine="mean")
    train(organisations)
    found = tables(organisations)
    lacking = sorted(set(found[HOLDER].index) - set(found["telco"].index))[:2]
    answers = predict(organisations, ids_file(organisations, lacking))
    assert not answers["missing"].str.contains("bank").any()
    assert answers["missing"].str.contains("telco").all()
