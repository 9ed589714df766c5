"""How long everybody's ledger is, and the last entry's hash: kept in a run's checkpoint.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colonnade.core.federation import Federation

__all__ = ["head_of", "ledger_heads", "own_head", "sealed_ledgers"]


def ledger_heads(federation: Federation) -> dict[str, Any]:
    """How many entries each party's ledger has, and the last one's hash; sealed at the party."""
    return {name: head_of(item) for name, item in sealed_ledgers(federation).items()}


def sealed_ledgers(federation: Federation) -> dict[str, Any]:
    """Each party's seal, as it answers; without those who keep no ledger."""
    sealed = federation.fabric.run(federation.aside().ask("seal"))
    return {name: item for name, item in sealed.items() if item}


def own_head(federation: Federation) -> dict[str, Any] | None:
    """The same of the label holder's own ledger."""
    sealed = {} if federation.door is None else federation.door.seal()
    return head_of(sealed) if sealed else None


def head_of(sealed: Mapping[str, Any]) -> dict[str, Any]:
    """A seal as plain values."""
    found: dict[str, Any] = {
        "entries": int(sealed["entries"]),
        "head": bytes(sealed["head"].numpy()).hex(),
    }
    if "account" in sealed:
        found["account"] = bytes(sealed["account"].numpy())
    return found
