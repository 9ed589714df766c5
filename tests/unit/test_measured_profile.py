"""The measured profile of a run: numbers from its files, and a simulation that takes as long."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from colonnade.core.errors import StorageError
from colonnade.fabrics import SimulatedSpec
from colonnade.run.measured_profile import measured_profile, profile_toml
from colonnade.run.spec import parse_spec

# The first two say only when the others begin.
EXCHANGES = 42


def write_run(root: Path, **changes: Any) -> Path:
    """SplitNN with one party: 2 ms on each way, 3 ms for its work, 1 for an update, 0.5 besides.

    Every tenth exchange is followed by an evaluation (10 ms) and a checkpoint (6 ms).
    """
    root.mkdir()
    lines = []
    begin = 0.0
    for number in range(1, EXCHANGES + 1):
        party = {
            "sending": [[begin, begin + 2e-3], [begin + 5e-3, begin + 7e-3]],
            "computing": [[begin + 2e-3, begin + 5e-3]],
        }
        own = {"waiting": [[begin, begin + 7e-3, "shop"]]}
        begin += 8.5e-3
        if number % 10 == 0:
            own |= {
                "evaluating": [[begin, begin + 10e-3]],
                "keeping": [[begin + 10e-3, begin + 16e-3]],
            }
            begin += 16e-3
        lines.append(
            {"kind": "intervals", "exchange": number, "parties": {"shop": party}}
            | {"label_holder": own}
        )
    (root / "timeline.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = {"checkpoint_every": 10, "timeline": 20_000}
    (root / "config.json").write_text(
        json.dumps({"record": record, "stop": {"evaluate_every": None}})
    )
    summary = {
        "fabric": "grpc",
        "parties": ["shop"],
        "exchanges": EXCHANGES,
        "epochs": 4.2,
        "local_steps": {"shop": EXCHANGES},
        "label_holder_work": {"units": EXCHANGES, "seconds": EXCHANGES * 1e-3},
        "times": {"outages": 0.0},
        **changes,
    }
    (root / "summary.json").write_text(json.dumps(summary))
    return root


def test_has_every_cost_of_the_run(tmp_path: Path) -> None:
    found = measured_profile(write_run(tmp_path / "run"))
    assert found["fuse"] == 1500
    assert found["engine"] == {"exchange": 0, "evaluation": 10_000, "checkpoint": 6000}
    (shop,) = found["party"].values()
    assert shop["latency"] == 2000
    assert set(shop["step"]["values"]) == {3000}


def test_the_rest_of_an_exchange_is_apart_where_it_has_many_updates(tmp_path: Path) -> None:
    work = {"units": 5 * EXCHANGES, "seconds": EXCHANGES * 1e-3}
    found = measured_profile(write_run(tmp_path / "run", label_holder_work=work))
    assert found["fuse"] == 200
    assert found["engine"]["exchange"] == 500


def test_steps_until_a_timeout_fit_as_often_as_they_did(tmp_path: Path) -> None:
    """A timeout of 1.2 ms after the answer; every fifth exchange overruns it by 0.2 ms."""
    run = write_run(
        tmp_path / "run",
        label_holder_work={"units": 5 * EXCHANGES, "seconds": 0.04},
        local_steps={"shop": 5 * EXCHANGES},
    )
    lines = [json.loads(line) for line in (run / "timeline.jsonl").read_text().splitlines()]
    for line in lines:
        waits = line["label_holder"]["waiting"]
        answered = waits[0][1]
        lasted = 1.2e-3 if line["exchange"] % 5 else 1.4e-3
        waits.append([answered + 1e-3, answered + lasted])
    (run / "timeline.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = measured_profile(run)
    assert found["fuse"] == round(1200 / 5.5)
    # Between two waits for an answer are 1.5 ms, overruns among them.
    assert found["engine"]["exchange"] == pytest.approx(300, abs=1)
    shop = found["party"]["shop"]
    # It computed 3 ms where 1.2 were given: the rest is a delay, beyond that of the label holder.
    # Five steps of a fifth of the timeout would seldom fit.
    assert set(shop["step"]["values"]) == {round(1200 / 5.5)}
    assert shop["latency"] == 2000 + 900 - 20


def test_updates_until_a_timeout_are_as_many_as_in_each_exchange(tmp_path: Path) -> None:
    """A timeout of 20 ms after the answer, with 4, 9 and 14 updates by turns."""
    counts = [4, 9, 14]
    run = write_run(tmp_path / "run", label_holder_work={"units": 9 * EXCHANGES, "seconds": 0.3})
    lines, late = [], 0.0
    for line in (run / "timeline.jsonl").read_text().splitlines():
        item = shifted(json.loads(line), late)
        waits = item["label_holder"]["waiting"]
        answered = waits[0][1]
        waits.append([answered + 19e-3, answered + 20e-3])
        late += 19e-3
        item["updates"] = counts[item["exchange"] % 3]
        lines.append(item)
    # A line of its own, such as a mark writes, counts for the same exchange.
    lines[-1]["updates"] -= 1
    lines.append({**lines[-1], "parties": {}, "updates": 1})
    (run / "timeline.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = measured_profile(run)
    values = found["fuse"]["values"]
    costs = [round(20_000 / (count + 0.5)) for count in counts]
    # The first two exchanges only say when the others begin.
    assert values == [costs[number % 3] for number in range(3, EXCHANGES + 1)]
    # An exchange takes 8.5 ms and 19 more; every tenth is followed by 16 of other work.
    assert found["fuse"]["period"] == pytest.approx(27_500 + 4 * 16_000 / 40, abs=20)
    assert tomllib.loads(profile_toml(found)) == {"fabric": found}


def test_what_is_done_before_a_timeout_costs_nothing_apart(tmp_path: Path) -> None:
    """Evaluations and checkpoints of 16 ms within a timeout of 20 ms."""
    run = write_run(tmp_path / "run")
    lines, late = [], 0.0
    for line in (run / "timeline.jsonl").read_text().splitlines():
        item = shifted(json.loads(line), late)
        own = item["label_holder"]
        answered = own["waiting"][0][1]
        own["waiting"].append([answered + 19e-3, answered + 20e-3])
        late += 19e-3
        if "evaluating" in own:
            own["evaluating"] = [[answered + 1e-3, answered + 11e-3]]
            own["keeping"] = [[answered + 11e-3, answered + 17e-3]]
            late -= 16e-3
        lines.append(item)
    (run / "timeline.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = measured_profile(run)
    assert found["engine"]["evaluation"] == found["engine"]["checkpoint"] == 0
    # What is between two exchanges is what it was.
    assert found["engine"]["exchange"] == pytest.approx(500, abs=20)


def shifted(line: dict[str, Any], seconds: float) -> dict[str, Any]:
    """A line of the timeline, so much later."""
    for lane in (*line["parties"].values(), line["label_holder"]):
        for state, spans in lane.items():
            lane[state] = [[span[0] + seconds, span[1] + seconds, *span[2:]] for span in spans]
    return line


def test_several_steps_share_what_their_answer_took(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", local_steps={"shop": 5 * EXCHANGES})
    values = measured_profile(run)["party"]["shop"]["step"]["values"]
    assert sum(values) / len(values) == pytest.approx(600, abs=1)


def test_its_file_is_settings_of_the_simulated_clock(tmp_path: Path) -> None:
    found = measured_profile(write_run(tmp_path / "run"))
    settings = tomllib.loads(profile_toml(found))
    assert settings == {"fabric": found}
    fabric = parse_spec(settings).fabric
    assert isinstance(fabric, SimulatedSpec)
    assert fabric.parts_per_tick == 1000


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fabric": "in_process"}, "no measured times"),
        ({"label_holder_work": None}, "no measured times"),
        ({"times": {"outages": 3.0}}, "was resumed"),
    ],
)
def test_what_was_not_measured_is_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(StorageError, match=says):
        measured_profile(write_run(tmp_path / "run", **changes))
