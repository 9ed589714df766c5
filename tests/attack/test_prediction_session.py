"""A label holder that cheats in a session for predictions, or in naming runs and alignments."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from alignments import Federation
from colonnade.align.alignment_file import PartyAlignment
from colonnade.core.messages import Batch, Call, Reply
from colonnade.core.numerics import NUMERICS
from colonnade.federate.alignments import KeepingStore, find_alignment
from colonnade.federate.party_home import PartySettings
from colonnade.federate.party_policy import PartyPolicy
from colonnade.federate.predict_session import PredictSession
from colonnade.federate.pruning import prune
from colonnade.federate.pseudonyms import Pseudonyms, agreed_key, keep_keys, new_share
from colonnade.federate.train_session import TrainSession
from colonnade.protect.ledger import read_ledger, verify_ledger
from colonnade.protect.lifetime_account import LifetimeAccount
from colonnade.run.storage import read_state

IDS = {
    "bank": [f"person {number}" for number in range(12)],
    "telco": [f"person {number}" for number in (3, 9, 1, 7, 5, 11, 0, 20)],
}
RUN = "ab" * 16
Measured = Callable[..., None]


class Telco:
    """'telco' at home with a trained run, and a session for predictions."""

    def __init__(self, home: Path) -> None:
        self.home = home
        terms = Federation(IDS, mode="union", labelled_only=True).spec
        store = KeepingStore(home, terms)
        matching = Federation(IDS, mode="union", labelled_only=True, places={"telco": store})
        self.digest = matching.match().digest
        self.alignment: PartyAlignment = matching.alignments["telco"]
        values = np.arange(len(IDS["telco"]), dtype=float)
        table = pd.DataFrame({"id": IDS["telco"], "calls": values, "minutes": values**2})
        table.to_csv(home / "telco.csv", index=False)
        self.given: dict[str, Any] = {
            "home": home,
            "settings": PartySettings(
                name="telco",
                label_holder="bank",
                hub="127.0.0.1:1",
                data=home / "telco.csv",
                id="id",
                allow_unprotected=True,
            ),
            "policy": PartyPolicy(),
        }
        here = self.alignment.row_of_sample() >= 0
        self.own = torch.from_numpy(np.flatnonzero(here))
        self.lacking = torch.from_numpy(np.flatnonzero(~here))
        self.training = training = TrainSession(**self.given)
        agreed = {"names": ["telco"], "party": {"telco": {}}, "stop": {"exchanges": 1}}
        agreed |= {"data": {"batch_size": 7}, "numerics": NUMERICS}
        presence = torch.ones(len(self.own), 1, dtype=torch.bool)
        roll = {"train": self.own}, {"train": presence}
        for verb, arguments in (
            ("assemble", (RUN, json.dumps(agreed), self.digest, 1, *roll)),
            ("keep", ("exchange-000000001",)),
        ):
            reply = training.execute(Call(0, "telco", verb, arguments, 0, True))
            assert reply.failure is None, reply.failure
        self.session = PredictSession(**self.given)
        self.names = itertools.count()

    def ask(self, verb: str, *arguments: Any) -> Reply:
        return self.session.execute(Call(0, "telco", verb, arguments, 0, True))

    def load(self) -> None:
        assert self.ask("load", RUN, self.digest, "").failure is None
        assert self.ask("fetch", "exchange-000000001").failure is None

    def choose(self, numbers: torch.Tensor, *, name: str | None = None) -> tuple[str, Reply]:
        presence = torch.ones(len(numbers), 1, dtype=torch.bool)
        name = name or f"request {next(self.names)}"
        return name, self.ask("choose", name, numbers, presence)

    def infer_about(self, numbers: torch.Tensor, *, number: int = 0) -> tuple[str, Reply]:
        presence = torch.ones(len(numbers), 1, dtype=torch.bool)
        name = f"request {next(self.names)}"
        return name, self.ask("infer_about", name, numbers, presence, number)

    def left(self) -> list[str]:
        place = self.home / "runs" / RUN
        return [entry["verb"] for entry in read_ledger(place) if entry["event"] == "left"]

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        assert self.session._successor is not None
        model: torch.nn.Module = self.session._successor.model  # type: ignore[attr-defined]
        return {name: item.clone() for name, item in model.state_dict().items()}


@pytest.fixture
def telco(tmp_path: Path) -> Telco:
    return Telco(tmp_path)


def refused(reply: Reply, words: str) -> None:
    assert reply.failure is not None
    assert words in reply.failure.message


def test_an_honest_request_is_answered_from_the_rows_of_today(telco: Telco) -> None:
    telco.load()
    name, reply = telco.choose(telco.own[[2, 0]])
    assert reply.value == 2
    first = telco.ask("infer", Batch(name, 0)).value
    assert len(first) == 2
    table = pd.read_csv(telco.home / "telco.csv")
    table["calls"] += 100.0
    table.to_csv(telco.home / "telco.csv", index=False)
    telco.session = PredictSession(**telco.given)
    telco.load()
    name, _ = telco.choose(telco.own[[2, 0]])
    assert not torch.allclose(first, telco.ask("infer", Batch(name, 0)).value)


def test_a_run_that_is_asked_is_not_pruned(telco: Telco) -> None:
    telco.load()
    long_ago = 1_000_000_000
    place = telco.home / "runs" / RUN
    for file in (*place.iterdir(), *(telco.home / "alignments" / telco.digest).iterdir()):
        os.utime(file, (long_ago, long_ago))
    telco.session = PredictSession(**telco.given)
    telco.load()
    telco.choose(telco.own)
    pruned = prune(telco.home, days=90)
    assert (pruned.runs, pruned.alignments) == ((), ())


def test_nothing_is_learned_in_a_session_for_predictions(telco: Telco) -> None:
    telco.load()
    name, _ = telco.choose(telco.own)
    before = telco.weights
    batch = Batch(name, 0)
    embedding = telco.ask("embed", batch)
    if embedding.failure is None:
        gradient = torch.ones_like(embedding.value)
        assert telco.ask("descend", batch, gradient).failure is not None
    after = telco.weights
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_no_checkpoint_is_written_or_deleted(telco: Telco) -> None:
    telco.load()
    place = telco.home / "runs" / RUN
    before = read_state(place / "exchange-000000001.safetensors")
    refused(telco.ask("keep", "exchange-000000001"), "keeps no weights")
    refused(telco.ask("retain", "no-such", "no-such", "no-such"), "deletes no weights")
    after = read_state(place / "exchange-000000001.safetensors")
    assert before["num_encodings"] == after["num_encodings"]


@pytest.mark.parametrize("run", ["../../etc", "cd" * 16, "", "AB" * 16])
def test_a_run_that_is_none_of_its_own_is_not_loaded(telco: Telco, run: str) -> None:
    reply = telco.ask("load", run, telco.digest, "")
    assert reply.failure is not None
    assert telco.ask("infer", Batch("train", 0)).failure is not None


@pytest.mark.parametrize("digest", ["0" * 64, "../alignment", "", "." * 64])
def test_an_alignment_that_is_none_of_its_own_is_not_used(telco: Telco, digest: str) -> None:
    assert telco.ask("load", RUN, digest, "").failure is not None


def test_training_samples_are_not_there_by_their_old_name(telco: Telco) -> None:
    telco.load()
    refused(telco.ask("infer", Batch("train", 0)), "no part 'train'")


def test_samples_must_be_there_and_inside_and_each_once(telco: Telco) -> None:
    telco.load()
    num_samples = telco.alignment.num_samples
    for numbers, words in (
        (torch.tensor([-1]), "outside"),
        (torch.tensor([num_samples]), "outside"),
        (torch.zeros(0, dtype=torch.int64), "no samples"),
        (telco.own[[0, 0]], "distinct samples"),
        (telco.lacking[:1], "lacks"),
    ):
        _, reply = telco.choose(numbers)
        refused(reply, words)


@pytest.mark.attack(
    what="Asking a party whom it refuses, again and again",
    has="an alignment and a run with the party (cheating)",
    before="(the question is new)",
    now="yes or no for each of its samples, as by asking one by one; nothing else leaves",
)
def test_whom_a_party_refuses_is_told_of_samples_that_it_has_and_nothing_else(
    telco: Telco,
) -> None:
    def refusing(numbers: torch.Tensor, presence: torch.Tensor | None = None) -> Reply:
        everyone = torch.ones(len(numbers), 1, dtype=torch.bool)
        said = everyone if presence is None else presence
        return telco.ask("refusing", "a", numbers, said, True)

    assert refusing(telco.own).failure is not None  # no run is loaded
    telco.load()
    left = telco.left()
    for bad in (telco.lacking[:1], telco.own.repeat(2), telco.own + 10_000, telco.own[:0]):
        assert refusing(bad).failure is not None
    assert refusing(telco.own, torch.ones(len(telco.own), 2, dtype=torch.bool)).failure is not None
    for _ in range(3):
        reply = refusing(telco.own)
        assert reply.failure is None
        assert (reply.value.dtype, reply.value.tolist()) == (torch.bool, [False] * len(telco.own))
    # Nothing left, nothing is open, and nobody was counted.
    assert telco.left() == left
    assert telco.session._requests == {}
    file = telco.home / "account.sqlite"
    with closing(LifetimeAccount(file, party="telco")) as account:
        before = account.held()
        refusing(telco.own)
        assert account.held() == before


def test_a_stricter_limit_bounds_how_many_are_asked_about(telco: Telco) -> None:
    limits = replace(PartyPolicy().limits, max_samples=2)
    telco.session = PredictSession(**{**telco.given, "policy": PartyPolicy(limits=limits)})
    telco.load()
    presence = torch.ones(len(telco.own), 1, dtype=torch.bool)
    reply = telco.ask("refusing", "a", telco.own, presence, False)
    assert reply.failure is not None
    assert "max_samples" in reply.failure.message


def test_samples_that_come_with_the_question_are_answered_like_others(telco: Telco) -> None:
    telco.load()
    before = telco.left()
    name, reply = telco.infer_about(telco.own[[2, 0]])
    assert reply.failure is None
    # What left is written down as the answer that it is, and nothing else.
    assert telco.left() == [*before, "infer"]
    again, _ = telco.choose(telco.own[[2, 0]])
    assert torch.equal(reply.value, telco.ask("infer", Batch(again, 0)).value)
    # Its samples are gone with the next request.
    refused(telco.ask("infer", Batch(name, 0)), f"no part '{name}'")
    account = LifetimeAccount(telco.home / "account.sqlite", party="telco")
    assert account.held().num_charges == 1
    account.close()


def test_samples_that_come_with_the_question_are_bounded_without_forgetting(telco: Telco) -> None:
    telco.load()
    orders = itertools.islice(itertools.permutations(range(7), 3), 70)
    replies = [telco.infer_about(telco.own[list(order)])[1] for order in orders]
    assert [reply.failure for reply in replies] == [None] * 70
    assert telco.session._successor is not None
    assert len(telco.session._successor.parts) == 1  # type: ignore[attr-defined]


def test_a_question_with_its_samples_gets_past_no_check(telco: Telco) -> None:
    presence = torch.ones(1, 1, dtype=torch.bool)
    refused(telco.ask("infer_about", "x", telco.own[:1], presence, 0), "load one first")
    telco.given["policy"] = PartyPolicy(rows=0.5)
    telco.session = PredictSession(**telco.given)
    telco.load()
    before = telco.left()
    for numbers, words in (
        (torch.tensor([-1]), "outside"),
        (torch.tensor([telco.alignment.num_samples]), "outside"),
        (telco.own[[0, 0]], "distinct samples"),
        (telco.lacking[:1], "lacks"),
        (telco.own, "'rows'"),
        (telco.own.double(), "don't fit"),
    ):
        refused(telco.infer_about(numbers)[1], words)
    refused(telco.ask("infer_about", "x", telco.own[:1], presence), "takes 4 arguments")
    refused(telco.ask("infer_about", "x", telco.own[:1], presence, "0"), "'number'")
    assert telco.left() == before
    # Sizes that were allowed once are allowed again, and no others.
    for _ in range(2):
        assert telco.infer_about(telco.own[:4])[1].failure is None
        refused(telco.infer_about(telco.own)[1], "'rows'")


def test_a_request_that_the_party_has_no_sample_of_is_named_as_such(telco: Telco) -> None:
    telco.load()
    presence = torch.zeros(1, 1, dtype=torch.bool)
    for verb, further in (("choose", ()), ("infer_about", (0,))):
        reply = telco.ask(verb, "none", telco.own[:1], presence, *further)
        refused(reply, "has none of the samples of a request")
    assert not telco.session._requests


def test_what_is_refused_to_a_question_with_its_samples_is_in_the_ledger_once(
    telco: Telco,
) -> None:
    telco.given["policy"] = PartyPolicy(releases_per_row=1)
    telco.session = PredictSession(**telco.given)
    telco.load()
    assert telco.infer_about(telco.own[:4])[1].failure is None
    refused(telco.infer_about(telco.own[1:5])[1], "'releases_per_row'")
    place = telco.home / "runs" / RUN
    noted = [entry["verb"] for entry in read_ledger(place) if entry["event"] == "refused"]
    assert noted == ["infer"]


def test_a_name_that_is_open_is_not_given_to_other_samples(telco: Telco) -> None:
    telco.load()
    name, _ = telco.choose(telco.own[:2])
    refused(telco.choose(telco.own[2:4], name=name)[1], "is open")
    telco.ask("forget", name)
    assert telco.choose(telco.own[2:4], name=name)[1].failure is None


def test_a_mask_goes_by_the_samples_whatever_the_request_is_called(telco: Telco) -> None:
    """Parties whose answers are added up would else be told different samples under one name."""
    telco.load()
    assert telco.session._successor is not None
    seen: list[str] = []
    execute = telco.session._successor.execute

    def noting(call: Call) -> Reply:
        seen.append(call.arguments[0].part)
        return execute(call)

    telco.session._successor.execute = noting  # type: ignore[method-assign]
    for samples in (telco.own[:2], telco.own[2:4], telco.own[:2]):
        telco.choose(samples, name="the same name")
        assert telco.ask("infer", Batch("the same name", 0)).failure is None
        telco.ask("forget", "the same name")
    assert seen[0] == seen[2] != seen[1]


def test_a_label_holder_with_another_key_of_pseudonyms_is_not_answered(telco: Telco) -> None:
    refused(telco.ask("load", RUN, telco.digest, "0" * 32), "another key of pseudonyms")
    keep_keys(find_alignment(telco.home, telco.digest, "telco"), {"bank": new_share()})
    refused(telco.ask("load", RUN, telco.digest, ""), "another key of pseudonyms")


@pytest.mark.attack(
    what="Queries of one person matched across two parties' recordings",
    has="everything that crossed two parties' links for predictions; neither party's files",
    before="all: one sample number at all parties, and a digest of it as the request's name",
    now="{matched} of {asked} (chance: {chance:.2f})",
)
def test_recordings_of_two_links_match_nobody(measured: Measured) -> None:
    """Two links carry queries for the same people, one a request, in an order of their own."""
    num_samples = 5000
    asked = np.random.default_rng(5).permutation(num_samples)[:500]
    keys = [bytes.fromhex(agreed_key("0" * 64, name, "ab" * 32, "cd" * 32)) for name in "st"]
    first, second = (Pseudonyms(key, num_samples).of(asked) for key in keys)
    assert len(np.unique(first)) == len(asked)
    matched = int((first == second).sum())
    measured(matched=matched, asked=len(asked), chance=len(asked) / num_samples)
    assert matched < 3
    # Nor does the order of names tell anything of the numbers.
    for one, other in itertools.combinations((first, second, asked), 2):
        assert (
            abs(np.corrcoef(np.argsort(np.argsort(one)), np.argsort(np.argsort(other)))[0, 1])
            < 0.15
        )
    # The two who share a key know whom a name means.
    assert (Pseudonyms(keys[0], num_samples).numbers(first) == asked).all()


def test_requests_that_are_never_forgotten_are_bounded(telco: Telco) -> None:
    telco.load()
    orders = itertools.islice(itertools.permutations(range(7), 3), 65)
    replies = [telco.choose(telco.own[list(order)])[1] for order in orders]
    assert all(reply.failure is None for reply in replies[:-1])
    refused(replies[-1], "forget one first")


def test_a_policy_that_became_stricter_holds_for_old_runs(telco: Telco) -> None:
    telco.given["policy"] = PartyPolicy(require=("perturb",))
    telco.session = PredictSession(**telco.given)
    refused(telco.ask("load", RUN, telco.digest, ""), "'require'")


def test_a_request_over_too_many_rows_is_refused(telco: Telco) -> None:
    telco.given["policy"] = PartyPolicy(rows=0.5)
    telco.session = PredictSession(**telco.given)
    telco.load()
    assert telco.choose(telco.own[:4])[1].failure is None
    refused(telco.choose(telco.own)[1], "'rows'")


def test_training_and_predictions_at_once_share_one_ledger_and_one_account(telco: Telco) -> None:
    """Two sessions of one run that answer at the same time: nothing is lost, nobody is confused."""
    telco.load()
    requests = [telco.choose(telco.own[[place]])[0] for place in range(len(telco.own))]
    together = threading.Barrier(2)
    failures: list[Any] = []

    def train() -> None:
        together.wait()
        for number in range(20):
            call = Call(number, "telco", "embed", (Batch("train", 0),), number, True)
            failures.append(telco.training.execute(call).failure)

    def predict() -> None:
        together.wait()
        for number in range(20):
            failures.append(telco.ask("infer", Batch(requests[number % 5], 0)).failure)

    threads = [threading.Thread(target=work) for work in (train, predict)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [None] * 40
    place = telco.home / "runs" / RUN
    left = [entry["verb"] for entry in read_ledger(place) if entry["event"] == "left"]
    assert (left.count("embed"), left.count("infer")) == (20, 20)
    assert verify_ledger(place)[1] is None
    for seal in (telco.ask("seal"), telco.training.execute(Call(0, "telco", "seal", (), 0, True))):
        assert bytes(seal.value["head"].numpy()).hex() == list(read_ledger(place))[-1]["hash"]
    account = LifetimeAccount(telco.home / "account.sqlite", party="telco")
    # Equal values of the same rows tell nothing new: one batch, and five requests.
    assert account.held().num_charges == 6
    account.close()
