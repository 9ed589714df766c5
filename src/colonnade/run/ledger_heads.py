"""How long everybody's ledger is, and the last entry's hash; kept at the label holder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from colonnade.core.federation import Federation
from colonnade.core.parties import each

__all__ = ["confirm_heads", "heads_and_seals", "own_head", "proofs_for", "sealed_ledgers"]


def sealed_ledgers(federation: Federation) -> dict[str, Any]:
    """Each party's seal, as it answers; without those who keep no ledger."""
    sealed = federation.fabric.run(federation.aside().ask("seal"))
    return {name: item for name, item in sealed.items() if item}


def own_head(federation: Federation) -> dict[str, Any] | None:
    """The same of the label holder's own ledger."""
    sealed = {} if federation.door is None else federation.door.seal()
    return _head_of(sealed) if sealed else None


def heads_and_seals(
    sealed: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, dict[str, Any]], dict[str, bytes]]:
    """Seals as plain values: the head of every ledger, and the seals of accounts."""
    heads = {name: _head_of(sealed[name]) for name in sorted(sealed)}
    accounts = {
        name: bytes(item["account"].numpy()) for name, item in sealed.items() if "account" in item
    }
    return heads, accounts


def confirm_heads(
    federation: Federation, heads: Mapping[str, Mapping[str, Any]], seals: Mapping[str, bytes]
) -> None:
    """Have every party see that its ledger and its account are no older than they were.

    Args:
        federation: Before anything leaves.
        heads: How long each party's ledger was, and its last hash.
        seals: Of each party's account.

    Raises:
        Refused: A party has put back an old copy.
    """
    known = [name for name in federation.fabric.names if name in heads or name in seals]
    if not known:
        return
    proofs = {name: proofs_for(name, heads, seals) for name in known}
    asked = (each({name: proofs[name][place] for name in known}) for place in range(3))
    federation.fabric.run(federation.aside(needs_all=True).ask("confirm", *asked, among=known))


def proofs_for(
    name: str, heads: Mapping[str, Mapping[str, Any]], seals: Mapping[str, bytes]
) -> tuple[int, Tensor, Tensor]:
    """The arguments of a party's ``confirm``: entries, last hash, the account's seal."""
    head = heads.get(name, {})
    last = _bytes(bytes.fromhex(head.get("head", "")))
    return int(head.get("entries", 0)), last, _bytes(seals.get(name, b""))


def _head_of(sealed: Mapping[str, Any]) -> dict[str, Any]:
    return {"entries": int(sealed["entries"]), "head": bytes(sealed["head"].numpy()).hex()}


def _bytes(content: bytes) -> Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)
