"""The measured profile of a run between machines, as settings of the simulated clock.

Made of what the run directory has: intervals (``timeline.jsonl``), counts (``summary.json``) and
settings (``config.json``). A party's reply says how long its party computed in all, so the
cost of an encoding is counted with that of the local step that follows it. A message's size is
not told from its latency: both are in ``latency``, half of it each way.

Where steps go on until a timeout, their number is what was measured, and their cost is what makes
as many fit. The label holder's differs by exchange, as it did in the run. A party does not say how
many steps it took in each: its cost is that of the mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from colonnade.core.errors import StorageError
from colonnade.run.storage import read_json
from colonnade.run.timeline_file import timeline_lines

__all__ = ["measured_profile", "profile_toml"]

# Durations are in microseconds.
_PARTS_PER_TICK = 1000
_PARTS_PER_SECOND = 1_000_000
# So many measured durations stand for all, evenly chosen.
_TRACE = 200
# Intervals of the first exchange are partly those of what is before it.
_FIRST = 1


@dataclass
class _Lane:
    """One party's answers, in the order in which they came: seconds on the way, and computing."""

    sending: list[float] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)


def measured_profile(run: Path) -> dict[str, Any]:
    """The table ``[fabric]`` of a run that would take as long on the simulated clock.

    Args:
        run: The directory of a run over the network that has ended.

    Returns:
        Settings as they stand in a TOML file.

    Raises:
        StorageError: If the directory has no summary or no timeline, or if its run was not over
            the network, or not in one go.
    """
    summary, config = (read_json(run / f"{name}.json") for name in ("summary", "config"))
    lines = _newest(timeline_lines(run), config["record"]["timeline"] // 2)
    own = summary.get("label_holder_work")
    if summary["fabric"] != "grpc" or not lines or not own or not own["units"]:
        raise StorageError(
            f"{run}: has no measured times; give a run of 'colonnade federation train' with "
            "record.timeline above 0"
        )
    if summary["times"]["outages"]:
        raise StorageError(f"{run}: was resumed; give a run that went through in one go")
    # The first of these only says when they begin.
    num_exchanges = lines[-1]["exchange"] - lines[0]["exchange"]
    if not num_exchanges:
        raise StorageError(f"{run}: too short to tell what an exchange costs")
    share = num_exchanges / summary["exchanges"]
    lanes = {name: _lane(lines[1:], name) for name in summary["parties"]}
    fuse, besides = own["seconds"] / own["units"], 0.0
    updates_per_exchange = own["units"] / summary["exchanges"]
    per_exchange = _own_seconds(lines) / num_exchanges
    windows = [item for item in map(_window, lines[1:]) if item is not None]
    update: Any = None
    window, overran = math.inf, 0.0
    if len(windows) > num_exchanges / 2:
        # Updates go on until a timeout: however many they are, the exchange lasts until then.
        window = sorted(item.lasted for item in windows)[len(windows) // 4]
        fuse = _filling(window, updates_per_exchange)
        update = _paces(lines[1:], window, _lasted(lines) / num_exchanges)
        worked = sum(item.worked for item in windows) / num_exchanges
        overran = sum(max(0.0, item.lasted - window) for item in windows) / num_exchanges
        besides = max(0.0, per_exchange - worked + overran)
    elif updates_per_exchange > 1:
        besides = max(0.0, per_exchange - fuse * updates_per_exchange)
    else:
        # Nearly all of it is between the answers and what goes out next, as the update is.
        fuse = per_exchange / updates_per_exchange
    per_epoch = round(summary["exchanges"] / summary["epochs"])
    evaluate_every = config["stop"]["evaluate_every"] or per_epoch
    checkpoint_every = config["record"]["checkpoint_every"] or per_epoch
    evaluating, keeping = (
        _spent_apart(lines, state) / num_exchanges for state in ("evaluating", "keeping")
    )
    return {
        "name": "simulated",
        "parts_per_tick": _PARTS_PER_TICK,
        "fuse": update or _parts(fuse),
        "engine": {
            "exchange": _parts(besides),
            "evaluation": _parts(evaluating * evaluate_every),
            "checkpoint": _parts(keeping * checkpoint_every),
        },
        "party": {
            name: _party(lane, max(1.0, summary["local_steps"][name] * share), window, overran)
            for name, lane in lanes.items()
            if lane.computing
        },
    }


def _lane(lines: Iterable[Mapping[str, Any]], name: str) -> _Lane:
    found = _Lane()
    for line in lines:
        spans = line["parties"].get(name, {})
        found.sending += [end - begin for begin, end, *_ in spans.get("sending", ())]
        found.computing += [end - begin for begin, end, *_ in spans.get("computing", ())]
    return found


def _party(lane: _Lane, num_steps: float, window: float, overran: float) -> dict[str, Any]:
    # What was computed for one answer, shared out among the steps in it. Whatever a party was
    # held up for beyond the timeout its steps had no part in; and it was meanwhile that the label
    # holder overran the timeout itself.
    in_time = [min(item, window) for item in lane.computing]
    per_step = len(in_time) / num_steps
    if per_step < 1 and window < math.inf and any(in_time):
        # It begins no step that may not fit, so it need not compute until the timeout.
        per_step = _filling(window, 1 / per_step) * len(in_time) / sum(in_time)
    held_up = (sum(lane.computing) - sum(in_time)) / len(in_time)
    way = sum(lane.sending) / len(in_time) + max(0.0, held_up - overran)
    return {
        "encode": 0,
        "step": _trace([item * per_step for item in in_time]),
        # Calls that leave together travel together: drawn one by one, the slowest would count.
        "latency": _parts(way / 2),
    }


def _newest(lines: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """The newest intervals, so many that none is missing; nothing of the first exchange."""
    found: list[Mapping[str, Any]] = []
    for line in reversed(lines):
        if line["kind"] == "intervals" and line["exchange"] > _FIRST:
            most -= sum(map(len, _spans(line)))
            if most < 0:
                break
            found.append(line)
    return found[::-1]


def _spans(line: Mapping[str, Any]) -> list[list[Any]]:
    lanes = [*line["parties"].values(), line["label_holder"]]
    return [spans for lane in lanes for spans in lane.values()]


def _spent(lines: Sequence[Mapping[str, Any]], *states: str) -> float:
    """For how long the label holder was in these states."""
    spans = (line["label_holder"].get(state, ()) for line in lines[1:] for state in states)
    return float(sum(end - begin for own in spans for begin, end, *_ in own))


def _spent_apart(lines: Sequence[Mapping[str, Any]], state: str) -> float:
    """The same without what was done before a timeout, while the parties computed anyway."""
    windows = [item for item in map(_window, lines[1:]) if item is not None]
    return _spent(lines, state) - sum(item.besides.get(state, 0.0) for item in windows)


def _lasted(lines: Sequence[Mapping[str, Any]]) -> float:
    """From the end of the first of these exchanges to the end of the last."""
    first, last = (
        max(end for spans in _spans(line) for _, end, *_ in spans) for line in (lines[0], lines[-1])
    )
    return float(last - first)


def _own_seconds(lines: Sequence[Mapping[str, Any]]) -> float:
    """The label holder's own time: it neither waits, evaluates nor keeps anything."""
    idle = _spent(lines, "waiting", "evaluating", "keeping")
    return max(0.0, _lasted(lines) - idle)


class _Window(NamedTuple):
    """A wait for a moment, and for nobody: how long the work before it lasted, and both.

    ``besides`` is what was done meanwhile, and is no part of that work, by its state.
    """

    worked: float
    lasted: float
    besides: Mapping[str, float]


def _window(line: Mapping[str, Any]) -> _Window | None:
    """From the last answer of an exchange to the moment that it waited for, if it did."""
    own = line["label_holder"]
    for (_, answered, *party), (begin, end, *nobody) in pairwise(own.get("waiting", [])):
        if party and not nobody:
            besides = {
                state: sum(to - at for at, to in own.get(state, ()) if answered <= at < begin)
                for state in ("evaluating", "keeping")
            }
            worked = begin - answered - sum(besides.values())
            return _Window(max(0.0, worked), end - answered, besides)
    return None


def _filling(window: float, num_units: float) -> float:
    """The cost of a unit of which so many fit; on average half a unit would still have fitted."""
    return window / (num_units + 0.5)


def _paces(
    lines: Sequence[Mapping[str, Any]], window: float, per_exchange: float
) -> dict[str, Any] | None:
    """The cost of an update, one value per exchange; None if nobody counted them."""
    counts: dict[int, int] = {}
    for line in lines:
        if "updates" not in line:
            return None
        counts[line["exchange"]] = counts.get(line["exchange"], 0) + line["updates"]
    # One after the other: how the pace changes from one exchange to the next matters too.
    newest = list(counts.values())[-_TRACE:]
    values = [_parts(_filling(window, count)) for count in newest]
    return {"kind": "trace", "values": values, "period": _parts(per_exchange)}


def _parts(seconds: float) -> int:
    return round(seconds * _PARTS_PER_SECOND)


def _trace(seconds: Sequence[float]) -> dict[str, Any]:
    chosen = seconds[:: max(1, -(-len(seconds) // _TRACE))]
    # Those that were left out count in the mean.
    scale = 1.0
    if sum(chosen):
        scale = (sum(seconds) / len(seconds)) / (sum(chosen) / len(chosen))
    return {"kind": "trace", "values": [_parts(item * scale) for item in chosen]}


def profile_toml(profile: Mapping[str, Any]) -> str:
    """A profile as the tables of a TOML file."""
    lines = ["# Durations in microseconds, measured in a run.", "[fabric]"]
    lines += [f"{key} = {_value(profile[key])}" for key in ("name", "parts_per_tick", "fuse")]
    lines += [f"engine = {_value(profile['engine'])}"]
    for name, item in profile["party"].items():
        lines += ["", f"[fabric.party.{json.dumps(name)}]"]
        lines += [f"{key} = {_value(value)}" for key, value in item.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)
