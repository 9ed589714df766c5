"""A run that is killed at any moment and resumed ends with the same bits as one that was not."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from colonnade.core.errors import ColonnadeError, ConfigError
from colonnade.methods import METHODS
from colonnade.run.result import Result
from colonnade.run.storage import read_json, read_state
from e2e.resume_driver import SETTINGS, SIMULATED, Driver, make_sources, run
from federations import assert_bitwise_equal, weights
from messages import says

FABRICS: Mapping[str, Mapping[str, Any]] = {
    "in_process": SETTINGS,
    "simulated": {**SETTINGS, "fabric": SIMULATED},
}
PATIENT = {**SETTINGS, "stop": {"exchanges": 40, "evaluate_every": 2, "patience": 2}, "seed": 3}
# Fields that tell real time, which no two runs share.
TIMING = {"elapsed", "computing", "seconds", "elapsed_seconds", "seconds_computing"} | {
    "seconds_waiting",
    "times",
    "evaluating",
    "keeping",
    "outages",
    "kept_at",
}


def with_stop(base: Mapping[str, Any], **stop: Any) -> dict[str, Any]:
    return {**base, "stop": {**base["stop"], **stop}}


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


class Reference:
    """An uninterrupted run, and the comparison of others with it."""

    def __init__(self, driver: Driver, directory: Path, plan: Mapping[str, Any]) -> None:
        self.driver, self.plan = driver, plan
        self.moments = driver.train(directory, plan)["moments"]
        self.is_real_time = "fabric" not in plan
        self.seen = self._look(directory)

    def survives(self, directory: Path, *kills: int) -> None:
        """Kill at these moments, one after the other, then let the run end."""
        for kill in kills:
            outcome = self.driver.train(directory, self.plan, kill_at=kill)
            assert outcome == {"signal": signal.SIGKILL} or "moments" in outcome, outcome
        outcome = self.driver.train(directory, self.plan)
        assert "moments" in outcome, outcome
        self.agrees_with(directory)

    def agrees_with(self, directory: Path) -> None:
        seen = self._look(directory)
        assert seen["metrics"] == self.seen["metrics"]
        assert seen["summary"] == self.seen["summary"]
        assert seen["model"] == self.seen["model"]
        assert_bitwise_equal(seen["weights"], self.seen["weights"])
        assert_bitwise_equal(*map(flat, (seen["state"], self.seen["state"])))

    def _look(self, directory: Path) -> dict[str, Any]:
        lines = (directory / "metrics.jsonl").read_text().splitlines()
        named = read_json(directory / "checkpoint.json")
        files = sorted(directory.glob(f"*/**/{named['tag']}.safetensors"))
        assert len(files) == 1 + len(read_json(directory / "summary.json")["parties"])
        state = {str(file.parent.relative_to(directory)): read_state(file) for file in files}
        seen = {
            "weights": weights(Result.load(directory)._federation),
            "model": named["model"],
            "metrics": [json.loads(line) for line in lines],
            "summary": read_json(directory / "summary.json"),
            "state": state,
        }
        seen["summary"].pop("seconds")
        return without(seen, TIMING | {"seconds_computing"}) if self.is_real_time else seen


def without(value: Any, keys: set[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: without(item, keys) for key, item in value.items() if key not in keys}
    return [without(item, keys) for item in value] if isinstance(value, list) else value


def flat(value: Any, path: str = "") -> dict[str, Tensor]:
    """A nested state as tensors by path; what is none becomes one of its bytes."""
    if isinstance(value, Mapping):
        return {k: v for key in value for k, v in flat(value[key], f"{path}/{key}").items()}
    if isinstance(value, list):
        return flat(dict(enumerate(value)), path)
    return {path: value if isinstance(value, Tensor) else torch.tensor([*repr(value).encode()])}


@pytest.fixture(scope="module", params=FABRICS)
def reference(
    request: pytest.FixtureRequest, driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> Reference:
    return Reference(driver, tmp_path_factory.mktemp("whole") / "run", FABRICS[request.param])


def test_the_moments_are_those_that_matter(reference: Reference) -> None:
    text = "\n".join(reference.moments)
    for telling in (
        "config.json is in place",
        "before exchange-000000003.safetensors is written out",
        "after bank/exchange-000000003.safetensors is in place",
        "after telco/exchange-000000003.safetensors is in place",
        "after label_holder/exchange-000000003.safetensors is in place",
        "before checkpoint.json is written out",
        "checkpoint.json is in place",
        "before bank/exchange-000000003.safetensors is dropped",
        "within a line of metrics.jsonl",
        "before summary.json is written out",
    ):
        assert telling in text
    assert [f"after exchange {number}" in text for number in range(1, 9)] == [True] * 8


def test_killed_once_at_any_moment(reference: Reference, tmp_path: Path) -> None:
    """Every fourth moment, others on the one fabric than on the other; a run has about 140."""
    failed = {}
    for moment in range(2 * reference.is_real_time, len(reference.moments), 4):
        try:
            reference.survives(tmp_path / f"{moment}", moment)
        except AssertionError as error:
            failed[f"{moment}: {reference.moments[moment]}"] = str(error)[:300]
    assert not failed


# Moments as shares of all: the second is counted from where the resumed process starts.
@pytest.mark.parametrize("reference", ["simulated"], indirect=True)
@pytest.mark.parametrize(
    "shares",
    [(0.2, 0.3), (0.35, 0.9), (0.6, 0.6), (0.85, 0.42), (0.99, 0.4), (0.98, 0.5, 0.3)],
    ids=str,
)
def test_killed_again_after_resuming(
    reference: Reference, tmp_path: Path, shares: tuple[float, ...]
) -> None:
    kills = [int(share * len(reference.moments)) for share in shares]
    reference.survives(tmp_path / "run", *kills)


def test_killed_with_patience_ends_with_the_best(driver: Driver, tmp_path: Path) -> None:
    reference = Reference(driver, tmp_path / "whole", PATIENT)
    summary = reference.seen["summary"]
    assert summary["stopped_by"] == "patience"
    assert summary["best_exchange"] == summary["exchanges"] - 4
    assert reference.seen["model"] == f"exchange-{summary['best_exchange']:09d}"
    evaluations = [line for line in reference.seen["metrics"] if line["kind"] == "evaluation"]
    best = max(evaluations, key=lambda line: line["metrics"]["r2"])
    assert best["exchange"] == summary["best_exchange"]
    assert best["metrics"] == summary["quality"]["validation"]
    for moment in [*range(12, len(reference.moments) - 12, 16), *range(-11, 0, 3)]:
        moment %= len(reference.moments)
        reference.survives(tmp_path / f"{moment}", moment)


# In real time the machine's load decides how many steps fit before a timeout: no two runs agree.
REAL_TIME_DECIDES = {("flex", "in_process"), ("adaptive_flex", "in_process")}


@pytest.mark.parametrize(
    ("method", "fabric"), sorted({*itertools.product(METHODS, FABRICS)} - REAL_TIME_DECIDES)
)
def test_every_method_survives(driver: Driver, tmp_path: Path, method: str, fabric: str) -> None:
    reference = Reference(driver, tmp_path / "whole", {**FABRICS[fabric], "method": method})
    moment = int({"in_process": 0.45, "simulated": 0.8}[fabric] * len(reference.moments))
    reference.survives(tmp_path / "killed", moment)


@pytest.mark.parametrize("fabric", FABRICS)
@given(first=st.integers(1, 7))
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_run_in_two_halves_is_the_run_in_one(tmp_path: Path, fabric: str, first: int) -> None:
    base = FABRICS[fabric]
    for old in ("whole", "halves"):
        shutil.rmtree(tmp_path / old, ignore_errors=True)
    whole = run(tmp_path / "whole", base)
    half = run(tmp_path / "halves", with_stop(base, exchanges=first))
    assert half.summary["stopped_by"] == "length"
    both = run(tmp_path / "halves", base, resume=True)
    assert both.summary["exchanges"] == 8
    assert both.summary["bytes_up"] == whole.summary["bytes_up"]
    assert both.summary["local_steps"] == whole.summary["local_steps"]
    assert_bitwise_equal(weights(both._federation), weights(whole._federation))
    if fabric == "simulated":
        assert both.summary["elapsed_seconds"] == whole.summary["elapsed_seconds"]


class StopAfter:
    """A watcher that has seen enough."""

    def __init__(self, exchange: int) -> None:
        self.exchange, self.seen = exchange, 0

    def began(self, federation: Any, done: int, total: int) -> None:
        """Nothing to do."""

    def exchanged(self, event: Any) -> None:
        self.seen = event.exchange

    def wants_to_stop(self) -> bool:
        return self.seen >= self.exchange


def test_interrupted_at_the_end_of_patience_ends_there_too(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", PATIENT)
    stopper = StopAfter(whole.summary["exchanges"])
    run(tmp_path / "cut", PATIENT, watcher=stopper)
    resumed = run(tmp_path / "cut", PATIENT, resume=True)
    assert resumed.summary["stopped_by"] == "patience"
    assert resumed.summary["exchanges"] == whole.summary["exchanges"]
    assert_bitwise_equal(weights(resumed._federation), weights(whole._federation))


def test_interrupted_and_resumed(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", SETTINGS)
    cut = run(tmp_path / "cut", SETTINGS, watcher=StopAfter(5))
    assert (cut.summary["stopped_by"], cut.summary["exchanges"]) == ("interrupted", 5)
    resumed = run(tmp_path / "cut", SETTINGS, resume=True)
    assert resumed.summary["stopped_by"] == "length"
    assert_bitwise_equal(weights(resumed._federation), weights(whole._federation))
    assert len(exchange_lines(tmp_path / "cut")) == 8


def exchange_lines(directory: Path) -> list[int]:
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [line["exchange"] for line in lines if line["kind"] == "exchange"]


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    first = run(tmp_path / "run", SETTINGS)
    metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    for _ in range(2):
        again = run(tmp_path / "run", SETTINGS, resume=True)
        assert_bitwise_equal(weights(again._federation), weights(first._federation))
        assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics
    run(tmp_path / "run", with_stop(SETTINGS, exchanges=10), resume=True)
    assert exchange_lines(tmp_path / "run") == list(range(1, 11))


def test_metrics_survive_a_resume_that_has_nothing_to_record_yet(tmp_path: Path) -> None:
    """A checkpoint before the first line of a resumed run must still count the lines before."""
    sparse = {**SETTINGS, "record": {"log_every": 4, "checkpoint_every": 1}}
    sparse["stop"] = {"exchanges": 12, "evaluate_every": 4}
    run(tmp_path / "run", sparse, watcher=StopAfter(4))
    run(tmp_path / "run", sparse, resume=True, watcher=StopAfter(5))
    run(tmp_path / "run", sparse, resume=True)
    assert exchange_lines(tmp_path / "run") == [4, 8, 12]


def test_a_half_written_later_checkpoint_does_not_push_out_the_one_that_counts(
    driver: Driver, tmp_path: Path
) -> None:
    """Killed within the last checkpoint, given more time, killed within the next one."""
    plan = with_stop(SETTINGS, exchanges=5)
    moments = driver.train(tmp_path / "look", plan)["moments"]
    kill = moments.index("after bank/exchange-000000005.safetensors is in place")
    assert driver.train(tmp_path / "run", plan, kill_at=kill) == {"signal": signal.SIGKILL}
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    moments = driver.train(tmp_path / "copy", SETTINGS)["moments"]
    kill = moments.index("after telco/exchange-000000006.safetensors is in place")
    assert driver.train(tmp_path / "run", SETTINGS, kill_at=kill) == {"signal": signal.SIGKILL}
    outcome = driver.train(tmp_path / "run", SETTINGS)
    assert "moments" in outcome, outcome
    whole = run(tmp_path / "whole", SETTINGS)
    resumed = Result.load(tmp_path / "run")
    assert_bitwise_equal(weights(resumed._federation), weights(whole._federation))


def test_patience_given_only_at_the_resume(tmp_path: Path) -> None:
    """The best so far was not kept then; the run must still come to an end."""
    plan = {**PATIENT, "record": {"checkpoint_every": 100}}
    whole = run(tmp_path / "whole", plan)
    best = whole.summary["best_exchange"]
    plain = {**plan, "stop": {"exchanges": best + 1, "evaluate_every": 2}}
    run(tmp_path / "run", plain)
    resumed = run(tmp_path / "run", plan, resume=True)
    assert resumed.summary["stopped_by"] == "patience"
    assert Result.load(tmp_path / "run").summary == resumed.summary


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"seed": 1}, "seed"),
        ({"method": "alone"}, "method.name"),
        ({"data": {"batch_size": 9}}, "data.batch_size"),
        ({"fabric": "simulated"}, "fabric"),
        ({"party": {"telco": {"optimizer": {"name": "sgd", "lr": 0.2}}}}, "party.telco.optimizer"),
    ],
)
def test_resume_with_other_settings(tmp_path: Path, change: dict[str, Any], path: str) -> None:
    run(tmp_path / "run", with_stop(SETTINGS, exchanges=1))
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*.json")}
    with pytest.raises(ConfigError, match=says(path, tmp_path / "run", "stop", "record")) as caught:
        run(tmp_path / "run", {**SETTINGS, **change}, resume=True)
    assert str(caught.value).startswith(path)
    assert before == {file: file.read_bytes() for file in (tmp_path / "run").rglob("*.json")}


@pytest.mark.parametrize("change", [{"without": "plan"}, {"num_samples": 30}], ids=str)
def test_resume_on_other_data(tmp_path: Path, change: dict[str, Any]) -> None:
    run(tmp_path / "run", with_stop(SETTINGS, exchanges=1))
    with pytest.raises(ColonnadeError, match=r"data|column|sample|block"):
        run(tmp_path / "run", SETTINGS, resume=True, sources=make_sources(**change))
