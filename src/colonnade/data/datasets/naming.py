"""What to say when a name is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["unknown_name"]


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """A message that gives the nearest known names, or all of them where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return f"{kind} '{name}' is not known; {remedy}"
