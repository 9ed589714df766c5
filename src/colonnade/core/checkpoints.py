"""A party's checkpoints: its own state at its own place, kept and fetched when it is asked to."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from colonnade.core.errors import ProtocolError, StorageError
from colonnade.core.verbs import VerbSet, verb

__all__ = ["Checkpoints", "Stateful", "Vault"]

# A tag becomes the name of a file at the party, and it comes from the label holder.
_TAG = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Vault(Protocol):
    """Where a participant keeps its own checkpoints."""

    def keep(self, tag: str, state: Mapping[str, Any]) -> None:
        """Write a state under a tag, wholly or not at all."""

    def retain(self, tags: Collection[str]) -> None:
        """Delete every state but these."""

    def fetch(self, tag: str) -> dict[str, Any]:
        """Read the state under a tag."""


class Stateful(Protocol):
    """A participant whose state can be kept."""

    name: str

    def refuse_non_finite(self) -> None:
        """Raise Diverged if weights are no longer finite."""

    def state(self) -> dict[str, Any]:
        """Everything that training changes."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave."""


class Checkpoints(VerbSet):
    """The verbs of keeping and fetching, beside a party's own."""

    def __init__(self, whose: Stateful, vault: Vault | None) -> None:
        self._whose = whose
        self.vault = vault

    @verb
    def keep(self, tag: str) -> None:
        """Write the party's state to its vault; weights that are no longer finite are refused."""
        _refuse_odd(tag)
        self._whose.refuse_non_finite()
        self._own_vault.keep(tag, self._whose.state())

    @verb
    def retain(self, newest: str, previous: str, best: str) -> None:
        """Delete every kept state but these three."""
        _refuse_odd(newest, previous, best)
        self._own_vault.retain((newest, previous, best))

    @verb
    def fetch(self, tag: str) -> None:
        """Go back to a kept state."""
        _refuse_odd(tag)
        self._whose.restore(self._own_vault.fetch(tag))

    @property
    def _own_vault(self) -> Vault:
        if self.vault is None:
            raise StorageError(f"party '{self._whose.name}' has no place to keep checkpoints")
        return self.vault


def _refuse_odd(*tags: str) -> None:
    """Raise ProtocolError unless every tag is a plain name that leads nowhere."""
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise ProtocolError(
                "a checkpoint's tag has 1 to 64 letters, digits, '-' and '_', and nothing else"
            )
