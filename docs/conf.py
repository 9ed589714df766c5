"""Sphinx's settings for these pages: ``make docs``. Nothing is loaded from another machine."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "generate"))

project = "Colonnade"
author = "The Colonnade project"
copyright = "The Colonnade project, Apache License 2.0"  # noqa: A001 (Sphinx's name for it)
version = release = installed_version("colonnade")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "equations",
    "command_pages",
    "accessible_pages",
    "declared_types",
]
exclude_patterns = ["generate"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
myst_heading_slug_func = "anchors.slug"

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True

# Two hyphens are an option of a command, not a dash.
smartquotes = False

html_theme = "furo"
html_title = f"Colonnade {version}"
html_static_path = ["_static"]
html_css_files = ["colonnade.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
# A summary is cut from the page, which a browser does not read for a script from a file.
html_show_search_summary = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def setup(app: Sphinx) -> None:
    """Pygments has no language for tables of values: they are shown as they are."""
    app.add_lexer("csv", TextLexer)
