"""CPU traces by name, from settings to the simulated clock."""

from __future__ import annotations

import os

import pytest

from colonnade.core.errors import ConfigError
from colonnade.data.datasets import is_trace_available, load_cpu_trace
from colonnade.fabrics.durations import Constant, Utilization
from colonnade.fabrics.simulated import Profile, with_traces
from colonnade.run.engine import train
from colonnade.run.spec import parse_spec
from messages import says

NEEDS_TRACE = pytest.mark.skipif(
    not is_trace_available("planetlab"),
    reason=f"the files of trace 'planetlab' are not here; COLONNADE_DATA is "
    f"{os.environ.get('COLONNADE_DATA', 'not set')}",
)


def test_values_or_a_trace_but_not_both() -> None:
    for wrong in ({}, {"values": (0.5,), "trace": "google"}):
        with pytest.raises(ConfigError, match=says("values", "trace")):
            Utilization(unit=10, **wrong)


def test_a_trace_is_read_where_it_is_named() -> None:
    named = Utilization(unit=10, trace="google", machine=3)
    profile = with_traces(
        Profile(step=named),
        lambda name, machine: (0.5,) if (name, machine) == ("google", 3) else (),
    )
    assert profile.step == Utilization(unit=10, values=(0.5,), machine=3)
    assert profile.encode == Constant()
    assert profile.step.ticks(0.0, 0, 0) == 20
    with pytest.raises(ConfigError, match=says("trace", "'google'", "values")):
        named.ticks(0.0, 0, 0)


@NEEDS_TRACE
def test_a_run_at_the_pace_of_a_recorded_machine() -> None:
    step = {"kind": "utilization", "trace": "planetlab", "machine": 7, "unit": 10}
    result = train(
        parse_spec(
            {
                "data": {"dataset": "wine", "batch_size": 32},
                "method": {"name": "sync_vfl", "local_steps": 4},
                "fabric": {"name": "simulated", "default": {"step": step}},
                "stop": {"exchanges": 1},
            }
        )
    )
    busy = load_cpu_trace("planetlab")[7]
    ticks = sum(round(10 / (1 - busy[number])) for number in range(4))
    assert result.summary["seconds_computing"]["winery"] == pytest.approx(ticks / 1000)


@NEEDS_TRACE
def test_a_machine_that_the_trace_has_not() -> None:
    step = {"kind": "utilization", "trace": "planetlab", "machine": 10**6, "unit": 10}
    spec = {"data": {"dataset": "wine"}, "fabric": {"name": "simulated", "default": {"step": step}}}
    with pytest.raises(ConfigError, match=says("fabric", "'planetlab'", "0 to 11745")):
        train(parse_spec(spec))
