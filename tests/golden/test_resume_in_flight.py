"""Resume on the simulated clock with work under way: under latencies, thin links, sleeps and paces
of all kinds, the rest of the run has the same bits and the same ticks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from colonnade.core.federation import Federation, LoopState, Stop
from colonnade.core.method import Method
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.parties import Patience
from colonnade.core.schedules import CosineSchedule, StepSchedule
from colonnade.fabrics.durations import Constant, Exponential, Trace, Uniform, Utilization
from colonnade.fabrics.simulated import Profile
from colonnade.fabrics.sleeps import RandomSleep, RoundRobinSleep
from colonnade.methods import METHODS
from colonnade.methods.asynchronous import Asynchronous
from colonnade.methods.flex import AdaptiveFlex, Flex, SyncVFL
from colonnade.methods.laser import Laser
from colonnade.methods.splitnn import SplitNN
from colonnade.methods.vafl import VAFL
from colonnade.quality.evaluation import evaluate
from federations import (
    ENCODERS,
    assert_bitwise_equal,
    checkpoint,
    make_federation,
    resume,
    train,
    weights,
)
from probes import assert_plain

SCHEDULES: Mapping[str, dict[str, Profile]] = {
    "latencies": {
        "bank": Profile(encode=Constant(value=3), latency=Constant(value=70)),
        "holder": Profile(encode=Uniform(low=1, high=9), step=Uniform(low=0, high=4)),
        "shop": Profile(encode=Exponential(mean=20.0), latency=Uniform(low=0, high=90)),
    },
    "sleeps": {
        "bank": Profile(latency=Constant(value=5), sleep=RandomSleep(probability=0.4, ticks=100)),
        "holder": Profile(encode=Constant(value=7), sleep=RoundRobinSleep(turn=0, of=2, ticks=60)),
        "shop": Profile(encode=Constant(value=9), sleep=RoundRobinSleep(turn=1, of=2, ticks=60)),
    },
    "thin links and traces": {
        "bank": Profile(encode=Trace(values=(1, 80, 2)), bandwidth=3),
        "holder": Profile(step=Utilization(values=(0.1, 0.9, 0.5), unit=3, period=40)),
        "shop": Profile(
            step=Utilization(values=(0.0, 0.7), unit=2), latency=Trace(values=(30, 1)), bandwidth=11
        ),
    },
}
VARIANTS: Mapping[str, Method] = {name: method() for name, method in METHODS.items()} | {
    "splitnn, pipelined": SplitNN(pipelined=True),
    "async, three steps": Asynchronous(local_steps=3),
    "vafl, bounded": VAFL(max_delay=4),
    "vafl, two at a time": VAFL(num_uploads=2),
    "vafl, two at a time, bounded, shared": VAFL(num_uploads=2, max_delay=3, batches="shared"),
    "sync_vfl, min": SyncVFL(steps="min"),
    "sync_vfl, max": SyncVFL(steps="max"),
    "flex, shared labels": Flex(labels="shared"),
    "laser, shared labels": Laser(labels="shared"),
    "laser, one head": Laser(heads="label_holder"),
    "adaptive_flex, shared labels": AdaptiveFlex(labels="shared"),
}
ASYNCHRONOUS = [
    name for name, method in VARIANTS.items() if isinstance(method, Asynchronous | VAFL)
]
LAST = 9


def build(variant: str, schedule: str, **changes: Any) -> Federation:
    method = VARIANTS[variant]
    names = ["bank", "holder", "shop"]
    taking_part = method.participants(tuple(names), "holder")
    return make_federation(
        **{
            "names": names,
            "method": method,
            "fabric": "simulated",
            "encoder": ENCODERS["both"],
            "combine": "mean",
            "num_samples": 15,
            "batch_size": 4,
            "num_validation": 5,
            "fusion_dropout": 0.0 if method.needs.labels == "shared" else 0.2,
            "profiles": {
                name: item for name, item in SCHEDULES[schedule].items() if name in taking_part
            },
            "fuse": Trace(values=(1, 5, 9, 2)),
            "optimizer": {
                "bank": OptimizerSpec(
                    name="adam", lr=0.01, schedule=CosineSchedule(exchanges=LAST), clip=0.1
                ),
                "holder": OptimizerSpec(
                    name="local_momentum", lr=0.02, schedule=StepSchedule(exchanges=LAST)
                ),
                "shop": OptimizerSpec(name="proximal", lr=0.05),
            },
            "fabric_seed": 4,
        }
        | changes
    )


def outcome(federation: Federation) -> dict[str, Any]:
    return {
        "now": federation.fabric.now(),
        "meter": federation.fabric.meter.state(),
        "in flight": federation.parties.in_flight(),
        "dropped": federation.parties.num_dropped,
        "findings": federation.method.findings(federation.holder),
        "quality": evaluate(federation, "validation"),
    }


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_resumes_from_the_middle_of_everything(variant: str, schedule: str) -> None:
    whole = build(variant, schedule)
    checkpoints = {}
    ticks = []
    for event in whole.train(Stop(exchanges=LAST), LoopState(), evaluate):
        ticks.append(whole.fabric.now())
        if event.exchange in (1, 5):
            checkpoints[event.exchange] = checkpoint(whole)
    for at, kept in checkpoints.items():
        assert_plain(kept)
        if variant in ASYNCHRONOUS:
            # Every party has a call under way, and its answer is on the clock or already here.
            assert len(kept["federation"]["parties"]["started"]) == 3
            on_the_way = kept["federation"]["fabric"]["replies"]
            assert len(on_the_way) + len(kept["federation"]["parties"]["arrived"]) == 3
            assert any(reply["tick"] > ticks[at - 1] for reply in on_the_way)
        resumed = build(variant, schedule)
        resume(resumed, kept)
        later = [
            resumed.fabric.now()
            for _ in resumed.train(Stop(exchanges=LAST), LoopState(exchange=at), evaluate)
        ]

        assert later == ticks[at:]
        assert outcome(resumed) == outcome(whole)
        assert_bitwise_equal(weights(resumed), weights(whole))


def test_checkpoint_holds_answers_that_came_while_others_were_awaited() -> None:
    # While the label holder waits for a refresh of the slow one, uploads of the others arrive.
    slow = {
        "bank": Profile(encode=Constant(value=100)),
        "holder": Profile(encode=Constant(value=5)),
        "shop": Profile(encode=Constant(value=6)),
    }
    settings = {"profiles": slow}
    whole = build("vafl, bounded", "latencies", **settings)
    kept = None
    for event in whole.train(Stop(exchanges=30), LoopState(), evaluate):
        if kept is None and whole.parties.state()["arrived"]:
            at, kept = event.exchange, checkpoint(whole)
    assert kept is not None

    resumed = build("vafl, bounded", "latencies", **settings)
    resume(resumed, kept)
    train(resumed, 30, LoopState(exchange=at))

    assert outcome(resumed) == outcome(whole)
    assert_bitwise_equal(weights(resumed), weights(whole))


@pytest.mark.parametrize("variant", ["splitnn", "fedbcd", "pbcd", "flex", "adaptive_flex"])
def test_checkpoint_holds_late_answers_and_what_stood_in_for_them(variant: str) -> None:
    # Many answers of the shop take 160 ticks; nobody waits for more than 100, and Flex for 20 more.
    # So there are checkpoints with an answer under way that will be dropped.
    settings = {
        "profiles": {"shop": Profile(latency=Trace(values=(1, 1, 80, 80, 80)))},
        "patience": Patience(timeout=100, then="continue"),
    }
    whole = build(variant, "latencies", **settings)
    checkpoints = {}
    for event in whole.train(Stop(exchanges=60), LoopState(), evaluate):
        checkpoints[event.exchange] = checkpoint(whole)
    assert whole.parties.num_dropped >= 3
    under_way = {
        at: kept for at, kept in checkpoints.items() if kept["federation"]["fabric"]["replies"]
    }
    assert len(under_way) >= 3

    for at in [*under_way][:3]:
        resumed = build(variant, "latencies", **settings)
        resume(resumed, under_way[at])
        train(resumed, 60, LoopState(exchange=at))
        assert outcome(resumed) == outcome(whole)
        assert_bitwise_equal(weights(resumed), weights(whole))
