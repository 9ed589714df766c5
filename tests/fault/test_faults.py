"""Every method under faults: crash, hang, late, repeated and stray answers, values that are no
numbers. Each test makes sure that its fault really happened."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import pytest
import torch
from torch import Tensor

from colonnade.core.errors import Deadlock, Diverged, MissingBlock, NoAnswer, RunError
from colonnade.core.federation import Event, Federation, LoopState, Stop
from colonnade.core.messages import Batch
from colonnade.core.method import Method
from colonnade.core.parties import Patience
from colonnade.fabrics.durations import Constant
from colonnade.fabrics.simulated import Profile
from colonnade.methods import METHODS
from colonnade.methods.flex import Flex
from colonnade.methods.plug import Plug
from colonnade.methods.vafl import VAFL
from colonnade.quality.evaluation import evaluate
from fault.faults import (
    Crash,
    Duplicate,
    Fault,
    Faulty,
    Hang,
    Late,
    Poison,
    Repeat,
    Stray,
    WrongExchange,
    with_fault,
)
from federations import FABRICS, assert_bitwise_equal, make_federation, train, weights
from messages import says

# What each method does about a party that does not answer:
# - wait: at the deadline the run's policy decides, and the fusion must manage without it
# - stand in: the same, but what was last known of the party takes its place
# - carry on: stand in, whatever the run's policy
# - go on: nobody is waited for
# - wait for a sum: at the deadline the run's policy decides, and the sum is of those who answered
# - each by itself: at the deadline the run's policy decides; nobody needs anybody else's answer
# - by sets: the same, and networks for sets that it belongs to wait until it is back
# - those who are there: at the deadline the run's policy decides, and averages are of the others
# - zeros: at the deadline the run's policy decides, and zeros take its place
# - only one: there is nobody else to go on with
HABITS: Mapping[str, str] = {
    "splitnn": "wait",
    "fedbcd": "wait",
    "cvfl": "wait",
    "pbcd": "stand in",
    "sync_vfl": "stand in",
    "flex": "carry on",
    "adaptive_flex": "carry on",
    "async": "go on",
    "vafl": "go on",
    "easter": "wait for a sum",
    "aggvfl": "wait for a sum",
    "laser": "those who are there",
    "local": "each by itself",
    "standard": "wait",
    "ensemble": "each by itself",
    "combinatorial": "by sets",
    "plug": "zeros",
    "vfedtrans": "each by itself",
    "alone": "only one",
    "centralized": "only one",
}
NOT_WAITING = ("carry on", "go on")
WAITING = [name for name, habit in HABITS.items() if habit not in NOT_WAITING]
AMONG_OTHERS = [name for name, habit in HABITS.items() if habit not in ("go on", "only one")]
STANDING_IN = [name for name, habit in HABITS.items() if habit in ("stand in", "carry on")]
CARRYING_ON = [name for name, habit in HABITS.items() if habit == "carry on"]
GOING_ON = [name for name, habit in HABITS.items() if habit == "go on"]

# The verb by which a party's first answer goes up, where it is not an embedding.
FIRST_ANSWER: Mapping[str, str] = {
    "aggvfl": "predict",
    "local": "predict",
    "ensemble": "predict",
    "vfedtrans": "predict",
}
# Nobody drops out by lot: who does not answer is the fault's doing alone.
CALM: Mapping[str, Method] = {"plug": Plug(dropout=0.0)}
# Calls to each party before the first exchange.
NUM_FIRST_CALLS: Mapping[str, int] = {"plug": 1, "vfedtrans": 1}

# 24 samples in 3 batches: from exchange 3 on everything of everybody was seen once.
AT = 4
# Far more than an exchange takes, on the simulated clock and in real time.
PATIENT = 60_000


def test_every_method_has_its_habit_here() -> None:
    assert HABITS.keys() == METHODS.keys()


def culprit(name: str) -> str:
    return "holder" if HABITS[name] == "only one" else "shop"


def build(
    name: str, fabric: str, fault: Fault, *, method: Method | None = None, **changes: Any
) -> Federation:
    settings = {
        "names": ["bank", "holder", "shop"],
        "method": method or CALM.get(name) or METHODS[name](),
        "fabric": fabric,
        "combine": "mean",
        "default_profile": Profile(
            encode=Constant(value=2), step=Constant(value=3), latency=Constant(value=5)
        ),
        "patience": Patience(timeout=PATIENT),
    }
    return with_fault(make_federation(**settings | changes), fault)


def advance(federation: Federation, stop: int, state: LoopState) -> list[Event]:
    events = train(federation, stop, state)
    state.stopped_by = ""
    return events


def learners(name: str, *parties: str) -> set[str]:
    """Those parties, and the fusion where the method has one that learns."""
    return {*parties} | ({"fusion"} if METHODS[name]().needs.fusion else set())


def moved(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> set[str]:
    return {key.split(".")[0] for key in after if not torch.equal(before[key], after[key])}


@pytest.mark.parametrize("fabric", FABRICS)
class TestPartyThatDoesNotAnswer:
    @pytest.mark.parametrize("kind", [Crash, Hang, Late])
    @pytest.mark.parametrize("name", WAITING)
    def test_waiting_ends_at_the_deadline_with_its_name(
        self, name: str, kind: type[Fault], fabric: str
    ) -> None:
        who = culprit(name)
        fault = kind(who, AT)
        federation = build(name, fabric, fault)
        state = LoopState()
        advance(federation, AT, state)
        before = federation.fabric.now()

        with pytest.raises(NoAnswer, match=says(f"'{who}'", f"exchange {AT + 1}", 60000)) as caught:
            advance(federation, AT + 1, state)

        assert fault.num_fired >= 1
        assert caught.value.parties == (who,)
        assert state.exchange == AT
        if fabric == "simulated":
            assert federation.fabric.now() == before + PATIENT

    @pytest.mark.parametrize("name", CARRYING_ON)
    def test_flex_goes_on_whatever_the_policy(self, name: str, fabric: str) -> None:
        fault = Crash("shop", AT)
        federation = build(name, fabric, fault, patience=Patience(timeout=PATIENT, then="stop"))
        state = LoopState()
        advance(federation, AT, state)
        before = weights(federation)
        advance(federation, AT + 2, state)

        assert fault.num_fired == 2
        assert moved(before, weights(federation)) == {"bank", "holder", "fusion"}

    @pytest.mark.parametrize("kind", [Crash, Hang])
    def test_waiting_for_all_uploads_ends_with_the_name(
        self, kind: type[Fault], fabric: str
    ) -> None:
        fault = kind("shop", AT)
        method = METHODS["vafl"](num_uploads=3, batches="shared")
        federation = build("vafl", fabric, fault, method=method)
        with pytest.raises(NoAnswer, match=says("'shop'", "started call")):
            train(federation, AT + 3)
        assert fault.num_fired >= 1

    def test_patience_to_continue_takes_the_uploads_that_came(self, fabric: str) -> None:
        fault = Crash("shop", AT)
        method = METHODS["vafl"](num_uploads=3, batches="shared")
        federation = build(
            "vafl", fabric, fault, method=method, patience=Patience(timeout=50, then="continue")
        )
        state = LoopState()
        advance(federation, AT + 1, state)
        before = weights(federation)
        advance(federation, AT + 4, state)
        assert fault.num_fired >= 1
        assert moved(before, weights(federation)) == {"bank", "holder", "fusion"}

    @pytest.mark.parametrize("name", AMONG_OTHERS)
    def test_policy_may_be_to_continue_without_it(self, name: str, fabric: str) -> None:
        fault = Crash("shop", AT)
        federation = build(name, fabric, fault, patience=Patience(timeout=PATIENT, then="continue"))
        state = LoopState()
        advance(federation, AT, state)
        before = weights(federation)
        events = advance(federation, AT + 4, state)

        # Asked in every exchange, answered in none.
        assert fault.num_fired == 4
        assert moved(before, weights(federation)) == learners(name, "bank", "holder")
        assert all(math.isfinite(event.loss) for event in events)
        if fabric == "simulated":
            assert federation.fabric.now() > 4 * PATIENT

    @pytest.mark.parametrize("name", [n for n in AMONG_OTHERS if HABITS[n] != "by sets"])
    def test_federation_without_it_from_the_start_is_one_without_it(
        self, name: str, fabric: str
    ) -> None:
        fault = Crash("shop")
        federation = build(name, fabric, fault, patience=Patience(timeout=PATIENT, then="continue"))
        smaller = build(name, fabric, Fault("nobody"), names=["bank", "holder"])
        train(federation, 6)
        train(smaller, 6)

        assert fault.num_fired == 6 + NUM_FIRST_CALLS.get(name, 0)
        found = weights(federation)
        assert_bitwise_equal(
            {key: item for key, item in found.items() if not key.startswith("shop.")},
            weights(smaller),
        )

    @pytest.mark.parametrize("name", [n for n in WAITING if HABITS[n] in ("wait", "only one")])
    def test_fusion_that_needs_everybody_says_who_is_missing(self, name: str, fabric: str) -> None:
        who = culprit(name)
        fault = Crash(who, AT)
        federation = build(
            name,
            fabric,
            fault,
            combine="concat",
            patience=Patience(timeout=PATIENT, then="continue"),
        )
        with pytest.raises(MissingBlock, match=says("'concat'", who)):
            train(federation, AT + 1)
        assert fault.num_fired == 1

    @pytest.mark.parametrize("name", STANDING_IN)
    def test_last_known_embedding_stands_in_where_the_fusion_needs_everybody(
        self, name: str, fabric: str
    ) -> None:
        fault = Crash("shop", AT)
        federation = build(
            name,
            fabric,
            fault,
            combine="concat",
            patience=Patience(timeout=PATIENT, then="continue"),
        )
        known, used = watch_shop(federation)
        state = LoopState()
        advance(federation, AT, state)
        used.clear()
        before = weights(federation)
        advance(federation, AT + 4, state)

        assert fault.num_fired == 4
        assert moved(before, weights(federation)) == {"bank", "holder", "fusion"}
        assert federation.method.findings(federation.holder) == {"num_left_out": 0}
        # What went into the gradients is what it said last, sample by sample.
        assert len(used) >= 4
        assert all(torch.equal(row, known[n]) for rows in used for n, row in rows.items())

    @pytest.mark.parametrize("name", STANDING_IN)
    def test_exchange_without_anything_known_is_left_out_and_counted(
        self, name: str, fabric: str
    ) -> None:
        fault = Crash("shop")
        federation = build(
            name,
            fabric,
            fault,
            combine="concat",
            patience=Patience(timeout=PATIENT, then="continue"),
        )
        before = weights(federation)
        train(federation, 5)

        assert fault.num_fired == 5
        assert moved(before, weights(federation)) == set()
        assert federation.method.findings(federation.holder) == {"num_left_out": 5}

    @pytest.mark.parametrize("combine", ["mean", "concat"])
    @pytest.mark.parametrize("name", STANDING_IN)
    def test_exchange_that_nobody_answers_is_counted_too(
        self, name: str, combine: str, fabric: str
    ) -> None:
        fault = Crash("bank")
        federation = build(
            name,
            fabric,
            fault,
            names=["bank"],
            combine=combine,
            patience=Patience(timeout=PATIENT, then="continue"),
        )
        train(federation, 3)
        assert fault.num_fired == 3
        assert federation.method.findings(federation.holder) == {"num_left_out": 3}

    @pytest.mark.parametrize("kind", [Hang, Late])
    @pytest.mark.parametrize(
        ("name", "combine"),
        [(name, "mean") for name in AMONG_OTHERS] + [(name, "concat") for name in STANDING_IN],
    )
    def test_party_that_missed_one_exchange_is_back_in_the_next(
        self, name: str, combine: str, kind: type[Fault], fabric: str
    ) -> None:
        fault = kind("shop", AT)
        federation = build(
            name,
            fabric,
            fault,
            combine=combine,
            patience=Patience(timeout=PATIENT, then="continue"),
        )
        parties = federation.fabric.parties
        state = LoopState()
        advance(federation, AT, state)
        steps = parties["shop"].num_local_steps
        before = weights(federation)
        advance(federation, AT + 1, state)
        assert fault.num_fired == 1
        assert moved(before, weights(federation)) == learners(name, "bank", "holder")
        assert parties["shop"].num_local_steps == steps

        before = weights(federation)
        advance(federation, AT + 2, state)
        assert moved(before, weights(federation)) == learners(name, "bank", "holder", "shop")
        assert federation.parties.num_dropped == (1 if kind is Late else 0)

    @pytest.mark.parametrize("then", ["stop", "continue"])
    @pytest.mark.parametrize("combine", ["mean", "concat"])
    @pytest.mark.parametrize("kind", [Crash, Hang])
    @pytest.mark.parametrize("name", GOING_ON)
    def test_asynchronous_training_goes_on_with_the_others(
        self, name: str, kind: type[Fault], combine: str, then: Any, fabric: str
    ) -> None:
        fault = kind("shop", AT)
        federation = build(
            name, fabric, fault, combine=combine, patience=Patience(timeout=PATIENT, then=then)
        )
        state = LoopState()
        advance(federation, AT + 3, state)
        parties = federation.fabric.parties
        steps = {party: item.num_local_steps for party, item in parties.items()}
        before, tick = weights(federation), federation.fabric.now()
        events = advance(federation, AT + 23, state)

        assert fault.num_fired >= 1
        assert moved(before, weights(federation)) == {"bank", "holder", "fusion"}
        gained = {party: item.num_local_steps - steps[party] for party, item in parties.items()}
        assert gained["shop"] == 0
        assert gained["bank"] + gained["holder"] == 20
        assert min(gained["bank"], gained["holder"]) >= 5
        assert all(math.isfinite(event.loss) for event in events)
        if fabric == "simulated":
            # Nobody waited for a deadline.
            assert federation.fabric.now() - tick < PATIENT

    @pytest.mark.parametrize("name", GOING_ON)
    def test_late_upload_is_taken_when_it_comes(self, name: str, fabric: str) -> None:
        fault = Late("shop", AT)
        federation = build(name, fabric, fault, patience=Patience())
        shop = federation.fabric.parties["shop"]
        steps = [
            shop.num_local_steps
            for _ in federation.train(Stop(exchanges=40), LoopState(), evaluate)
        ]

        assert fault.num_fired == 1
        assert federation.parties.num_dropped == 0
        # It fell silent for longer than before, and came back.
        silences = [len([*same]) for _, same in groupby(steps)]
        assert silences[1] > 2 * silences[2]
        assert steps[-1] > 5

    @pytest.mark.parametrize("name", GOING_ON)
    def test_initial_upload_is_waited_for(self, name: str, fabric: str) -> None:
        fault = Crash("shop")
        federation = build(name, fabric, fault)
        with pytest.raises(NoAnswer, match=says("'shop'", "exchange 0")):
            train(federation, 1)
        # All three batches are under way at once.
        assert fault.num_fired == 3

    @pytest.mark.parametrize("name", GOING_ON)
    def test_without_the_initial_upload_it_is_absent_not_zero(self, name: str, fabric: str) -> None:
        patience = Patience(timeout=PATIENT, then="continue")
        fault = Crash("shop")
        federation = build(name, fabric, fault, patience=patience)
        smaller = build(name, fabric, Fault("nobody"), names=["bank", "holder"])
        # The label holder's rate is by how many there should be.
        scale = federation.holder.scale_learning_rate
        federation.holder.scale_learning_rate = lambda factor: scale(factor * 3 / 2)
        train(federation, 8)
        train(smaller, 8)

        # Three initial batches, and the first request.
        assert fault.num_fired == 4
        found = {
            key: item for key, item in weights(federation).items() if not key.startswith("shop.")
        }
        for key, item in weights(smaller).items():
            torch.testing.assert_close(found[key], item, atol=1e-6, rtol=0.0)

        fault = Crash("shop")
        federation = build(name, fabric, fault, patience=patience, combine="concat")
        with pytest.raises(MissingBlock, match=says("'concat'", "shop")):
            train(federation, 1)
        assert fault.num_fired >= 3


@pytest.mark.parametrize("fabric", FABRICS)
class TestVAFLThatWaits:
    def test_bounded_delay_needs_an_answer_from_whoever_is_stale(self, fabric: str) -> None:
        fault = Crash("shop", AT)
        federation = build("vafl", fabric, fault, method=VAFL(max_delay=10))
        with pytest.raises(NoAnswer, match=says("'shop'", "'refresh'")) as caught:
            train(federation, 60)
        assert fault.num_fired >= 2
        assert caught.value.parties == ("shop",)

    def test_bounded_delay_leaves_out_whoever_stays_stale(self, fabric: str) -> None:
        fault = Crash("shop", AT)
        federation = build(
            "vafl",
            fabric,
            fault,
            method=VAFL(max_delay=10),
            patience=Patience(timeout=PATIENT, then="continue"),
        )
        used = []
        gradients = federation.holder.gradients
        federation.holder.gradients = lambda h, *b, **k: (used.append({*h}), gradients(h, *b, **k))[
            1
        ]
        train(federation, 60)

        assert fault.num_fired >= 2
        assert used[0] == {"bank", "holder", "shop"}
        assert used[-1] == {"bank", "holder"}
        assert max(federation.method.findings(federation.holder)["delays"]) <= 10

    def test_two_at_a_time_go_on_without_the_third(self, fabric: str) -> None:
        fault = Crash("shop", AT)
        federation = build("vafl", fabric, fault, method=VAFL(num_uploads=2))
        train(federation, 20)
        assert fault.num_fired >= 1

    def test_all_at_a_time_end_with_an_error_and_not_in_silence(self, fabric: str) -> None:
        fault = Crash("shop", AT)
        federation = build("vafl", fabric, fault, method=VAFL(num_uploads=3))
        with pytest.raises(RunError):
            train(federation, 20)
        assert fault.num_fired >= 1


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("name", METHODS)
class TestEveryMethod:
    @pytest.mark.parametrize("kind", [Duplicate, Repeat, Stray])
    def test_repeated_and_stray_answers_change_no_bit(
        self, name: str, kind: type[Fault], fabric: str
    ) -> None:
        fault = kind(culprit(name))
        clean = build(name, fabric, Fault("nobody"), combine="concat")
        federation = build(name, fabric, fault, combine="concat")
        losses = [[event.loss for event in train(item, 8)] for item in (clean, federation)]

        assert fault.num_fired >= 3
        # One that comes after all the answers to an exchange are in may still be on its way.
        assert fault.num_fired - 2 <= federation.parties.num_dropped <= fault.num_fired
        assert clean.parties.num_dropped == 0
        assert losses[0] == losses[1]
        assert_bitwise_equal(weights(clean), weights(federation))
        if fabric == "simulated":
            assert federation.fabric.now() == clean.fabric.now()

    @pytest.mark.parametrize("combine", ["mean", "concat"])
    def test_value_that_is_no_number_is_found_and_named(
        self, name: str, combine: str, fabric: str
    ) -> None:
        who = culprit(name)
        fault = Poison(who, AT, verb=FIRST_ANSWER.get(name, "embed"))
        federation = build(name, fabric, fault, combine=combine)
        state = LoopState()
        with pytest.raises(Diverged, match=f"'{who}' .*(embedding|answer|prediction)") as caught:
            advance(federation, AT + 12, state)

        assert fault.num_fired == 1
        assert caught.value.party == who
        # It came, and was found, in the exchange that was under way.
        assert caught.value.exchange == state.exchange + 1 == federation.parties.exchange + 1
        assert f"exchange {state.exchange + 1}:" in str(caught.value)
        if HABITS[name] != "go on":
            assert state.exchange == AT
        # Nobody learned from it.
        assert all(torch.isfinite(item).all() for item in weights(federation).values())


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("name", ["splitnn", "vafl"])
def test_answer_that_names_another_exchange_changes_no_bit(name: str, fabric: str) -> None:
    fault = WrongExchange("shop")
    clean, federation = build(name, fabric, Fault("nobody")), build(name, fabric, fault)
    train(clean, 8)
    train(federation, 8)

    assert fault.num_fired >= 2
    assert_bitwise_equal(weights(clean), weights(federation))


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("name", GOING_ON)
def test_value_that_is_no_number_in_the_initial_upload(name: str, fabric: str) -> None:
    fault = Poison("shop", verb="refresh")
    federation = build(name, fabric, fault)
    with pytest.raises(Diverged, match=says("'shop'", "embedding")) as caught:
        train(federation, 12)
    assert fault.num_fired == 1
    assert caught.value.party == "shop"


@pytest.mark.parametrize("fabric", FABRICS)
def test_party_with_labels_of_its_own_goes_on_too(fabric: str) -> None:
    fault = Crash("shop", AT)
    federation = build(
        "flex",
        fabric,
        fault,
        method=Flex(labels="shared"),
        combine="concat",
        patience=Patience(timeout=PATIENT, then="continue"),
    )
    state = LoopState()
    advance(federation, AT, state)
    before = weights(federation)
    advance(federation, AT + 3, state)
    assert fault.num_fired == 3
    assert moved(before, weights(federation)) == {"bank", "holder", "fusion"}


def test_without_a_deadline_the_simulated_clock_says_that_nothing_will_come() -> None:
    fault = Crash("shop", AT)
    federation = build("splitnn", "simulated", fault, patience=Patience())
    with pytest.raises(Deadlock, match=r"tick \d+"):
        train(federation, AT + 1)
    assert fault.num_fired == 1


def watch_shop(federation: Federation) -> tuple[dict[int, Tensor], list[dict[int, Tensor]]]:
    """What the shop last said of each sample, and what of it each gradient was computed from."""
    known: dict[int, Tensor] = {}
    used: list[dict[int, Tensor]] = []
    assert isinstance(federation.fabric, Faulty)
    plan = federation.holder.parts["train"].plan
    shop = federation.fabric.parties["shop"]
    encode, gradients = shop.encode, federation.holder.gradients
    last: list[Any] = [None]

    def encoding(batch: Batch) -> Tensor:
        embedding = encode(batch)
        if last[0] != batch:
            # The first encoding of a batch is the one that is sent.
            last[0] = batch
            rows = embedding.detach().clone()
            known.update(zip(plan.positions(batch.number).tolist(), rows, strict=True))
        return embedding

    def learning(embeddings: Mapping[str, Tensor], *batches: Batch) -> dict[str, Tensor]:
        (batch,) = batches
        positions = plan.positions(batch.number).tolist()
        used.append(dict(zip(positions, embeddings["shop"].clone(), strict=True)))
        return gradients(embeddings, *batches)

    shop.encode = encoding
    federation.holder.gradients = learning
    return known, used
