"""The report in a browser: accessible, light and dark, wide and narrow, without any request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colonnade.quality.result_card import CardRow, ResultCard
from colonnade.report import compare_runs, write_report
from colonnade.run.blueprint_files import write_card
from live_runs import trained_run

from .conftest import Browse, no_sideways


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = trained_run(tmp_path_factory.mktemp("reported"))
    rows = [("the commonest class", 0.6), ("bank alone", 0.7), ("together (splitnn)", 0.8)]
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


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_report_is_accessible(
    browse: Browse,
    accessible: Callable[[Any], None],
    picture: Callable[[Any, str], None],
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
    picture(tab, f"report-{width}-{'dark' if dark else 'light'}")


def test_the_comparison_is_accessible(
    browse: Browse, accessible: Callable[[Any], None], credit: Path, tmp_path: Path
) -> None:
    other = trained_run(tmp_path, method={"name": "vafl"}, stop={"epochs": 1})
    tab = browse()
    tab.goto(compare_runs([credit, other.rename(tmp_path / "vafl")], tmp_path / "x.html").as_uri())
    assert tab.locator("section.run").count() == 2
    accessible(tab)
