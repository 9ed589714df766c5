"""The documentation: built without a warning, as wide as the window, accessible, searchable."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Browse, no_sideways

DOCS = Path(__file__).parents[2] / "docs"
# One of each kind: a page takes two seconds. `make pages` looks at all of them.
KINDS = (
    *("index", "choose-a-method", "configuration", "cli", "api", "methods/laser", "results/easter"),
    *("tutorials/missing-customers", "live", "decisions/0015-noise-in-whole-steps", "search"),
)
EVERY = "COLONNADE_EVERY_PAGE"


# One test, so that one process builds the pages, once.
@pytest.mark.timeout(1800)
def test_the_pages(
    tmp_path: Path, request: pytest.FixtureRequest, accessible: Callable[[Any], None]
) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q"]
    built = subprocess.run(
        [*command, "-d", tmp_path / "doctrees", DOCS, site], capture_output=True, text=True
    )
    assert (built.returncode, built.stderr) == (0, "")
    api = (site / "api.html").read_text("utf-8")
    assert "Embedding</span>" in api
    assert "Annotated[" not in api
    assert ">Type<" not in api  # of a docstring, a colon after its first words makes a type of them

    browse: Browse = request.getfixturevalue("browse")
    pages = [site / f"{kind}.html" for kind in KINDS]
    if os.environ.get(EVERY):
        pages = sorted(site.rglob("*.html"))
    # Colours change with the dark, and the layout with the width: these two have all of both.
    for tab in (browse(390, dark=True), browse(1280, dark=False)):
        for page in pages:
            tab.goto(page.as_uri())
            no_sideways(tab)
            accessible(tab)
    # From a file, without a server: the field's word leads to ours.
    tab.goto(f"{(site / 'search.html').as_uri()}?q=secure+aggregation")
    tab.wait_for_selector("#search-results li")
    assert "Glossary" in tab.inner_text("#search-results")
    no_sideways(tab)
    accessible(tab)
