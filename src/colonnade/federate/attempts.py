"""Attempts of a run: it waits for parties, and goes back when one crashed, but not for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from colonnade.core.errors import PartyFailed, PartyRestarted
from colonnade.fabrics.grpc.hub import Hub
from colonnade.run.storage import read_json

__all__ = ["MOST_RETURNS", "attempted", "newest_checkpoint", "wait_for_parties"]

T = TypeVar("T")

# How often in a row a run goes back to the same checkpoint.
MOST_RETURNS = 10


def attempted(
    attempt: Callable[[], T],
    *,
    progress: Callable[[], str | None],
    go_back: Callable[[PartyRestarted], None],
    remedy: str = "look into its log, then go on with --resume",
) -> T:
    """Try until an attempt ends well; a party that keeps crashing ends that.

    ``progress`` names what is finished, such as the newest checkpoint. Who comes back ten times
    with nothing new between crashes at the same place each time, and will go on doing so.
    """
    num_returns, before = 0, None
    while True:
        try:
            return attempt()
        except PartyRestarted as error:
            newest = progress()
            num_returns = num_returns + 1 if newest == before else 1
            before = newest
            if num_returns > MOST_RETURNS:
                raise PartyFailed(
                    f"party '{error.party}' came back without what it knew {num_returns} times in "
                    f"a row with no checkpoint in between; {remedy}",
                    party=error.party,
                ) from error
            go_back(error)


def newest_checkpoint(root: Path) -> str | None:
    """The tag of a run directory's newest checkpoint; none before the first."""
    path = root / "checkpoint.json"
    return str(read_json(path)["tag"]) if path.exists() else None


def wait_for_parties(hub: Hub, names: tuple[str, ...], say: Callable[[str], None]) -> None:
    """Wait until all of them are connected; says whom it waits for."""
    absent = hub.wait_for(names, timeout=0.2)
    if absent:
        say(f"waiting for {', '.join(absent)}")
        while hub.wait_for(names, timeout=1.0):
            pass  # a wait with an end lets signals in between
