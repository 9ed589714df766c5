"""Anchors of headings: the rule that tests/unit/test_docs.py holds every link to."""

from __future__ import annotations

import re

__all__ = ["slug"]


def slug(heading: str) -> str:
    """A heading's anchor."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
