"""The label holder's half of a checkpoint that is taken while calls are under way.

It is the snapshot of Chandy and Lamport (1985). At one moment the label holder copies its own state
and sends every party a call to keep its own. Links keep their order: a party's state is that after
all calls before the moment, and what comes from it before its answer belongs to the checkpoint too.
So every upload is counted once, and nobody stands still.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from colonnade.core.fabric import Cut, Fabric, num_payload_bytes
from colonnade.core.messages import pack_reply

__all__ = ["Snapshot"]


class Snapshot:
    """A cut through the links, and the label holder's state at that moment.

    Every party must be asked something through ``cut.aside`` at once, before any other call.
    """

    def __init__(self, fabric: Fabric, own: Mapping[str, Any]) -> None:
        self.cut: Cut = fabric.cut()
        self._local = fabric.meter.local
        state = {**own, "fabric": fabric.state(), "meter": fabric.meter.state()}
        # Where calls are done as they are sent, nothing happens before the checkpoint is whole.
        self._state = state if fabric.answers_at_once else copy.deepcopy(state)

    def whole(self) -> dict[str, Any]:
        """The state with the replies that were on their way; once every party has answered."""
        state = self._state
        for reply in self.cut.replies:
            state["fabric"]["replies"].append(pack_reply(replace(reply, tick=0)))
            if reply.party not in self._local:
                state["meter"][reply.party]["bytes_up"] += num_payload_bytes(reply.value)
        self.cut.replies.clear()
        return state
