"""Idempotency keys: the same request under the same key is answered once, and told again."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from colonnade.core.errors import ColonnadeError

__all__ = ["OtherRequest", "RepeatedRequests"]

Answer = tuple[int, bytes]


class OtherRequest(ColonnadeError):
    """The key was used for a different request."""


class RepeatedRequests:
    """Answers by caller and key, for a while; the oldest go first.

    Args:
        clock: Seconds that only grow.
        most: The most answers kept.
        longest_seconds: How long each is kept.
        largest: Answers with more bytes are not kept.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        most: int = 1000,
        longest_seconds: float = 600.0,
        largest: int = 65536,
    ) -> None:
        self._clock, self._most = clock, most
        self._longest, self._largest = longest_seconds, largest
        self._known: OrderedDict[tuple[str, str], tuple[bytes, float, asyncio.Future[Answer]]] = (
            OrderedDict()
        )

    async def once(
        self, caller: str, key: str, body: bytes, answer: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Answer a request, or give the answer that it had.

        Raises:
            OtherRequest: The key came with another body before.
        """
        digest = hashlib.sha256(body).digest()
        known = self._known.get((caller, key))
        if known is not None and self._clock() - known[1] <= self._longest:
            if known[0] != digest:
                raise OtherRequest("idempotency key: used for another request before")
            return await asyncio.shield(known[2])
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._known[caller, key] = digest, self._clock(), future
        self._known.move_to_end((caller, key))
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        try:
            found = await answer()
        except BaseException as error:
            self._forget(caller, key, future)
            # Whoever waits for the same answer tries again.
            future.set_exception(ColonnadeError("the request that this one repeats failed"))
            future.exception()
            raise error
        future.set_result(found)
        if found[0] != 200 or len(found[1]) > self._largest:
            self._forget(caller, key, future)
        return found

    def _forget(self, caller: str, key: str, future: asyncio.Future[Answer]) -> None:
        known = self._known.get((caller, key))
        if known is not None and known[2] is future:
            del self._known[caller, key]
