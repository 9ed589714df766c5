"""A party's signing key, by which other parties check that a blinding key is really its own.

The label holder runs the federation's authority, so a certificate proves nothing to parties that
hide their summands from the label holder. Parties exchange these keys some other way.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from colonnade.core.errors import StorageError
from colonnade.files import write_atomically
from colonnade.protect.signatures import Ed25519Signer, PinnedVerifier

__all__ = ["own_signer", "peers_of"]

_FILE = "signing.key"
_NUM_BYTES = 32


def own_signer(home: Path) -> Ed25519Signer:
    """The party's signing key, made at the first call and never replaced."""
    path = home / _FILE
    if not path.exists():
        write_atomically(path, secrets.token_bytes(_NUM_BYTES).hex().encode(), owner_only=True)
    try:
        secret = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: can't be read as a key; put it back from a copy") from error
    if len(secret) != _NUM_BYTES:
        raise StorageError(f"{path}: not a key of {_NUM_BYTES} bytes; put it back from a copy")
    return Ed25519Signer(secret)


def peers_of(name: str, home: Path, peers: Mapping[str, str]) -> PinnedVerifier:
    """A verifier with the keys in a party's policy, and its own."""
    keys = {peer: bytes.fromhex(key) for peer, key in peers.items()}
    return PinnedVerifier(name, {**keys, name: own_signer(home).public})
