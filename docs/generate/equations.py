"""Equations as MathML, written when the pages are built: browsers draw it without any script."""

from __future__ import annotations

import html
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

__all__ = ["setup"]


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(f'<span class="math">{tex2mathml(node.astext())}</span>')
    raise nodes.SkipNode


def _display(writer: Any, node: nodes.math_block) -> None:
    drawn = tex2mathml(node.astext(), as_block=True)
    spoken = html.escape(node.astext(), quote=True)
    # A wide one scrolls sideways in a narrow window: the keyboard must reach it.
    writer.body.append(f'<div class="math" tabindex="0" title="{spoken}">{drawn}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
