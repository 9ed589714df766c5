"""A party's agent over all its lanes: one for everything, and some for predictions beside it.

Every lane has a link and a thread of its own, so that a long step of training keeps no prediction
waiting. Lane 0 goes to the federation's address. Lanes 1 and up go to its serving address, if it
has one; each carries one loaded version of a model. Lane 2 and those above it dial once lane 1 has
found a hub that serves. From then on the thread of lane 0 interrupts none of theirs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import fields

from colonnade.core.errors import ColonnadeError
from colonnade.core.respondent import Respondent
from colonnade.fabrics.grpc.agent import LEAVE_SECONDS, Agent
from colonnade.fabrics.grpc.execution import AgentStatus
from colonnade.fabrics.grpc.identity import Identity
from colonnade.fabrics.grpc.link_settings import MOST_LANES, LinkSpec
from colonnade.federate.precedence import interrupt_nobody

__all__ = ["SERVING_LANES", "AgentLanes"]

# Lanes for predictions: the version that answers, the one before, and the next.
SERVING_LANES = range(1, MOST_LANES)

_LOG = logging.getLogger("colonnade.agent")


class AgentLanes:
    """One party's agents, used like one.

    Args:
        identity: The party's.
        address: The federation's hub.
        serving: Its hub for predictions; None if the federation has none.
        respondent_for: Gives the respondent for a session's purpose on a lane.
        links: Settings of the links.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        address: str,
        serving: str | None,
        respondent_for: Callable[[str, int], Respondent],
        links: LinkSpec | None = None,
    ) -> None:
        def agent(lane: int, hub: str) -> Agent:
            return Agent(
                identity=identity,
                address=hub,
                respondent_for=lambda purpose: respondent_for(purpose, lane),
                links=links,
                lane=lane,
            )

        self._main = agent(0, address)
        self._serving = {} if serving is None else {n: agent(n, serving) for n in SERVING_LANES}
        self._may_dial, self._is_over = threading.Event(), threading.Event()
        # The thread of lane 0, by its number in the system.
        self._main_thread = 0
        self.on_connect = lambda: None

    @property
    def on_connect(self) -> Callable[[], None]:
        """Called on the event loop whenever a link was made; it must not block."""
        return self._on_connect

    @on_connect.setter
    def on_connect(self, call: Callable[[], None]) -> None:
        def first_lane() -> None:
            interrupt_nobody(self._main_thread)
            self._may_dial.set()
            call()

        self._on_connect = self._main.on_connect = call
        for lane, agent in self._serving.items():
            agent.on_connect = first_lane if lane == SERVING_LANES.start else call

    @property
    def status(self) -> AgentStatus:
        """Counts over all lanes; connected if any of them is."""
        found = AgentStatus()
        for agent in (self._main, *self._serving.values()):
            for field in fields(AgentStatus):
                own, more = getattr(found, field.name), getattr(agent.status, field.name)
                if isinstance(own, int | float) and not isinstance(own, bool):
                    setattr(found, field.name, own + more)
        everyone = [self._main.status, *(agent.status for agent in self._serving.values())]
        found.is_connected = any(status.is_connected for status in everyone)
        found.last_error = self._main.status.last_error
        return found

    def serve(self) -> None:
        """Answer calls until ``stop``: lane 0 in this thread, every other one in its own."""
        self._main_thread = threading.get_native_id()
        threads = [
            threading.Thread(target=self._serve_beside, args=(lane,), name=f"lane {lane}")
            for lane in self._serving
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        try:
            self._main.serve()
        finally:
            self._end_others()
            for thread in threads:
                thread.join(2 * LEAVE_SECONDS)

    def _serve_beside(self, lane: int) -> None:
        if lane != SERVING_LANES.start:
            self._may_dial.wait()
        if self._is_over.is_set():
            return
        try:
            self._serving[lane].serve()
        except ColonnadeError as error:
            _LOG.error("no predictions beside training: %s", error)

    def stop(self) -> None:
        """End ``serve`` after the calls that are under way; from any thread."""
        self._main.stop()
        self._end_others()

    def _end_others(self) -> None:
        self._is_over.set()
        self._may_dial.set()
        for agent in self._serving.values():
            agent.stop()

    def reconnect(self) -> None:
        """Cut the streams and dial again."""
        for agent in (self._main, *self._serving.values()):
            agent.reconnect()

    def renew(self, identity: Identity) -> None:
        """Use another certificate from the next dial on."""
        for agent in (self._main, *self._serving.values()):
            agent.renew(identity)
