"""A system Chromium for tests of pages; they are skipped, with the reason, where there is none.

``browse(width, dark)`` opens a tab in which every console error, script error and request that
leaves the machine fails the test. ``accessible`` runs axe. With COLONNADE_SCREENSHOTS=DIRECTORY,
``picture`` writes PNG files there; otherwise it writes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
Browse = Callable[..., Any]


# No longer than a module: Playwright keeps an event loop in this thread, where others run theirs.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def browse(chromium: Any) -> Iterator[Browse]:
    """Opens tabs; at the end nothing may have gone wrong in any of them."""
    wrong: list[str] = []
    contexts = []

    def open_tab(width: int = 1280, *, dark: bool = False, height: int = 900) -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(15_000)

        def saw(request: Any) -> None:
            place = urlsplit(request.url)
            if place.scheme not in ("file", "data", "blob") and place.hostname != "127.0.0.1":
                wrong.append(f"leaves the machine: {request.url}")

        tab.on("request", saw)
        tab.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
        tab.on(
            "console",
            lambda line: line.type in ("error", "warning") and wrong.append(f"{line.text}"),
        )
        return tab

    yield open_tab
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def accessible() -> Callable[[Any], None]:
    """Fails with what axe finds: every rule of WCAG 2.2 A and AA, and best practice."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")

    def check(tab: Any) -> None:
        # Axe would fetch style sheets again, which a browser refuses for files.
        found = axe.Axe().run(tab, options={"preload": False}).response["violations"]
        said = [
            f"{item['id']} ({item['impact']}): {item['nodes'][0]['html'][:200]} "
            f"{item['nodes'][0]['failureSummary']}"
            for item in found
        ]
        assert not said, "\n".join(said)

    return check


@pytest.fixture
def picture() -> Callable[..., None]:
    """Writes a screenshot for the docs, if COLONNADE_SCREENSHOTS says where.

    With ``tall`` it shows only so many pixels from the top of a page.
    """
    place = os.environ.get("COLONNADE_SCREENSHOTS")

    def take(tab: Any, name: str, tall: int | None = None) -> None:
        if place:
            Path(place).mkdir(parents=True, exist_ok=True)
            wide = tab.viewport_size["width"]
            clip = {"x": 0, "y": 0, "width": wide, "height": tall} if tall else None
            path = str(Path(place) / f"{name}.png")
            tab.screenshot(path=path, full_page=True, clip=clip)

    return take


def no_sideways(tab: Any) -> None:
    """Nothing is wider than the window: nobody scrolls sideways."""
    wide = tab.evaluate(
        "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide[0] <= wide[1], f"the page is {wide[0]} pixels wide in {wide[1]}"
