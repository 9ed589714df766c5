"""The report in a browser: accessible, light and dark, wide and narrow, without any request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colonnade.quality.result_card import CardRow, ResultCard
from colonnade.report import compare_runs, write_report
from colonnade.report.curves import smoothed
from colonnade.run.blueprint_files import write_card
from live_runs import lines_of, trained_run

from .conftest import Browse, no_sideways


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = trained_run(tmp_path_factory.mktemp("reported"))
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    value = summary["quality"]["test"]["accuracy"]
    rows = [("the commonest class", 0.6), ("bank alone", 0.65), ("together (splitnn)", value)]
    write_card(
        run,
        ResultCard(
            metric="accuracy",
            part="test",
            num_samples=90,
            rows=tuple(
                CardRow(who=who, value=value, low=value - 0.05, high=value + 0.05)
                for who, value in rows
            ),
        ),
    )
    return run


def middle_of(box: dict[str, float]) -> tuple[float, float]:
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def ring_x(place: Any) -> float:
    return middle_of(place.locator(".reading-marks circle >> nth=0").bounding_box())[0]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_report_is_accessible(
    browse: Browse,
    accessible: Callable[[Any], None],
    picture: Callable[..., None],
    credit: Path,
    width: int,
    dark: bool,
) -> None:
    tab = browse(width, dark=dark)
    tab.goto(write_report(credit).as_uri())
    assert tab.locator("h1").count() == 1
    assert "more than bank alone" in tab.text_content(".verdict")
    accessible(tab)
    no_sideways(tab)
    picture(tab, f"report-{width}-{'dark' if dark else 'light'}", tall=1000)


def test_values_are_read_and_lines_switched_off_by_pointer_and_by_keyboard(
    browse: Browse, credit: Path
) -> None:
    tab = browse()
    tab.goto(write_report(credit).as_uri())
    loss = tab.locator(".curves").first
    reader, reading = loss.get_by_role("slider"), loss.locator(".reading")
    lines = lines_of(credit, "exchange")
    means = smoothed([line["loss"] for line in lines])

    def said(place: int) -> str:
        exchange, value = lines[place]["exchange"], lines[place]["loss"]
        values = f"as recorded {value:.4g}, mean around {means[place]:.4g}"
        return f"exchange {exchange}: {values}"

    assert reading.text_content() == said(-1)
    reader.focus()
    tab.keyboard.press("Home")
    assert reading.text_content() == said(0)
    tab.keyboard.press("ArrowRight")
    assert reader.get_attribute("aria-valuetext") == said(1)
    # The ring around the value is on the line that was drawn.
    ring, line = (
        loss.locator(place).bounding_box()
        for place in (".reading-marks circle >> nth=0", "[data-curve='0']")
    )
    tab.keyboard.press("End")
    assert abs((line["x"] + line["width"]) - ring_x(loss)) < 2
    tab.mouse.move(*middle_of(ring))
    assert reading.text_content() == said(1)

    recorded = loss.get_by_role("button", name="as recorded")
    recorded.focus()
    tab.keyboard.press("Enter")
    assert recorded.get_attribute("aria-pressed") == "false"
    assert not loss.locator("[data-curve='0']").is_visible()
    assert "as recorded" not in reading.text_content()
    tab.keyboard.press("Enter")
    assert loss.locator("[data-curve='0']").is_visible()


@pytest.fixture(scope="module")
def compared(
    credit: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Path]]:
    place = tmp_path_factory.mktemp("compared")
    other = trained_run(place, method={"name": "vafl"}, stop={"epochs": 5}).rename(place / "vafl")
    runs = {credit.name: credit, "vafl": other}
    return compare_runs(list(runs.values()), place / "x.html"), runs


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_comparison_is_accessible(
    browse: Browse,
    accessible: Callable[[Any], None],
    picture: Callable[..., None],
    compared: tuple[Path, dict[str, Path]],
    width: int,
    dark: bool,
) -> None:
    tab = browse(width, dark=dark)
    tab.goto(compared[0].as_uri())
    assert tab.locator("section.run").count() == 2
    accessible(tab)
    no_sideways(tab)
    picture(tab, f"comparison-{width}-{'dark' if dark else 'light'}", tall=980)


def test_runs_are_compared_line_by_line_by_pointer_and_by_keyboard(
    browse: Browse, compared: tuple[Path, dict[str, Path]]
) -> None:
    tab = browse()
    tab.goto(compared[0].as_uri())
    values = {
        name: [
            (line["exchange"], line["metrics"]["accuracy"])
            for line in lines_of(run, "evaluation")
            if line["part"] == "validation"
        ]
        for name, run in compared[1].items()
    }
    places = sorted({place for line in values.values() for place, _ in line})

    def said(place: int) -> str:
        read = []
        for name, line in values.items():
            known = [value for at, value in line if at <= place]
            over = " (its last)" if place > line[-1][0] else ""
            read += [f"{name} {known[-1]:.4g}{over}"] if known else []
        return f"exchange {place}: {', '.join(read)}"

    charts = tab.locator("h2:has-text('along the way') + figure .curves")
    assert charts.count() == 2  # over exchanges, over time
    chart = charts.first
    reader, reading = chart.get_by_role("slider"), chart.locator(".reading")
    assert reading.text_content() == said(places[-1])
    reader.focus()
    tab.keyboard.press("Home")
    assert reading.text_content() == said(places[0])
    tab.keyboard.press("ArrowRight")
    assert reader.get_attribute("aria-valuetext") == said(places[1])
    ring = chart.locator(".reading-marks line").bounding_box()
    tab.keyboard.press("End")
    tab.mouse.move(*middle_of(ring))
    assert reading.text_content() == said(places[1])
    # A button shows its line's own colour and dash, and switches that line off.
    key = chart.get_by_role("button", name="vafl")
    styles = [
        tab.evaluate("part => [part.style.stroke, part.style.strokeDasharray]", part)
        for part in (
            key.locator("path").element_handle(),
            chart.locator("[data-curve='1'] path").first.element_handle(),
        )
    ]
    assert styles[0] == styles[1] != ["", ""]
    key.click()
    assert not chart.locator("[data-curve='1']").is_visible()
    assert "vafl" not in reading.text_content()
