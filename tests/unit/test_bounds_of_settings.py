"""The bounds of settings: what just fits is taken, what just does not is refused by its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from colonnade.align.terms import AlignPolicy, AlignSpec
from colonnade.core.errors import ConfigError, ProtocolError
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.parties import Patience
from colonnade.core.schedules import CosineSchedule, StepSchedule
from colonnade.fabrics.durations import Constant, Exponential, Trace, Uniform, Utilization
from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.fabrics.simulated import Profile, with_traces
from colonnade.federate.federation_directory import FederationSettings
from colonnade.federate.party_home import PartySettings
from colonnade.protect import Blind, Budget, Fixed, Perturb, Quantize, RandomK, TopK
from colonnade.protect.policy import Policy

TINY = 5e-324
BELOW_1 = math.nextafter(1.0, 0.0)
ABOVE_1 = math.nextafter(1.0, 2.0)
FEDERATION = partial(
    FederationSettings, name="bank", address="127.0.0.1:7443", enrolment="127.0.0.1:7444"
)
PARTY = partial(
    PartySettings, name="telco", label_holder="bank", hub="hub:1", data=Path("x.csv"), id="id"
)
BUSY = partial(Utilization, unit=1, values=(0.5,))

# Who takes it, which setting, values that just fit, and values that just do not.
BOUNDS: list[tuple[Callable[..., Any], str, list[Any], list[Any]]] = [
    (AlignPolicy, "max_ids", [1], [0]),
    (AlignPolicy, "max_alignments", [1], [0]),
    (AlignPolicy, "per_days", [1], [0]),
    (AlignSpec, "salt", ["s" * 16], ["s" * 15]),
    (OptimizerSpec, "lr", [1e-30, 1e30], [0.0, -1.0, math.inf, math.nan]),
    (OptimizerSpec, "clip", [TINY, None], [0.0, -1.0, math.inf, math.nan]),
    (CosineSchedule, "floor", [0.0, 1.0], [-TINY, ABOVE_1, math.nan]),
    (CosineSchedule, "exchanges", [1, None], [0]),
    (StepSchedule, "every", [TINY, 1.0], [0.0, ABOVE_1, math.nan]),
    (StepSchedule, "times", [TINY, 1.0], [0.0, ABOVE_1, math.nan]),
    (Patience, "timeout", [1, None], [0]),
    (Constant, "value", [0], [-1]),
    (partial(Uniform, high=3), "low", [0, 3], [-1, 4]),
    (Exponential, "mean", [TINY], [0.0, math.nan]),
    (Trace, "values", [(0,), (0, 5)], [(), (5, -1)]),
    (partial(Trace, values=(5,)), "period", [1, None], [0]),
    (BUSY, "values", [(0.0,), (BELOW_1,)], [(-TINY,), (0.5, 1.0)]),
    (BUSY, "unit", [1], [0]),
    (BUSY, "period", [1, None], [0]),
    (Profile, "bandwidth", [1, None], [0]),
    *(
        (LinkSpec, name, [TINY], [0.0, -1.0, math.nan])
        for name in (
            *("keepalive", "keepalive_timeout", "ping_timeout"),
            *("hello_timeout", "call_timeout", "backoff", "backoff_most"),
        )
    ),
    (LinkSpec, "message_bytes", [4096], [4095]),
    (partial(LinkSpec, message_bytes=5000), "outbox_bytes", [5000], [4999]),
    (FEDERATION, "certificate_days", [1, 825], [0, 826]),
    (FEDERATION, "max_kept_megabytes", [1, None], [0]),
    (PARTY, "hub", ["hub:1", "hub:65535"], ["hub:0", "hub:65536", "hub:", ":1", "hub", "hub:x"]),
    (PARTY, "health", ["hub:0", "hub:65535"], ["hub:65536", "hub:", ":1", "hub", "hub:x"]),
    (Perturb, "noise", [1e-13, 9e14], [0.0, 9e-14, 2e15, math.inf, math.nan]),
    (partial(Perturb, noise=1.0), "clip", [1e-15, 9e14], [0.0, 9e-16, math.inf, math.nan]),
    (partial(Perturb, noise=1.0), "delta", [TINY, BELOW_1], [0.0, 1.0, math.nan]),
    (partial(Budget, epsilon=1.0), "delta", [TINY, BELOW_1], [0.0, 1.0, math.nan]),
    (Budget, "epsilon", [TINY], [0.0, math.inf]),
    (Budget, "mu", [TINY], [0.0, math.inf]),
    (Fixed, "range", [2.0**-21, 2047.0], [0.0, 2048.0, math.inf]),
    (partial(Fixed, range=0.9), "fraction_bits", [0, 31], [-1, 32]),
    (Blind, "least", [2], [1]),
    (TopK, "keep", [TINY, 1.0], [0.0, ABOVE_1]),
    (RandomK, "keep", [TINY, 1.0], [0.0, ABOVE_1]),
    (Quantize, "bits", [1, 2, 4, 8], [0, 3, 16]),
    (Policy, "rows", [TINY, 1.0], [0.0, ABOVE_1]),
    (Policy, "least_noise", [TINY, None], [0.0, math.nan]),
]


@pytest.mark.parametrize(
    ("make", "name", "good", "bad"), BOUNDS, ids=lambda item: item if type(item) is str else ""
)
def test_the_last_value_is_taken_and_the_next_is_not(
    make: Callable[..., Any], name: str, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        assert getattr(make(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(ConfigError, match=name):
            make(**{name: value})


def test_a_sum_fits_for_exactly_so_many_parties() -> None:
    # Values up to 64 in 20 fraction bits: 31 of them stay below half of 2^32.
    assert Fixed().most_parties == 31
    assert Fixed(ring_bits=64).most_parties == (2**63 - 1) // 2**26
    assert Fixed(range=2047.0).most_parties == 1


def test_alignments_are_counted_over_the_last_days() -> None:
    policy = AlignPolicy(max_alignments=2, per_days=30)
    assert policy.check_days([970, 971], 1000, "shop") == [971, 1000]
    with pytest.raises(ProtocolError, match="has had 2"):
        policy.check_days([971, 972], 1000, "shop")


def test_lists_may_be_as_long_as_the_policy_says() -> None:
    policy = AlignPolicy(max_ids=7)
    policy.check_sizes({"shop": 7}, "telco")
    with pytest.raises(ProtocolError, match="'shop' has 8"):
        policy.check_sizes({"telco": 7, "shop": 8}, "telco")


@pytest.mark.parametrize("kind", ["encode", "step", "latency"])
def test_a_trace_is_read_for_whatever_it_times(kind: str) -> None:
    named = Utilization(unit=10, trace="google", machine=3)
    profile = with_traces(Profile(**{kind: named}), lambda name, machine: (machine / 10,))
    assert getattr(profile, kind) == Utilization(unit=10, values=(0.3,), machine=3)
    others = {"encode", "step", "latency"} - {kind}
    assert all(getattr(profile, other) == getattr(Profile(), other) for other in others)


def test_draws_fill_their_range_evenly() -> None:
    assert [Uniform(low=2, high=4).ticks(share, 0, 0) for share in (0.0, 0.34, 0.99)] == [2, 3, 4]
    assert Exponential(mean=10.0, least=3).ticks(0.0, 0, 0) == 3
    assert Exponential(mean=10.0).ticks(1 - math.exp(-2.0), 0, 0) == 20
    assert [Trace(values=(1, 5)).ticks(0.0, number, 0) for number in range(3)] == [1, 5, 1]
    busy = Utilization(unit=6, values=(0.0, 0.5), period=100)
    assert [busy.ticks(0.0, 7, now) for now in (0, 99, 100, 200)] == [6, 6, 12, 6]
