"""Who may ask what: by an API key, by a client certificate, or anybody on this machine."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import HTTPException, Request

from colonnade.serve.api_keys import ApiKey, KeyFile

__all__ = ["Admittance", "Caller"]


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks: the name of a key; without keys there is one caller for all."""

    name: str
    key: ApiKey | None = None


class Admittance:
    """Checks keys, where there are any.

    Args:
        keys: The keys; None where the address or a client certificate decides who gets here.
    """

    def __init__(self, keys: KeyFile | None) -> None:
        self._keys = keys

    def for_scope(self, scope: str) -> Callable[[Request], Awaitable[Caller]]:
        """A dependency of routes: the caller, if it has a key for this scope."""

        async def caller(request: Request) -> Caller:
            return self.admit(request.headers.get("authorization"), scope)

        return caller

    def admit(self, header: str | None, scope: str) -> Caller:
        """The caller, if its key is for this scope.

        Args:
            header: What it gave as ``Authorization``.
            scope: What it asks for.

        Raises:
            HTTPException: It has no key, or the key is for other things.
        """
        if self._keys is None:
            return Caller(name="anybody")
        found = self._keys.find(_given(header))
        if found is None:
            asking = {"WWW-Authenticate": 'Basic realm="colonnade", charset="UTF-8"'}
            raise HTTPException(401, "needs a key: Authorization: Bearer KEY", asking)
        name, key = found
        if scope not in key.scopes:
            raise HTTPException(403, f"this key is not for '{scope}'")
        return Caller(name=name, key=key)

    def seconds_to_wait(self, caller: Caller, num_ids: int) -> float:
        """How long a caller has to wait until it may ask for so many ids."""
        if self._keys is None or caller.key is None:
            return 0.0
        return self._keys.seconds_to_wait(caller.name, caller.key, num_ids)


def _given(header: str | None) -> str | None:
    """The key of a header: a bearer token, or the password that a browser asked for."""
    kind, _, value = (header or "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return decoded.partition(":")[2]
