"""Whom a hub has waited for: a line in the log when it gets long, and numbers for metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping

__all__ = ["HubWaits"]

_LOG = logging.getLogger("colonnade.hub")
# A wait is told after so many seconds, and each time that it has doubled.
_TOLD_SECONDS = 10.0


class HubWaits:
    """Waits of at least ten seconds, by party.

    Attributes:
        counts: How many there were.
        totals: How many seconds they lasted together, the present one included.
        present: How long the present one has lasted; only parties that are waited for.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.totals: dict[str, float] = {}
        self.present: dict[str, float] = {}
        self._told_at: dict[str, float] = {}

    def look(self, owed: Mapping[str, float]) -> None:
        """Take note of how long each party has owed an answer by now.

        Args:
            owed: Seconds by party; 0 if it owes none.
        """
        for party, seconds in owed.items():
            before = self.present.get(party)
            if before is not None and seconds < before:
                # It answered; it may owe another answer by now.
                _LOG.info(
                    "an answer came after a wait",
                    extra={"fields": {"party": party, "seconds": round(before, 1)}},
                )
                del self.present[party], self._told_at[party]
                before = None
            if seconds < _TOLD_SECONDS:
                continue
            if before is None:
                self.counts[party] = self.counts.get(party, 0) + 1
                self._told_at[party] = 0.0
            self.totals[party] = self.totals.get(party, 0.0) + seconds - (before or 0.0)
            self.present[party] = seconds
            if seconds >= 2 * self._told_at[party]:
                self._told_at[party] = seconds
                _LOG.warning(
                    "waiting for a party",
                    extra={"fields": {"party": party, "seconds": round(seconds, 1)}},
                )
