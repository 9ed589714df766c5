"""An identity on the network: a name, a certificate, its key, and the authority's certificate."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["HUB_NAME", "Identity"]

# Every hub's certificate has this DNS name (subject alternative name), whatever its address: a hub
# may move. No party's certificate has it.
HUB_NAME = "hub.colonnade"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One side's identity for mutual TLS; every field but the name is PEM.

    ``authority`` is the certificate of the federation's authority; the key never leaves its
    owner, and is kept out of the representation so that it can't end up in a log.
    """

    name: str
    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)
