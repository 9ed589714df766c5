"""The protection of a party's embeddings in words."""

from __future__ import annotations

import math

from colonnade.report.markup import NOT_RECORDED
from colonnade.report.reading import Privacy, RunRecord

__all__ = ["protection_in_words"]

_BLINDED = "blinded, so that the label holder sees sums over parties only"


def protection_in_words(record: RunRecord, name: str) -> str:
    """Say which guarantee or protection a party's embeddings had."""
    spent = record.summary.privacy if record.summary else {}
    kinds = record.summary.protections.get(name, ()) if record.summary else ()
    found = spent.get(name)
    if found is not None:
        return _bound(found) + (f"; {_BLINDED}" if "blind" in kinds else "")
    if name == record.label_holder:
        return "none needed: it is the label holder, its own embeddings stay with it"
    if name not in spent:
        return NOT_RECORDED
    if "blind" in kinds:
        return f"no ε: {_BLINDED}, and nothing bounds what a sum tells"
    if kinds:
        return f"none: embeddings left as '{', '.join(kinds)}' makes them, which bounds nothing"
    if record.bytes_up.get(name) == 0:
        return "none: no protection was set, though no bytes were counted over its link"
    return "none: embeddings left unprotected"


def _bound(found: Privacy) -> str:
    if not math.isfinite(found.epsilon):
        return "no guarantee: what was added does not bound ε"
    return f"ε = {found.epsilon:.4g} at δ = {found.delta:.3g}"
