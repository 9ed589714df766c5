"""Real processes over mutual TLS: the same bits as in one process, whatever dies."""

from __future__ import annotations

import json
import re
import signal
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from colonnade.run.measured_profile import measured_profile
from colonnade.run.spec import parse_spec
from colonnade.run.storage import read_json
from e2e.organisations import Organisations, Process
from federations import assert_bitwise_equal
from live_runs import lines_of

SECONDS = 120
KILLED = -signal.SIGKILL


def finish(organisations: Organisations, hub: Process) -> None:
    assert hub.wait(SECONDS) == 0, organisations.logs()


def test_separate_processes_give_the_bits_of_one(make: Any) -> None:
    organisations = make()
    for name in ("shop", "telco"):
        organisations.start_party(name)
    finish(organisations, organisations.start_hub())

    local, summary = organisations.in_process()
    # What it cost is known well enough to simulate it.
    profile = measured_profile(organisations.run)
    assert set(profile["party"]) == {"bank", "shop", "telco"}
    assert parse_spec({"fabric": profile}).fabric
    assert_bitwise_equal(organisations.weights(), local)
    remote = read_json(organisations.run / "summary.json")
    for key in ("quality", "exchanges", "local_steps", "bytes_up", "bytes_down", "num_samples"):
        assert remote[key] == summary[key], key
    assert remote["fabric"] == "grpc"


def test_the_hub_s_page_is_fed_with_what_the_run_writes(make: Any) -> None:
    organisations = make(exchanges=4)
    hub = organisations.start_training("--live")
    organisations.wait_for_log("hub", "live page: ", 60)
    said = re.search(r"live page: (\S+)", organisations.log_of("hub").read_text())
    assert said is not None
    place = urlsplit(said.group(1))
    connection = HTTPConnection(str(place.hostname), place.port, timeout=60)
    connection.request("GET", f"{place.path}events")
    answer = connection.getresponse()  # before there is anything to tell
    for name in ("shop", "telco"):
        organisations.start_party(name)
    content = answer.read().decode()  # until the hub ends
    connection.close()
    assert hub.wait(60) == 0, organisations.logs()

    found: dict[str, list[Any]] = {}
    for name, data in re.findall(r"^event: (.*)\ndata: (.*)$", content, re.M):
        found.setdefault(name, []).append(json.loads(data))
    assert found["run"][0]["parties"] == ["bank", "shop", "telco"]
    assert found["run"][0]["fabric"] == "grpc"
    told = [line for news in found["metrics"] for line in news["lines"]]
    for kind in ("exchange", "evaluation"):
        assert [line for line in told if line["kind"] == kind] == lines_of(organisations.run, kind)
    lanes = [line for news in found["timeline"] for line in news["lines"]]
    kept = lines_of(organisations.run, "intervals", "timeline.jsonl")
    assert [line for line in lanes if line["kind"] == "intervals"] == kept
    assert {name for line in kept for name in line["parties"]} >= {"shop", "telco"}
    assert found["end"][-1]["exchanges"] == 4
    assert list(found)[-1] == "closed"
    # Paths and settings of the label holder stay where they are.
    assert str(organisations.root) not in content


@pytest.mark.parametrize("method", ["fedbcd", "flex"])
def test_methods_with_local_steps_do_too(make: Any, method: str) -> None:
    organisations = make(method=method, exchanges=4)
    for name in ("shop", "telco"):
        organisations.start_party(name)
    finish(organisations, organisations.start_hub())
    local, _ = organisations.in_process()
    # Flex-VFL's number of local steps follows the machine's clock; its weights differ by nature.
    assert organisations.weights().keys() == local.keys()
    if method == "fedbcd":
        assert_bitwise_equal(organisations.weights(), local)


def test_whoever_is_killed_the_bits_stay_the_same(make: Any) -> None:
    """A party dies in an exchange, then the hub, then the other party; each comes back."""
    organisations = make()
    telco = organisations.start_party("telco", die=40)
    shop = organisations.start_party("shop", die=75)
    hub = organisations.start_hub(die=160)
    assert telco.wait(SECONDS) == KILLED, organisations.logs()
    organisations.start_party("telco")
    assert hub.wait(SECONDS) == KILLED, organisations.logs()
    hub = organisations.start_hub()
    assert shop.wait(SECONDS) == KILLED, organisations.logs()
    organisations.start_party("shop")
    finish(organisations, hub)

    local, summary = organisations.in_process()
    assert_bitwise_equal(organisations.weights(), local)
    assert read_json(organisations.run / "summary.json")["quality"] == summary["quality"]
    assert organisations.exchanges() == list(range(1, 13))


def test_one_batch_ahead_too_whoever_is_killed(make: Any) -> None:
    """What was on its way when the telco died is asked for again, and nothing is used twice.

    First weights are the parties' secrets here: they are the same ones after a kill.
    """
    organisations = make(method='{ name = "splitnn", pipelined = true }', common_seed=False)
    telco = organisations.start_party("telco", die=45)
    organisations.start_party("shop")
    hub = organisations.start_hub()
    assert telco.wait(SECONDS) == KILLED, organisations.logs()
    organisations.start_party("telco")
    finish(organisations, hub)
    local, summary = organisations.in_process()
    assert_bitwise_equal(organisations.weights(), local)
    assert read_json(organisations.run / "summary.json")["quality"] == summary["quality"]
    assert organisations.exchanges() == list(range(1, 13))


def test_a_link_that_is_cut_again_and_again_changes_nothing(make: Any) -> None:
    organisations = make(proxied=True)
    for name, proxy in organisations.proxies.items():
        proxy.cut_after(9_000, refusals=2)
        organisations.start_party(name)
    hub = organisations.start_hub()
    for proxy in organisations.proxies.values():
        assert proxy.was_cut.wait(SECONDS), organisations.logs()
        proxy.cut_after(5_000, refusals=1)
    finish(organisations, hub)
    assert all(proxy.num_cuts >= 2 for proxy in organisations.proxies.values())
    local, _ = organisations.in_process()
    assert_bitwise_equal(organisations.weights(), local)


class TestPartyThatHangs:
    def hung(self, organisations: Organisations) -> tuple[Process, Process]:
        """Both parties and the hub under way, and then the telco stands still."""
        telco = organisations.start_party("telco", hang=60)
        organisations.start_party("shop")
        hub = organisations.start_hub()
        telco.wait_until_stopped(SECONDS)
        return hub, telco

    def test_stop_ends_the_run_and_names_it(self, make: Any) -> None:
        organisations = make(patience="timeout = 2000")
        hub, telco = self.hung(organisations)
        assert hub.wait(SECONDS) == 1, organisations.logs()
        telco.signal(signal.SIGCONT)
        log = (organisations.run / "run.log").read_text()
        assert "NoAnswer: no answer from 'telco'" in log

    def test_wait_goes_on_when_it_does(self, make: Any) -> None:
        organisations = make()
        hub, telco = self.hung(organisations)
        assert hub.wait(1.0) is None
        telco.signal(signal.SIGCONT)
        finish(organisations, hub)
        assert organisations.exchanges() == list(range(1, 13))
        local, _ = organisations.in_process()
        assert_bitwise_equal(organisations.weights(), local)

    def test_continue_goes_on_without_it(self, make: Any) -> None:
        organisations = make(combine="mean", patience='timeout = 1000\nthen = "continue"')
        hub, telco = self.hung(organisations)
        finish(organisations, hub)
        telco.signal(signal.SIGCONT)
        summary = read_json(organisations.run / "summary.json")
        assert summary["exchanges"] == 12
        assert set(summary["local_steps"]) == {"bank", "shop"}
        assert (
            "no checkpoint: no answer from 'telco'" in (organisations.run / "run.log").read_text()
        )
