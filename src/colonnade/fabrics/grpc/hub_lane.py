"""One lane of a hub: the same endpoint, with links and a session that nothing else waits for.

A party has a link per lane, each with a thread of its own at the party. So a long step of training
on one lane does not keep a prediction on another one waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from colonnade.core.fabric import Clock
from colonnade.fabrics.grpc.arrivals import Arrivals
from colonnade.fabrics.grpc.call_queue import CallQueue
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.link_settings import LinkSpec

__all__ = ["HubLane", "Lane"]


class Lane(Protocol):
    """What a session needs of a hub: a hub is its own lane 0."""

    @property
    def links(self) -> LinkSpec:
        """Settings of the links."""

    def open(
        self, parties: Iterable[str], *, purpose: str, arrivals: Arrivals, clock: Clock
    ) -> dict[str, CallQueue]:
        """Begin a session with these parties; it replaces the one that is open on the lane."""

    def close_session(self, queues: Mapping[str, CallQueue]) -> None:
        """End a session; calls under way are dropped."""

    def wake(self, queues: Mapping[str, CallQueue]) -> None:
        """Have the queued calls written to the streams."""

    def wait_for(self, names: Iterable[str], timeout: float | None = None) -> tuple[str, ...]:
        """Wait until all are connected; returns those that are not when the time is over."""


class HubLane:
    """A lane of a hub.

    Args:
        hub: Where the parties are connected.
        lane: Its number; 0 is the hub's own.
    """

    def __init__(self, hub: Hub, lane: int) -> None:
        self._hub, self._lane = hub, lane

    @property
    def links(self) -> LinkSpec:
        """Settings of the links."""
        return self._hub.links

    def open(
        self, parties: Iterable[str], *, purpose: str, arrivals: Arrivals, clock: Clock
    ) -> dict[str, CallQueue]:
        """Begin a session with these parties; it replaces the one that is open on the lane."""
        return self._hub.open(
            parties, purpose=purpose, arrivals=arrivals, clock=clock, lane=self._lane
        )

    def close_session(self, queues: Mapping[str, CallQueue]) -> None:
        """End a session; calls under way are dropped."""
        self._hub.close_session(queues)

    def wake(self, queues: Mapping[str, CallQueue]) -> None:
        """Have the queued calls written to the streams."""
        self._hub.wake(queues)

    def wait_for(self, names: Iterable[str], timeout: float | None = None) -> tuple[str, ...]:
        """Wait until all are connected; returns those that are not when the time is over."""
        return self._hub.wait_for(names, timeout, lane=self._lane)
