"""Who is who: parties sign what they send each other through the label holder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from colonnade.core.errors import Refused
from colonnade.protect.extra import needed

__all__ = ["Ed25519Signer", "PinnedVerifier", "Signer", "Verifier"]


class Signer(Protocol):
    """A party's own identity."""

    def sign(self, message: bytes) -> bytes:
        """A signature of 64 bytes."""


class Verifier(Protocol):
    """What a party knows of the others' identities."""

    def verify(self, name: str, signature: bytes, message: bytes) -> None:
        """Raise Refused unless this party signed this message."""


class Ed25519Signer:
    """A signing key: the one whose 32 secret bytes are given, or a fresh one."""

    def __init__(self, secret: bytes | None = None) -> None:
        kind = needed(
            "cryptography.hazmat.primitives.asymmetric.ed25519", "blinding"
        ).Ed25519PrivateKey
        self._key = kind.generate() if secret is None else kind.from_private_bytes(secret)

    def sign(self, message: bytes) -> bytes:
        """A signature of 64 bytes."""
        signature: bytes = self._key.sign(message)
        return signature

    @property
    def public(self) -> bytes:
        """What others need to verify."""
        raw: bytes = self._key.public_key().public_bytes_raw()
        return raw


class PinnedVerifier:
    """Public keys that were known before anything was sent."""

    def __init__(self, owner: str, public: Mapping[str, bytes]) -> None:
        module = needed("cryptography.hazmat.primitives.asymmetric.ed25519", "blinding")
        self._owner = owner
        self._invalid = needed("cryptography.exceptions", "blinding").InvalidSignature
        self._keys = {
            name: module.Ed25519PublicKey.from_public_bytes(key) for name, key in public.items()
        }

    def verify(self, name: str, signature: bytes, message: bytes) -> None:
        """Raise Refused unless the pinned key of this party signed this message."""
        key = self._keys.get(name)
        if key is None:
            raise Refused(
                f"party '{self._owner}' refuses, rule 'identity': it knows no party '{name}'; it "
                f"knows {sorted(self._keys)}",
                party=self._owner,
            )
        try:
            key.verify(signature, message)
        except self._invalid as error:
            raise Refused(
                f"party '{self._owner}' refuses, rule 'identity': the key that came as that of "
                f"'{name}' was not signed by it; somebody on the way may have replaced it",
                party=self._owner,
            ) from error
