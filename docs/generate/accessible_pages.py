"""What the theme leaves out for screen readers and keyboards, put into the finished pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["mended", "setup"]

_MENDED = {
    # A heading without a level has no place in an outline.
    'class="caption" role="heading"': 'class="caption" role="heading" aria-level="2"',
    # Two landmarks of one kind need names to be told apart.
    '<aside class="sidebar-drawer"': '<aside aria-label="All pages" class="sidebar-drawer"',
    '<aside class="toc-drawer': '<aside aria-label="On this page" class="toc-drawer',
    # The page of the search has no heading until something was sought.
    '<div id="search-results">': '<h1>Search</h1><div id="search-results">',
    # Code and tables that scroll sideways must be reachable without a mouse.
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper ': '<div tabindex="0" class="table-wrapper ',
    # An empty heading of a column is read aloud as one; an empty cell is not.
    '<th class="head"><p></p></th>': '<td class="head"></td>',
}


def mended(page: str) -> str:
    """The page with names, levels and places to stop at; a page that has them stays as it is."""
    for before, after in _MENDED.items():
        page = page.replace(after, before).replace(before, after)
    return page


def _finish(app: Any, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        for path in Path(app.outdir).rglob("*.html"):
            path.write_text(mended(path.read_text("utf-8")), "utf-8")


def setup(app: Any) -> dict[str, Any]:
    """Mend every page when all are written."""
    app.connect("build-finished", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
