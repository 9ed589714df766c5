"""Waiting until parties are connected: how long, how often, and what is said meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from colonnade.federate.attempts import wait_for_parties
from colonnade.federate.prediction_files import _absent

NAMES = ("shop", "telco")


class _Arriving:
    """In place of a hub: says at each look who is absent, and notes how long it was to wait."""

    def __init__(self, *absent: tuple[str, ...]) -> None:
        self._absent, self.timeouts = list(absent), list[float]()

    def wait_for(self, names: tuple[str, ...], timeout: float) -> tuple[str, ...]:
        assert names == NAMES
        self.timeouts.append(timeout)
        return self._absent.pop(0)


def test_training_waits_until_all_are_there_and_says_so_once() -> None:
    hub, told = _Arriving(NAMES, ("telco",), ("telco",), ()), list[str]()
    wait_for_parties(hub, NAMES, told.append)  # type: ignore[arg-type]
    assert told == ["waiting for shop, telco"]
    # A wait without an end would let no signal in.
    assert hub.timeouts == [0.2, 1.0, 1.0, 1.0]


def test_nothing_is_said_where_all_are_there() -> None:
    hub, told = _Arriving(()), list[str]()
    wait_for_parties(hub, NAMES, told.append)  # type: ignore[arg-type]
    assert (told, len(hub.timeouts)) == ([], 1)


@pytest.mark.parametrize(("seconds", "timeouts"), [(0.0, [0.2]), (0.5, [0.2, 0.5])])
@pytest.mark.parametrize("tolerant", [False, True])
def test_predictions_wait_as_long_as_told(
    seconds: float, timeouts: list[float], tolerant: bool
) -> None:
    hub, told = _Arriving(NAMES, ("telco",)), list[str]()
    info = SimpleNamespace(tolerates_missing=tolerant)
    blueprint: Any = SimpleNamespace(
        elsewhere=NAMES, spec=SimpleNamespace(method=SimpleNamespace(info=info))
    )
    absent = _absent(hub, blueprint, seconds, told.append)  # type: ignore[arg-type]
    assert hub.timeouts == timeouts
    assert absent == (("telco",) if seconds else NAMES)
    waiting = ["waiting for shop, telco"] if seconds else []
    assert told == [*waiting, *([f"without {', '.join(absent)}"] if tolerant else [])]
