"""Versions of a model side by side: one is current, one may be tried on a share of the ids.

A version is loaded and warm before it is listed. A switch changes one name in the event loop:
requests before it finish with the old version, which stays loaded for a roll back. A canary's share
is drawn by a keyed hash of the id, so an id keeps its version for as long as the share stays.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError
from colonnade.serve.gathering import Gathering

__all__ = ["Routing", "Versions"]


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Who answers: the current version, and a share of ids for another one."""

    current: str
    canary: str | None = None
    share: float = 0.0
    previous: str | None = None


class Versions:
    """The loaded versions, and which of them answers for an id.

    Args:
        first: The version that answers from the start.
        secret: The key of the hash that draws a canary's ids; drawn afresh if not given.
    """

    def __init__(self, first: Gathering, *, secret: bytes | None = None) -> None:
        name = first.predictor.model.version
        self._loaded = {name: first}
        self._secret = secret or secrets.token_bytes(32)
        self.routing = Routing(current=name)

    @property
    def loaded(self) -> Mapping[str, Gathering]:
        """By version."""
        return self._loaded

    @property
    def current(self) -> Gathering:
        """The version that answers unless a canary does."""
        return self._loaded[self.routing.current]

    def add(self, gathering: Gathering) -> None:
        """List a version that is loaded and warm."""
        self._loaded[gathering.predictor.model.version] = gathering

    def switch(self, version: str) -> None:
        """Let a version answer for every id from now on.

        Raises:
            ConfigError: It is not loaded.
        """
        self._require(version)
        now = self.routing
        previous = now.current if version != now.current else now.previous
        self.routing = Routing(current=version, previous=previous)

    def try_out(self, version: str, share: float) -> None:
        """Let a version answer for a share of the ids.

        Raises:
            ConfigError: It is not loaded, or the share is not between 0 and 1.
        """
        self._require(version)
        if not 0.0 < share < 1.0:
            raise ConfigError(f"share: above 0 and below 1, got {share}; switch to it for all ids")
        now = self.routing
        self.routing = Routing(
            current=now.current, canary=version, share=share, previous=now.previous
        )

    def roll_back(self) -> None:
        """End a canary; without one, go back to the version before.

        Raises:
            ConfigError: There is neither.
        """
        now = self.routing
        if now.canary is not None:
            self.routing = Routing(current=now.current, previous=now.previous)
        elif now.previous is not None:
            self.routing = Routing(current=now.previous, previous=now.current)
        else:
            raise ConfigError("roll back: there was no version before this one")

    def unlist(self, version: str) -> Gathering:
        """Take a version off the list that answers for nobody; the caller drains it.

        Raises:
            ConfigError: It is not loaded, or it answers for some ids.
        """
        self._require(version)
        if version in (self.routing.current, self.routing.canary):
            raise ConfigError(f"version '{version}' answers requests; switch to another first")
        if version == self.routing.previous:
            now = self.routing
            self.routing = Routing(current=now.current, canary=now.canary, share=now.share)
        return self._loaded.pop(version)

    def of(self, name: str) -> Gathering:
        """Who answers for an id."""
        now = self.routing
        if now.canary is None:
            return self._loaded[now.current]
        digest = hmac.new(self._secret, name.encode(), hashlib.sha256).digest()
        is_tried = int.from_bytes(digest[:8], "big") < now.share * 2**64
        return self._loaded[now.canary if is_tried else now.current]

    def _require(self, version: str) -> None:
        if version not in self._loaded:
            hint = nearest(version, list(self._loaded))
            raise ConfigError(f"version '{version[:80]}': not loaded{hint}")
