"""Signatures in the API show ``Embedding`` where a verb declares it, not the annotation behind."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

from colonnade.core import releases

__all__ = ["setup"]

_NAMES = {
    found.__metadata__[0].name: name
    for name in vars(releases)
    if (found := getattr(releases, name)) and hasattr(found, "__metadata__")
}
_DECLARED = re.compile(r"~?[\w.]*Annotated\[~?torch\.Tensor, <Kind\.(\w+): '[^']*'>\]")


def _named(annotation: str | None) -> str | None:
    if annotation is None:
        return None
    return _DECLARED.sub(lambda found: _NAMES[found[1]], annotation)


def _rename(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str, returned: str
) -> tuple[str | None, str | None]:
    return _named(signature), _named(returned)


def setup(app: Sphinx) -> dict[str, Any]:
    """Hear of every signature."""
    app.connect("autodoc-process-signature", _rename)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
