"""The page of a service at ``/`` in a real Chromium: what it shows, and that it needs nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from colonnade.serve.predictor import ObservedRows, ServedExchange
from pages.conftest import Browse, no_sideways
from serving import Running, ScriptedPredictor, running


class Watched(ScriptedPredictor):
    """A predictor whose parties have been watched for a while; the telco is slow and has moved."""

    def observed(self) -> Mapping[str, ObservedRows]:
        return {
            "shop": ObservedRows(rows=300, input_drift=0.04, embedding_drift=0.06),
            "telco": ObservedRows(rows=1200, far=37, input_drift=1.25, embedding_drift=2.5),
        }

    def predict(self, ids: Sequence[str], **given: Any) -> ServedExchange:
        found = super().predict(ids, **given)
        seconds = {name: 0.08 if name == "telco" else 0.002 for name in found.seconds}
        return ServedExchange(outcomes=found.outcomes, seconds=seconds, silent=found.silent)


@pytest.fixture
def service() -> Iterator[Running]:
    with running(Watched()) as one:
        yield one


def cells(tab: Any, heading: str) -> list[list[str]]:
    """The table below a heading, row by row."""
    table = tab.locator(f"h2:has-text('{heading}') + div table")
    rows: list[list[str]] = table.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.innerText.trim()))"
    )
    return rows


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_the_page_shows_shares_latency_and_drift(
    service: Running,
    browse: Browse,
    accessible: Callable[[Any], None],
    picture: Callable[[Any, str], None],
    width: int,
    dark: bool,
) -> None:
    assert service.predict("1", "2", "3")[0] == 200
    tab = browse(width, dark=dark)
    tab.goto(service.address + "/")
    assert tab.get_by_role("status").inner_text() == "Ready."
    ((blocks, share, _),) = cells(tab, "Answers by the blocks used")
    assert (blocks, share) == ("bank+shop+telco", "100.0%")
    parties = {row[0]: row for row in cells(tab, "Parties")}
    assert list(parties) == ["bank", "shop", "telco"]
    assert parties["telco"][5] == "80.00 ms"
    drift = {row[0]: row[1:] for row in cells(tab, "Drift")}
    assert drift == {
        "shop": ["300", "", "0.04", "0.06"],
        "telco": ["1200", "37", "1.25", "2.50"],
    }
    # The slowest party has the longest bar.
    widths = tab.locator("h2:has-text('Parties') + div .bar").evaluate_all(
        "bars => bars.map(bar => bar.getBoundingClientRect().width)"
    )
    assert widths[2] == max(widths) > 10 * widths[0]
    no_sideways(tab)
    accessible(tab)
    picture(tab, f"serving-{width}{'-dark' if dark else ''}")


def test_nothing_but_the_page_is_loaded(service: Running, browse: Browse) -> None:
    tab = browse()
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(service.address + "/")
    assert tab.get_by_text("Nothing yet.").count() >= 1
    assert service.predict("1")[0] == 200
    tab.reload()
    assert tab.get_by_role("cell", name="bank+shop+telco").count() == 1
    assert set(asked) == {service.address + "/"}
