"""A fabric around a fabric for one exchange: it times parties, and answers what is kept already."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from torch import Tensor

from colonnade.core.errors import ProtocolError
from colonnade.core.fabric import Clock, Fabric
from colonnade.core.messages import Call, Reply
from colonnade.core.party import Part

__all__ = ["WatchedFabric"]

T = TypeVar("T")


class WatchedFabric(Fabric):
    """Carries one exchange of one batch.

    Args:
        inner: The fabric that reaches the parties.
        kept: By party, embeddings that need not be asked for again.
        is_direct: Whether a call is done when ``send`` returns, as in one process.
        until: The last tick to wait for anybody, whatever a method's patience says.
        first_until: The same while embeddings are awaited, so that a second question has time.
    """

    def __init__(
        self,
        inner: Fabric,
        kept: Mapping[str, Tensor],
        *,
        is_direct: bool,
        until: int | None = None,
        first_until: int | None = None,
    ) -> None:
        super().__init__(inner.names)
        self.released: dict[str, Tensor] = {}
        self.seconds: dict[str, float] = {}
        self._inner = inner
        self._kept = kept
        self._is_direct = is_direct
        self._until, self._first_until = until, first_until
        # Whether the last call asked for an embedding.
        self._is_first = True
        self._ready: deque[Reply] = deque()
        self._sent: dict[int, tuple[Call, float]] = {}

    @property
    def clock(self) -> Clock:
        """The inner fabric's."""
        return self._inner.clock

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Who was asked and has not answered."""
        return tuple(sorted({call.party for call, _ in self._sent.values()}))

    def send(self, call: Call) -> None:
        """Answer from what is kept, or pass the call on."""
        if call.verb == "infer" and call.party in self._kept and call.summand is None:
            value = self._kept[call.party].clone()
            self._ready.append(Reply(call.id, call.party, call.exchange, value, None, self.now()))
            return
        self._is_first = call.verb == "infer"
        began = time.perf_counter()
        self._sent[call.id] = call, began
        self._inner.send(call)
        if self._is_direct:
            self._took(call.party, time.perf_counter() - began)

    async def receive(self, deadline: int | None) -> Reply | None:
        """The next reply, with those from the cache first."""
        if self._ready:
            return self._ready.popleft()
        reply = await self._inner.receive(self._earlier(deadline))
        if reply is None:
            return None
        call, began = self._sent.pop(reply.id, (None, 0.0))
        if call is not None and not self._is_direct:
            self._took(call.party, (reply.at or time.perf_counter()) - began)
        is_own = call is not None and call.verb == "infer" and call.summand is None
        if is_own and isinstance(reply.value, Tensor) and reply.failure is None:
            self.released[reply.party] = reply.value
        return reply

    def aside(self, parts: Mapping[str, Mapping[str, Part]] | None = None) -> Fabric:
        """Itself: it is there for one prediction only."""
        if parts is not None:
            raise ProtocolError("a fabric for one exchange has its samples already")
        return self

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """As the inner fabric runs it."""
        return self._inner.run(coroutine)

    def _earlier(self, deadline: int | None) -> int | None:
        own = self._first_until if self._is_first else self._until
        if own is None or deadline is None:
            return deadline if own is None else own
        return min(deadline, own)

    def _took(self, party: str, seconds: float) -> None:
        self.seconds[party] = self.seconds.get(party, 0.0) + seconds
