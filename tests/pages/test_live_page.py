"""The live page in a browser: equal to the files, live, accessible, and deaf to markup."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from colonnade.report.live_service import LiveService
from live_runs import PARTIES, append, lines_of, trained_run

from .conftest import Browse, no_sideways


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory.mktemp("live"))


@pytest.fixture
def run(credit: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(credit, tmp_path / "credit"))


@pytest.fixture
def serve() -> Iterator[Callable[[Path], LiveService]]:
    services = []

    def start(run: Path) -> LiveService:
        services.append(LiveService(run))
        return services[-1]

    yield start
    for service in services:
        service.close()


def opened(tab: Any, service: LiveService, state: str = "ended") -> Any:
    tab.goto(service.url)
    tab.wait_for_selector(f"#status[data-state={state}]")
    return tab


def value(tab: Any, name: str) -> str:
    return str(tab.get_attribute(f"#tile-{name}", "data-value"))


def rows(tab: Any, place: str) -> list[list[str]]:
    tab.click(f"{place} summary")
    tab.wait_for_selector(f"{place} tbody tr")
    read = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    found: list[list[str]] = tab.eval_on_selector_all(f"{place} tbody tr", read)
    return found


def test_what_is_shown_equals_the_files(
    browse: Browse, serve: Callable[[Path], LiveService], run: Path
) -> None:
    tab = opened(browse(), serve(run))
    exchanges, evaluations = lines_of(run, "exchange"), lines_of(run, "evaluation")
    last = exchanges[-1]
    assert tab.text_content("h1") == "credit"
    assert value(tab, "exchange") == str(last["exchange"])
    assert float(value(tab, "loss")) == last["loss"]
    assert float(value(tab, "quality")) == evaluations[-1]["metrics"]["accuracy"]
    moved = sum(last["bytes_up"].values()) + sum(last["bytes_down"].values())
    assert value(tab, "bytes") == str(moved)
    assert value(tab, "held") == "telco"

    shown = {int(row[0]): float(row[1]) for row in rows(tab, "#quality")}
    assert shown == {line["exchange"]: line["metrics"]["accuracy"] for line in evaluations}
    found = [row for row in rows(tab, "#loss") if row[1]]
    assert {int(row[0]): float(row[1]) for row in found} == {
        line["exchange"]: line["loss"] for line in exchanges
    }
    assert {int(row[0]): float(row[2]) for row in rows(tab, "#bytes")} == {
        line["exchange"]: line["bytes_up"]["shop"] + line["bytes_down"]["shop"]
        for line in exchanges
    }
    guess = lines_of(run, "start", "timeline.jsonl")[0]["guess"]["metrics"]["accuracy"]
    assert f"{guess:.4g}" in tab.text_content("#quality svg")
    table = {row[0]: row[1:] for row in rows(tab, "#lane-table")}
    assert set(table) == {"label holder", *PARTIES}
    computed = last["computing"]["telco"]
    assert table["telco"][-1] == f"{computed:.2f} s"


def seconds_of(spans: list[list[Any]]) -> float:
    return sum(float(end) - float(begin) for begin, end, *_ in spans)


def shown_seconds(text: str) -> float:
    amount, unit = text.split()
    return float(amount) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def test_lanes_privacy_and_delays_equal_the_files(
    browse: Browse, serve: Callable[[Path], LiveService], tmp_path: Path
) -> None:
    (tmp_path / "telco.policy.toml").write_text("[budget]\nepsilon = 9000.0\ndelta = 1e-5\n")
    noisy = {"protect": [{"kind": "perturb", "noise": 4.0}]}
    tables = {name: {"file": str(tmp_path / f"{name}.csv"), "id": "id"} for name in PARTIES}
    tables["telco"] |= {"policy": str(tmp_path / "telco.policy.toml"), **noisy}
    run = trained_run(tmp_path, method={"name": "vafl"}, stop={"epochs": 2}, party=tables)
    exchanges = lines_of(run, "exchange")
    tab = opened(browse(), serve(run))

    shown = {int(row[0]): float(row[1]) for row in rows(tab, "#privacy")}
    spent = [line for line in exchanges if line.get("privacy", {}).get("telco")]
    assert shown == {line["exchange"]: line["privacy"]["telco"]["epsilon"] for line in spent}
    assert "budget of telco: ε 9,000" in tab.text_content("#privacy svg")
    delays = {int(row[0]): (float(row[1]), float(row[2])) for row in rows(tab, "#delays")}
    assert delays == {
        line["exchange"]: (line["delays"]["mean"], line["delays"]["largest"]) for line in exchanges
    }
    assert max(largest for _, largest in delays.values()) > 0

    intervals = lines_of(run, "intervals", "timeline.jsonl")
    table = {row[0]: row[1:] for row in rows(tab, "#lane-table")}
    for party in PARTIES:
        for column, state in enumerate(("computing", "sending", "absent")):
            kept = [line["parties"].get(party, {}).get(state, []) for line in intervals]
            amount = sum(map(seconds_of, kept))
            assert shown_seconds(table[party][column]) == pytest.approx(amount, rel=0.01), state
    assert shown_seconds(table["telco"][0]) > 0


def test_it_is_light_and_dark_wide_and_narrow_and_passes_axe(
    browse: Browse,
    serve: Callable[[Path], LiveService],
    run: Path,
    picture: Any,
    accessible: Callable[[Any], None],
) -> None:
    append(
        run,
        "timeline.jsonl",
        **{"kind": "mark", "what": "absent", "exchange": 30, "elapsed": 2.0},
        party="telco",
        text="warning: 'telco' does not answer; the run goes on without it",
    )
    service = serve(run)
    for width, dark in ((1280, False), (390, True)):
        tab = opened(browse(width, dark=dark), service)
        no_sideways(tab)
        accessible(tab)
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(18, 22, 28)" if dark else "rgb(255, 255, 255)")
        picture(tab, f"live-{width}-{'dark' if dark else 'light'}")


def test_it_follows_a_run_that_goes_on(
    browse: Browse, serve: Callable[[Path], LiveService], run: Path, tmp_path: Path
) -> None:
    (run / "summary.json").unlink()
    there = tmp_path / "later" / "credit"
    service = serve(there)
    tab = opened(browse(), service, "waiting")  # the run has no directory yet
    shutil.copytree(run, there)
    tab.wait_for_selector("#status[data-state=running]")
    line = lines_of(there, "exchange")[-1]
    append(there, "metrics.jsonl", **{**line, "exchange": 99, "loss": 0.125})
    tab.wait_for_selector("body[data-exchange='99']")
    assert value(tab, "loss") == "0.125"
    # A resume cuts lines off: what was after the checkpoint is no longer shown.
    content = (there / "metrics.jsonl").read_text().splitlines(keepends=True)
    (there / "metrics.jsonl").write_text("".join(content[:-1]))
    tab.wait_for_selector(f"body[data-exchange='{line['exchange']}']")
    service.close()
    tab.wait_for_function(
        "document.getElementById('status-text').textContent === 'the service has ended'"
    )


def test_it_shows_who_is_left_out_and_who_always_comes_too_late(
    browse: Browse, serve: Callable[[Path], LiveService], run: Path
) -> None:
    line = lines_of(run, "exchange")[-1]
    missed = {"late": {"telco": 400}, "left_out": {"telco": 1200, "shop": 3}, "starving": ["telco"]}
    append(run, "metrics.jsonl", **line, **missed)
    summary = json.loads((run / "summary.json").read_text())
    summary["warnings"] = ["'telco' answers, but always too late to take part"]
    (run / "summary.json").write_text(json.dumps(summary))
    tab = opened(browse(), serve(run))
    shown = tab.text_content("#tile-held-sub") or ""
    assert "telco left out 1,200 times, always late" in shown
    assert "shop left out 3 times" in shown
    assert summary["warnings"][0] in tab.text_content("#marks")


def test_it_works_by_keyboard(
    browse: Browse, serve: Callable[[Path], LiveService], run: Path
) -> None:
    tab = opened(browse(), serve(run))
    tab.focus("#lane-axis")
    tab.keyboard.press("Home")
    said = tab.get_attribute("#lane-axis", "aria-valuetext")
    assert "label holder waits for" in said
    assert said == tab.text_content("#lane-reading")
    tab.keyboard.press("PageUp")
    assert tab.get_attribute("#lane-axis", "aria-valuetext") != said
    tab.focus("#quality .plot")
    tab.keyboard.press("Home")
    first = lines_of(run, "evaluation")[0]
    assert f"exchange {first['exchange']}:" in tab.text_content("#quality .reading")
    tab.focus("#bytes .keys button")
    num_lines = tab.locator("#bytes path").count()
    tab.keyboard.press("Enter")
    assert tab.locator("#bytes path").count() == num_lines - 1
    tab.focus("#zoom button[data-last='0']")
    tab.keyboard.press("Enter")
    assert tab.get_attribute("#zoom button[data-last='0']", "aria-pressed") == "true"


@pytest.mark.attack(
    what="Markup in texts that a party chooses, shown on the live page",
    has="the text of a refusal, a fault, and the names in a run directory",
    before="not tried: the page is new",
    now="shown as text; no script runs, nothing is loaded",
)
def test_texts_of_parties_are_never_markup(
    browse: Browse, serve: Callable[[Path], LiveService], run: Path
) -> None:
    bad = '<img src=x onerror="window.hit=1"></script><script>window.hit=1</script>\n\ndata: {}'
    mark = {"kind": "mark", "exchange": 30, "elapsed": 2.0, "party": bad, "text": bad}
    for what in ("refused", "fault", bad):
        append(run, "timeline.jsonl", **mark, what=what)
    spans = {bad: {"computing": [[1.0, 2.0]]}, "__proto__": {"computing": [[1.0, 2.0]]}}
    waits = {"waiting": [[1.0, 9000.0, bad]]}
    append(
        run,
        "timeline.jsonl",
        **{"kind": "intervals", "exchange": 31, "parties": spans, "label_holder": waits},
    )
    line = lines_of(run, "exchange")[-1]
    append(run, "metrics.jsonl", **{**line, "bytes_up": {bad: 1}, "exchange": 77})
    (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes() + b"\xff{]\n[1]\n")
    tab = opened(browse(), serve(run))
    tab.wait_for_selector("body[data-exchange='77']")
    assert value(tab, "held") == bad
    assert bad in tab.text_content("#marks").replace("\r", "")
    assert tab.locator("main img, main script").count() == 0
    assert tab.evaluate("window.hit") is None
