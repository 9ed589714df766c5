"""Real processes when the network goes, the disk is full, the clock jumps or the link is slow."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from typing import Any

from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.run.storage import read_json, read_state
from e2e.organisations import PARTIES, Organisations, Process
from fault.disks import make_room
from fault.proxy import Fault
from federations import assert_bitwise_equal

SECONDS = 90
# A peer that is silent for a second or two counts as gone, instead of for forty.
ALERT = LinkSpec(
    keepalive=0.5,
    keepalive_timeout=0.5,
    ping_timeout=1.0,
    hello_timeout=3.0,
    backoff=0.05,
    backoff_most=0.3,
)
FAULTS: tuple[Fault, ...] = ("freeze", "swallow", "cut")


def started(organisations: Organisations) -> Process:
    for name in PARTIES:
        organisations.start_party(name)
    return organisations.start_hub()


def finish(organisations: Organisations, hub: Process) -> None:
    assert hub.wait(SECONDS) == 0, organisations.logs()


def restore(organisations: Organisations) -> None:
    """The telco's link is there again; wait until the hub has it back."""
    size = organisations.log_of("hub").stat().st_size
    organisations.proxies["telco"].restore()
    organisations.wait_for_log("hub", "party 'telco' is connected", SECONDS, after=size)


def assert_undisturbed(organisations: Organisations, exchanges: int = 12) -> None:
    """Every exchange is recorded once, and the bits are those of one process."""
    assert organisations.exchanges() == list(range(1, exchanges + 1))
    local, summary = organisations.in_process()
    assert_bitwise_equal(organisations.weights(), local)
    assert read_json(organisations.run / "summary.json")["quality"] == summary["quality"]


def eventually(organisations: Organisations, condition: Any) -> None:
    pause = threading.Event()
    for _ in range(SECONDS * 50):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError(organisations.logs())


class TestCut:
    """The telco's link is gone for longer than keep-alive, and each side finds that out."""

    def gone(self, organisations: Organisations, fault: Fault, num_bytes: int) -> None:
        """Wait until the link is gone, and both processes have noticed by themselves."""
        sizes = {name: organisations.log_of(name).stat().st_size for name in ("hub", "telco")}
        proxy = organisations.proxies["telco"]
        proxy.fail_after(num_bytes, fault)
        assert proxy.was_cut.wait(SECONDS), organisations.logs()
        organisations.wait_for_log(
            "hub", "party 'telco' is disconnected", SECONDS, after=sizes["hub"]
        )
        organisations.wait_for_log("telco", "link to", SECONDS, after=sizes["telco"])

    def test_wait_goes_on_where_it_was(self, make: Any) -> None:
        organisations = make(proxied=True, link=ALERT)
        hub = started(organisations)
        proxy = organisations.proxies["telco"]
        organisations.wait_for_log("hub", "party 'telco' is connected", SECONDS)
        for number, fault in enumerate(FAULTS):
            self.gone(organisations, fault, 6_000 if number == 0 else 1_500)
            done = len(organisations.exchanges())
            assert done < 12
            assert hub.wait(1.0) is None
            assert len(organisations.exchanges()) <= done + 1
            restore(organisations)
        finish(organisations, hub)
        assert proxy.num_cuts == len(FAULTS)
        assert proxy.num_swallowed > 0
        assert proxy.num_refused > 0
        assert_undisturbed(organisations)

    def test_stop_names_the_party_and_the_run_resumes(self, make: Any) -> None:
        organisations = make(proxied=True, link=ALERT, patience="timeout = 3000")
        hub = started(organisations)
        organisations.wait_for_log("hub", "party 'telco' is connected", SECONDS)
        eventually(organisations, lambda: len(organisations.exchanges()) >= 2)
        self.gone(organisations, "swallow", 500)
        assert hub.wait(SECONDS) == 1, organisations.logs()
        log = (organisations.run / "run.log").read_text()
        assert "NoAnswer: no answer from 'telco'" in log
        organisations.proxies["telco"].restore()
        finish(organisations, organisations.start_hub())
        assert_undisturbed(organisations)

    def test_continue_goes_on_without_it_and_takes_it_back(self, make: Any) -> None:
        organisations = make(
            proxied=True,
            link=ALERT,
            combine="mean",
            exchanges=80,
            patience='timeout = 1000\nthen = "continue"',
        )
        hub = started(organisations)
        organisations.wait_for_log("hub", "party 'telco' is connected", SECONDS)
        eventually(organisations, lambda: len(organisations.exchanges()) >= 2)
        self.gone(organisations, "swallow", 500)
        done = len(organisations.exchanges())
        eventually(organisations, lambda: len(organisations.exchanges()) >= done + 3)
        organisations.proxies["telco"].restore()
        finish(organisations, hub)
        assert organisations.exchanges() == list(range(1, 81))
        log = (organisations.run / "run.log").read_text()
        assert "no checkpoint: no answer from 'telco'" in log
        # A checkpoint needs everybody: there was one after the telco came back.
        tag = read_json(organisations.run / "checkpoint.json")["tag"]
        assert int(tag.partition("-")[2]) > done + 3


class TestFullDisk:
    def test_at_a_party(self, make: Any) -> None:
        """The telco's disk is full at its third checkpoint; then there is room, and it lives."""
        organisations = make()
        organisations.start_party("shop")
        telco = organisations.start_party("telco", full=3)
        assert organisations.start_hub().wait(SECONDS) == 1, organisations.logs()
        log = (organisations.run / "run.log").read_text()
        assert re.search(r"party 'telco' failed at exchange \d+ \(keep\): StorageError", log)
        assert "exchange-000000006.safetensors: can't be written" in log
        assert "make room there, then go on" in log
        self.assert_good(organisations, "exchange-000000003")
        assert telco.wait(0) is None
        make_room(telco.pid)
        finish(organisations, organisations.start_hub())
        assert_undisturbed(organisations)

    def test_at_the_hub(self, make: Any) -> None:
        organisations = make()
        for name in PARTIES:
            organisations.start_party(name)
        assert organisations.start_hub(full=3).wait(SECONDS) == 1, organisations.logs()
        log = organisations.log_of("hub").read_text()
        assert "exchange-000000006.safetensors: can't be written" in log
        assert "make room there, then go on" in log
        self.assert_good(organisations, "exchange-000000003")
        finish(organisations, organisations.start_hub())
        assert_undisturbed(organisations)

    def assert_good(self, organisations: Organisations, tag: str) -> None:
        """The last checkpoint counts still, and everybody has it whole."""
        assert read_json(organisations.run / "checkpoint.json")["tag"] == tag
        assert organisations.weights()
        state = read_state(organisations.run / "label_holder" / f"{tag}.safetensors")
        assert state["loop"]["exchange"] == 3


class TestClock:
    def test_a_run_does_not_notice_that_clocks_jump(self, make: Any) -> None:
        """By an hour and a day, forward and back, at either end, while calls are under way.

        The link is cut each time, so that certificates are held against the wrong time too.
        """
        organisations = make(proxied=True, patience="timeout = 60000", exchanges=30)
        hub = started(organisations)
        proxy = organisations.proxies["telco"]
        organisations.wait_for_log("hub", "party 'telco' is connected", SECONDS)
        jumps: list[tuple[str, dict[str, float], Fault]] = [
            ("hub", {"hours": 1}, "cut"),
            ("telco", {"days": -1}, "cut"),
            ("hub", {"days": 1}, "cut"),
            ("telco", {"days": 1}, "cut"),
            # In the past the hub can't admit anybody, but the links that are there stay.
            ("hub", {"hours": -1}, "freeze"),
        ]
        first = (organisations.federation / "identity.pem").read_bytes()
        for number, (name, by, fault) in enumerate(jumps):
            proxy.fail_after(9_000 if number == 0 else 1_500, fault)
            assert proxy.was_cut.wait(SECONDS), organisations.logs()
            organisations.move_clock(name, **by)
            if fault == "cut":
                restore(organisations)
        # The hub looks after its own certificate twice a second; it sees the new time.
        organisations.wait_for_file(organisations.federation / "identity.pem", first, SECONDS)
        proxy.restore()
        finish(organisations, hub)
        assert proxy.num_cuts == len(jumps)
        assert_undisturbed(organisations, 30)
        times = [
            json.loads(line)["time"][:10]
            for line in organisations.log_of("hub").read_text().splitlines()
            if line.startswith("{")
        ]
        assert len(set(times)) > 1, "the hub's clock never jumped"

    def test_a_hub_in_the_past_admits_nobody_until_its_clock_is_right(self, make: Any) -> None:
        organisations = make(proxied=True)
        hub = started(organisations)
        proxy = organisations.proxies["telco"]
        organisations.wait_for_log("hub", "party 'telco' is connected", SECONDS)
        proxy.fail_after(9_000, "cut")
        assert proxy.was_cut.wait(SECONDS), organisations.logs()
        organisations.move_clock("hub", days=-1)
        proxy.restore()
        organisations.wait_for_log("telco", "not valid before", SECONDS)
        organisations.move_clock("hub")
        finish(organisations, hub)
        assert_undisturbed(organisations)

    def test_a_hub_that_renewed_in_the_future_renews_again(self, make: Any) -> None:
        """Its new certificate is not valid yet for anybody else; it makes another one in time."""
        organisations = make(proxied=True)
        hub = started(organisations)
        proxy = organisations.proxies["telco"]
        organisations.wait_for_log("hub", "party 'telco' is connected", SECONDS)
        proxy.fail_after(9_000, "freeze")
        assert proxy.was_cut.wait(SECONDS), organisations.logs()
        identity = organisations.federation / "identity.pem"
        first = identity.read_bytes()
        size = organisations.log_of("hub").stat().st_size
        organisations.move_clock("hub", days=61)
        in_the_future = organisations.wait_for_file(identity, first, SECONDS)
        organisations.wait_for_log("hub", "the hub shows a new certificate", SECONDS, after=size)
        # Nobody comes in to that.
        organisations.wait_for_log("shop", "certificate is not yet valid", SECONDS)
        organisations.move_clock("hub")
        proxy.restore()
        finish(organisations, hub)
        assert identity.read_bytes() not in (first, in_the_future)
        assert_undisturbed(organisations)


def test_a_slow_link_is_only_slow(make: Any) -> None:
    """The telco gets 20 KB a second: what is on its way is there after the next ping is due."""
    organisations = make(proxied=True, link=replace(ALERT, ping_timeout=20.0, hello_timeout=20.0))
    proxy = organisations.proxies["telco"]
    proxy.slow_down(20_000)
    hub = started(organisations)
    finish(organisations, hub)
    assert proxy.seconds_slowed > 1.0
    assert_undisturbed(organisations)
