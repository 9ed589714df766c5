"""Federations: when training ends, what it reports, and that evaluation disturbs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from colonnade.core.errors import ConfigError, Diverged, PartyFailed
from colonnade.core.federation import Event, Federation, LoopState, Stop
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.parties import Parties
from colonnade.core.verbs import verb
from colonnade.methods.alone import Alone
from colonnade.methods.centralized import Centralized
from colonnade.parts.split_step import SplitParty, predict_by_fusion, split_step
from colonnade.quality.evaluation import evaluate
from federations import (
    ENCODERS,
    FABRICS,
    PLAIN_SGD,
    assert_bitwise_equal,
    features_of,
    make_federation,
    train,
    weights,
)
from messages import says

INFO = MethodInfo(
    name="test",
    paper="none",
    summary="for tests",
    tolerates_slow=False,
    tolerates_missing=False,
    heterogeneous_models=True,
)


def run(federation: Federation, **limits: Any) -> tuple[list[Event], LoopState]:
    state = LoopState()
    return list(federation.train(Stop(**limits), state, evaluate)), state


def learnable(**settings: Any) -> Federation:
    """Labels that p0's first column decides, so that training gets somewhere."""
    labels = (features_of("p0", 56, 3, 0, torch.float32)[:, 0] > 0).long().numpy()
    defaults = {
        "labels": labels,
        "num_samples": 40,
        "num_validation": 16,
        "optimizer": OptimizerSpec(name="adam", lr=0.01),
    }
    return make_federation(2, **defaults | settings)


class TestStop:
    def test_by_exchanges(self) -> None:
        events, state = run(make_federation(), exchanges=4)
        assert [event.exchange for event in events] == [1, 2, 3, 4]
        assert state.exchange == 4
        assert state.stopped_by

    def test_by_epochs(self) -> None:
        federation = make_federation(num_samples=24, batch_size=8)
        assert federation.exchanges_per_epoch == 3
        events, _ = run(federation, epochs=2)
        assert len(events) == 6

    @pytest.mark.parametrize(("exchanges", "epochs", "expected"), [(4, 2, 4), (10, 2, 6)])
    def test_by_whichever_comes_first(self, exchanges: int, epochs: int, expected: int) -> None:
        federation = make_federation(num_samples=24, batch_size=8)
        assert len(run(federation, exchanges=exchanges, epochs=epochs)[0]) == expected

    def test_by_target(self) -> None:
        events, state = run(learnable(), exchanges=200, target=0.75, evaluate_every=1)
        assert state.stopped_by == "target"
        qualities = [event.metrics["accuracy"] for event in events]
        assert qualities[-1] >= 0.75
        assert max(qualities[:-1]) < 0.75

    def test_by_patience(self) -> None:
        # A step this small changes no decision: the first evaluation stays the best.
        federation = learnable(optimizer=OptimizerSpec(name="sgd", lr=1e-12))
        events, state = run(federation, exchanges=100, patience=3, evaluate_every=2)
        assert state.stopped_by == "patience"
        assert state.exchange == len(events) == 8
        assert (state.best_exchange, state.num_without_best) == (2, 3)
        assert [event.exchange for event in events if event.is_best] == [2]

    def test_new_best_renews_patience(self) -> None:
        events, state = run(learnable(), exchanges=200, patience=6, evaluate_every=1)
        best, without = -math.inf, 0
        for event in events:
            assert without < 6
            assert event.is_best == (event.metrics["accuracy"] > best)
            best = max(best, event.metrics["accuracy"])
            without = 0 if event.is_best else without + 1
        assert (state.stopped_by, without) == ("patience", 6)
        assert state.best_quality == best
        assert state.best_exchange == len(events) - 6 > 6

    def test_training_must_end_for_certain(self) -> None:
        with pytest.raises(ConfigError, match=says("exchanges", "epochs")):
            Stop(target=0.9)

    @pytest.mark.parametrize("name", ["exchanges", "epochs", "patience", "evaluate_every"])
    def test_counts_begin_at_one(self, name: str) -> None:
        with pytest.raises(ConfigError, match=says(name, "least 1", 0)):
            Stop(**{"exchanges": 1, name: 0})


class TestEvents:
    def test_evaluated_once_per_epoch_and_at_the_end(self) -> None:
        federation = make_federation(num_samples=24, batch_size=8, num_validation=10)
        events, _ = run(federation, exchanges=7)
        evaluated = [event.exchange for event in events if event.metrics is not None]
        assert evaluated == [3, 6, 7]

    def test_evaluated_as_often_as_told(self) -> None:
        events, _ = run(make_federation(num_validation=10), exchanges=5, evaluate_every=2)
        assert [event.exchange for event in events if event.metrics] == [2, 4, 5]

    def test_never_evaluated_without_a_validation_part(self) -> None:
        events, state = run(make_federation(), epochs=2)
        assert all(event.metrics is None and not event.is_best for event in events)
        assert state.best_quality == -math.inf

    def test_loss_is_that_of_the_batch_before_the_step(self) -> None:
        federation = make_federation()
        blocks = {
            name: party.encoder(party.rows(Batch("train", 0)))
            for name, party in federation.fabric.parties.items()
        }
        holder = federation.holder
        expected = holder.task.loss(holder.fusion(blocks), holder.targets(Batch("train", 0)))
        assert train(federation, 1)[0].loss == pytest.approx(expected.item())

    def test_leaving_and_coming_back_between_events_changes_nothing(self) -> None:
        whole, halted = make_federation(num_validation=8), make_federation(num_validation=8)
        train(whole, 7)
        state = LoopState()
        for event in halted.train(Stop(exchanges=7), state, evaluate):
            if event.exchange == 3:
                break
        assert state.exchange == 3
        train(halted, 7, state)
        assert_bitwise_equal(weights(whole), weights(halted))

    def test_method_begins_once(self) -> None:
        begun = []

        @dataclass(frozen=True, kw_only=True)
        class Begins(Method):
            info = INFO
            party = SplitParty
            predict = predict_by_fusion

            async def begin(self, holder: LabelHolder, parties: Parties) -> None:
                begun.append(await parties.ask("local_steps"))

            async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
                await split_step(holder, parties, batch)

        federation = make_federation(method=Begins())
        state = LoopState()
        for stop_at in (2, 4):
            train(federation, stop_at, state)
            state.stopped_by = ""
        assert begun == [{"p0": 0, "p1": 0}]


@pytest.mark.parametrize("fabric", FABRICS)
class TestEvaluate:
    @pytest.mark.parametrize("encoder", ["plain", "both"])
    def test_is_what_the_joint_network_says(self, fabric: str, encoder: str) -> None:
        federation = make_federation(
            3, fabric=fabric, num_validation=13, batch_size=4, encoder=ENCODERS[encoder]
        )
        train(federation, 4)
        found = evaluate(federation, "validation")

        parties, holder = federation.fabric.parties, federation.holder
        with torch.no_grad():
            blocks = {
                name: party.encoder.eval()(party.parts["validation"].features)
                for name, party in parties.items()
            }
            outputs = holder.fusion.eval()(blocks)
        part = holder.parts["validation"]
        assert found["loss"] == pytest.approx(holder.task.loss(outputs, part.targets).item())
        decided = (outputs[:, 0] > 0).long().numpy()
        assert found["accuracy"] == np.mean(np.asarray(holder.task.classes)[decided] == part.values)

    @pytest.mark.parametrize("encoder", ENCODERS)
    def test_changes_nothing(self, fabric: str, encoder: str) -> None:
        settings = {"fabric": fabric, "num_validation": 9, "encoder": ENCODERS[encoder]}
        calm, watched = make_federation(**settings), make_federation(**settings)
        run(calm, exchanges=8, evaluate_every=8)
        run(watched, exchanges=8, evaluate_every=1)
        evaluate(watched, "validation")

        assert_bitwise_equal(weights(calm), weights(watched))
        for name, traffic in calm.fabric.meter.parties.items():
            other = watched.fabric.meter.parties[name]
            assert (traffic.bytes_up, traffic.bytes_down, traffic.calls) == (
                (other.bytes_up, other.bytes_down, other.calls)
            )
        if fabric == "simulated":
            assert calm.fabric.now() == watched.fabric.now()

    @pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
    def test_every_kind_has_its_quality(self, fabric: str, kind: Any) -> None:
        federation = make_federation(fabric=fabric, kind=kind, num_validation=12)
        found = evaluate(federation, "validation")
        assert math.isfinite(found["loss"])
        assert federation.holder.task.quality_name in found


class TestFailures:
    def test_divergence_names_the_exchange(self) -> None:
        federation = make_federation()
        state = LoopState()
        train(federation, 3, state)
        state.stopped_by = ""
        with torch.no_grad():
            next(federation.fabric.parties["p1"].encoder.parameters()).fill_(math.nan)
        with pytest.raises(Diverged) as caught:
            train(federation, 5, state)
        assert (caught.value.exchange, caught.value.party) == (4, "p1")

    @pytest.mark.parametrize("fabric", FABRICS)
    @pytest.mark.parametrize("num_exchanges", [1, 3])
    def test_failure_of_the_last_tell_is_not_lost(self, fabric: str, num_exchanges: int) -> None:
        class Fragile(SplitParty):
            @verb
            def descend(self, batch: Batch, gradient: torch.Tensor) -> None:
                if batch.number == num_exchanges - 1:
                    raise ValueError
                self.step(self.encode(batch), gradient)

        @dataclass(frozen=True, kw_only=True)
        class Breaks(Method):
            info = INFO
            party = Fragile
            predict = predict_by_fusion

            async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
                await split_step(holder, parties, batch)

        with pytest.raises(PartyFailed, match=f"exchange {num_exchanges} "):
            train(make_federation(method=Breaks(), fabric=fabric), num_exchanges)


class TestBaselines:
    def test_alone_is_the_one_party(self) -> None:
        names = ["bank", "holder", "shop"]
        federation = make_federation(names=names, method=Alone())
        assert federation.fabric.names == ("holder",)
        federation = make_federation(names=names, method=Alone(who="shop"))
        assert federation.fabric.names == ("shop",)

    def test_alone_needs_someone_with_a_block(self) -> None:
        with pytest.raises(ConfigError, match=says("method.who", "'holder'", ["bank"])):
            make_federation(names=["bank"], method=Alone())
        with pytest.raises(ConfigError, match=says("method.who", "'x'", ["bank"])):
            make_federation(names=["bank"], method=Alone(who="x"))

    def test_centralized_is_one_network_over_all_columns(self) -> None:
        federation = make_federation(
            names=["bank", "shop"], method=Centralized(), columns=3, optimizer=PLAIN_SGD
        )
        assert federation.fabric.names == ("holder",)
        assert federation.fabric.parties["holder"].parts["train"].features.shape == (24, 6)
        train(federation, 3)
        meter = federation.fabric.meter.parties["holder"]
        assert (meter.bytes_up, meter.bytes_down) == (0, 0)
